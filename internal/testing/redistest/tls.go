package redistest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

const (
	caFile   = "ca.crt"
	certFile = "server.crt"
	keyFile  = "server.key"
)

// writeCertificates makes an authority and a certificate signed by it, for 127.0.0.1 and localhost, writes them where the server
// expects them, and returns what a client needs to trust the server, and to be trusted by one that asks for a certificate.
func writeCertificates(dir string) (*tls.Config, error) {
	now := time.Now()
	ca := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "redistest authority"},
		NotBefore: now.Add(-time.Hour), NotAfter: now.Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	leaf := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "redistest server"},
		NotBefore: ca.NotBefore, NotAfter: ca.NotAfter,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, DNSNames: []string{"localhost"},
	}
	caKey, caErr := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	leafKey, leafErr := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err := errors.Join(caErr, leafErr); err != nil {
		return nil, fmt.Errorf("redistest: %w", err)
	}
	caDER, caErr := x509.CreateCertificate(rand.Reader, ca, ca, caKey.Public(), caKey)
	leafDER, leafErr := x509.CreateCertificate(rand.Reader, leaf, ca, leafKey.Public(), caKey)
	keyDER, keyErr := x509.MarshalPKCS8PrivateKey(leafKey)
	if err := errors.Join(caErr, leafErr, keyErr); err != nil {
		return nil, fmt.Errorf("redistest: %w", err)
	}
	for _, f := range []struct {
		name, kind string
		der        []byte
	}{{caFile, "CERTIFICATE", caDER}, {certFile, "CERTIFICATE", leafDER}, {keyFile, "PRIVATE KEY", keyDER}} {
		text := pem.EncodeToMemory(&pem.Block{Type: f.kind, Bytes: f.der})
		if err := os.WriteFile(filepath.Join(dir, f.name), text, 0o600); err != nil {
			return nil, fmt.Errorf("redistest: %w", err)
		}
	}
	parsed, err := x509.ParseCertificate(caDER)
	if err != nil {
		return nil, fmt.Errorf("redistest: %w", err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(parsed)
	own := tls.Certificate{Certificate: [][]byte{leafDER}, PrivateKey: leafKey}
	return &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{own}}, nil
}
