// Package tlsfiles reads certificates, keys and authorities from files that may change while they are in use.
package tlsfiles

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"os"

	"github.com/tryacquire/ratelimit/internal/filewatch"
)

// Latest returns a function that reads the files each time. While they cannot be read, what was read last stays in force, and
// the log says so, and of which files. The error is that of files that cannot be read now.
func Latest(log *slog.Logger, of string, read func() (*tls.Config, error)) (func() (*tls.Config, error), error) {
	files := &filewatch.LastGood[*tls.Config]{
		Read: read,
		Report: func(err error) {
			if err != nil {
				log.Error("the files of "+of+" are not in force, the former ones are", "error", err)
				return
			}
			log.Info("the files of " + of + " are in force again")
		},
	}
	_, err := files.Get()
	return files.Get, err
}

// Pair reads a certificate and its key.
func Pair(cert, key string) ([]tls.Certificate, error) {
	pair, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		return nil, fmt.Errorf("%s, %s: %w", cert, key, err)
	}
	return []tls.Certificate{pair}, nil
}

// Authorities reads certificates of authorities.
func Authorities(file string) (*x509.CertPool, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	all := x509.NewCertPool()
	if !all.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("%s has no certificate", file)
	}
	return all, nil
}
