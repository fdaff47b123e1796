package serve

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/tryacquire/ratelimit/ratelimittest"
)

// An authority signs certificates.
type authority struct {
	t    *testing.T
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  []byte
}

func newAuthority(t *testing.T) *authority {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "authority"}, NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	require.NoError(t, err)
	cert, err := x509.ParseCertificate(der)
	require.NoError(t, err)
	return &authority{t, cert, key, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})}
}

// sign returns a certificate for a name, or a URI, and its key.
func (a *authority) sign(dns, uri string) (cert, key []byte) {
	own, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(a.t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(2), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}}
	if dns != "" {
		template.DNSNames = []string{dns}
	}
	if uri != "" {
		u, err := url.Parse(uri)
		require.NoError(a.t, err)
		template.URIs = []*url.URL{u}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, &own.PublicKey, a.key)
	require.NoError(a.t, err)
	text, err := x509.MarshalPKCS8PrivateKey(own)
	require.NoError(a.t, err)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: text})
}

// A logged is a log that is read while it is written.
type logged struct {
	mu   sync.Mutex // guards text
	text bytes.Buffer
}

func (l *logged) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

// count is how many times the log has a text.
func (l *logged) count(text string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.text.String(), text)
}

// TestTLS: gRPC and HTTP with certificates of clients, of one name; a certificate that is renewed; files that break.
func TestTLS(t *testing.T) {
	servers, clients, strangers := newAuthority(t), newAuthority(t), newAuthority(t)
	dir := t.TempDir()
	files := TLS{Cert: filepath.Join(dir, "cert"), Key: filepath.Join(dir, "key"), ClientCA: filepath.Join(dir, "ca"), ClientSAN: "spiffe://shop/envoy"}
	write := func(file string, text []byte) { require.NoError(t, os.WriteFile(file, text, 0o600)) }
	renew := func(name string) {
		cert, key := servers.sign(name, "")
		write(files.Cert, cert)
		write(files.Key, key)
	}
	renew("ratelimit")
	write(files.ClientCA, clients.pem)
	quiet := slog.New(slog.DiscardHandler)
	var lines logged // of gRPC
	log := slog.New(slog.NewTextHandler(&lines, nil))
	on := Listeners{GRPC: listen(t), HTTP: listen(t)}
	var err error
	on.GRPC, err = files.Listen(on.GRPC, log, "h2")
	require.NoError(t, err)
	on.HTTP, err = files.Listen(on.HTTP, quiet, "http/1.1")
	require.NoError(t, err)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	var served logged
	go func() {
		ended <- Run(ctx, ratelimittest.New(t).Client(), Options{}, on, slog.New(slog.NewTextHandler(&served, nil)))
	}()
	defer func() {
		stop()
		require.NoError(t, <-ended)
	}()

	plain, err := net.Dial("tcp", on.HTTP.Addr().String())
	require.NoError(t, err)
	_, err = plain.Write([]byte("no handshake"))
	require.NoError(t, err)
	_, _ = io.Copy(io.Discard, plain)
	require.NoError(t, plain.Close())
	require.Equal(t, 1, served.count(`level=WARN msg="http: TLS handshake error from `), "in the log, as all else")

	roots := x509.NewCertPool()
	require.True(t, roots.AppendCertsFromPEM(servers.pem))
	ask := func(server string, a *authority, dns, uri string) error {
		c := &tls.Config{RootCAs: roots, ServerName: server}
		if a != nil {
			pair, err := tls.X509KeyPair(a.sign(dns, uri))
			require.NoError(t, err)
			c.Certificates = []tls.Certificate{pair}
		}
		conn, err := grpc.NewClient(on.GRPC.Addr().String(), grpc.WithTransportCredentials(credentials.NewTLS(c)))
		require.NoError(t, err)
		defer conn.Close()
		_, byGRPC := pb.NewRateLimitServiceClient(conn).ShouldRateLimit(t.Context(), request(1, "user=42"))
		web := &http.Client{Transport: &http.Transport{TLSClientConfig: c, DisableKeepAlives: true}}
		r, err := http.NewRequestWithContext(t.Context(), "GET", "https://"+on.HTTP.Addr().String()+"/json", nil)
		require.NoError(t, err)
		answer, byHTTP := web.Do(r)
		if byHTTP == nil {
			require.NoError(t, answer.Body.Close())
			require.Equal(t, http.StatusMethodNotAllowed, answer.StatusCode)
		}
		require.Equal(t, byGRPC == nil, byHTTP == nil, "%v, %v", byGRPC, byHTTP)
		return byGRPC
	}
	require.NoError(t, ask("ratelimit", clients, "", files.ClientSAN))
	require.Error(t, ask("ratelimit", nil, "", ""), "no certificate")
	require.Error(t, ask("ratelimit", strangers, "", files.ClientSAN), "of another authority")
	require.Error(t, ask("ratelimit", clients, "envoy", "spiffe://shop/other"), "another name")
	require.Error(t, ask("renewed", clients, "", files.ClientSAN))
	renew("renewed")
	require.NoError(t, ask("renewed", clients, "", files.ClientSAN))
	write(files.Cert, []byte("half"))
	require.NoError(t, ask("renewed", clients, "", files.ClientSAN), "the former one stays in force")
	require.NoError(t, ask("renewed", clients, "", files.ClientSAN))
	require.Equal(t, 1, lines.count("the former ones are"), "for two handshakes")
	require.NoError(t, os.Remove(files.Cert))
	require.NoError(t, ask("renewed", clients, "", files.ClientSAN))
	require.Equal(t, 2, lines.count("the former ones are"), "another mistake")
	renew("again")
	require.NoError(t, ask("again", clients, "", files.ClientSAN))
	require.NoError(t, ask("again", clients, "", files.ClientSAN))
	require.Equal(t, 1, lines.count("in force again"))
	write(files.Cert, []byte("half"))
	require.NoError(t, ask("again", clients, "", files.ClientSAN))
	require.Equal(t, 3, lines.count("the former ones are"))
}

func TestTLSRefuses(t *testing.T) {
	l := listen(t)
	defer l.Close()
	a := newAuthority(t)
	dir := t.TempDir()
	cert, key := a.sign("x", "")
	for name, text := range map[string][]byte{"cert": cert, "key": key, "none": nil} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), text, 0o600))
	}
	at := func(name string) string { return filepath.Join(dir, name) }
	for _, test := range []struct {
		files TLS
		want  string
	}{
		{TLS{Cert: at("cert")}, "TLS needs a certificate and its key"},
		{TLS{Cert: at("cert"), Key: at("key"), ClientSAN: "envoy"}, "a client's name needs its authorities too"},
		{TLS{Cert: at("none"), Key: at("key")}, at("none")},
		{TLS{Cert: at("cert"), Key: at("key"), ClientCA: at("none")}, at("none") + " has no certificate"},
		{TLS{Cert: at("cert"), Key: at("key"), ClientCA: at("absent")}, "no such file"},
	} {
		_, err := test.files.Listen(l, slog.New(slog.DiscardHandler), "h2")
		require.ErrorContains(t, err, test.want)
	}
}
