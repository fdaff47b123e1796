package serve

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"net"
	"os"
	"slices"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/filewatch"
)

// TLS are the files of a listener. They are read again at each handshake, so that a new certificate needs no restart.
// While they cannot be read, the former ones stay in force.
type TLS struct {
	Cert, Key string // the chain of the server, and its key
	ClientCA  string // if it is set, clients need a certificate of these authorities
	ClientSAN string // if it is set, such a certificate has this DNS name or URI
}

// Listen puts TLS in front of a listener, whose clients speak one of these protocols: "h2" for gRPC, "http/1.1" for the
// others. The error says which file cannot be used.
func (t TLS) Listen(l net.Listener, log *slog.Logger, protocols ...string) (net.Listener, error) {
	if t.Cert == "" || t.Key == "" || t.ClientSAN != "" && t.ClientCA == "" {
		return nil, fmt.Errorf("%w: TLS needs a certificate and its key; a client's name needs its authorities too", ratelimit.ErrInvalidConfig)
	}
	files := &filewatch.LastGood[*tls.Config]{
		Read: func() (*tls.Config, error) { return t.read(protocols) },
		Report: func(err error) {
			if err != nil {
				log.Error("the files of TLS are not in force, the former ones are", "error", err)
				return
			}
			log.Info("the files of TLS are in force again")
		},
	}
	if _, err := files.Get(); err != nil {
		return nil, err
	}
	return tls.NewListener(l, &tls.Config{
		MinVersion:         tls.VersionTLS12,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return files.Get() },
	}), nil
}

func (t TLS) read(protocols []string) (*tls.Config, error) {
	pair, err := tls.LoadX509KeyPair(t.Cert, t.Key)
	if err != nil {
		return nil, fmt.Errorf("ratelimit/serve: %s, %s: %w", t.Cert, t.Key, err)
	}
	// Without tickets: a session that is resumed would pass by a change of the authorities.
	c := &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: protocols, Certificates: []tls.Certificate{pair}, SessionTicketsDisabled: true}
	if t.ClientCA == "" {
		return c, nil
	}
	text, err := os.ReadFile(t.ClientCA)
	if err != nil {
		return nil, fmt.Errorf("ratelimit/serve: %w", err)
	}
	c.ClientAuth, c.ClientCAs = tls.RequireAndVerifyClientCert, x509.NewCertPool()
	if !c.ClientCAs.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("ratelimit/serve: %s has no certificate", t.ClientCA)
	}
	if t.ClientSAN != "" {
		c.VerifyConnection = func(state tls.ConnectionState) error { return t.named(state.PeerCertificates[0]) }
	}
	return c, nil
}

// named is an error unless the certificate has the client's name.
func (t TLS) named(c *x509.Certificate) error {
	for _, uri := range c.URIs {
		if uri.String() == t.ClientSAN {
			return nil
		}
	}
	if slices.Contains(c.DNSNames, t.ClientSAN) {
		return nil
	}
	return fmt.Errorf("ratelimit/serve: the client's certificate is not that of %s", t.ClientSAN)
}
