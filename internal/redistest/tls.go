package redistest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// StartTLS is [Start] for a server that speaks TLS only, by certificates that are made for this test. Its Client does
// too; the configuration is for other clients. It holds a certificate of the client's own, which the server asks for.
// If redis-server is built without TLS, the test is skipped.
func StartTLS(tb testing.TB, args ...string) (*Server, *tls.Config) {
	tb.Helper()
	require(tb)
	dir := tb.TempDir()
	secure := certify(tb, dir)
	in := func(name string) string { return filepath.Join(dir, name) }
	s := &Server{tls: secure, args: append([]string{
		"--tls-ca-cert-file", in("ca.pem"), "--tls-cert-file", in("cert.pem"), "--tls-key-file", in("key.pem"),
	}, args...)}
	err := s.launch()
	switch {
	case err == nil:
	case strings.Contains(err.Error(), "Bad directive") && strings.Contains(err.Error(), "'tls-port"):
		tb.Skip(withoutTLS)
	default:
		tb.Fatal(err)
	}
	tb.Cleanup(func() { s.Close() })
	return s, secure.Clone()
}

const withoutTLS = "redis-server is built without TLS: install another build to run this test"

// certify makes an authority and a certificate by it for both sides, writes them to dir as ca.pem, cert.pem and key.pem,
// and returns what a client needs.
func certify(tb testing.TB, dir string) *tls.Config {
	tb.Helper()
	check := func(err error) {
		tb.Helper()
		if err != nil {
			tb.Fatal(err)
		}
	}
	write := func(name, kind string, der []byte) {
		tb.Helper()
		check(os.WriteFile(filepath.Join(dir, name), pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600))
	}
	template := func(serial int64, name string) *x509.Certificate {
		return &x509.Certificate{
			SerialNumber: big.NewInt(serial),
			Subject:      pkix.Name{CommonName: name}, // with the same, the one would pass for signed by itself
			NotBefore:    time.Now().Add(-time.Hour),
			NotAfter:     time.Now().Add(24 * time.Hour),
			KeyUsage:     x509.KeyUsageDigitalSignature,
		}
	}
	caKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	check(err)
	ca := template(1, "redistest authority")
	ca.IsCA, ca.BasicConstraintsValid, ca.KeyUsage = true, true, x509.KeyUsageCertSign
	caDER, err := x509.CreateCertificate(rand.Reader, ca, ca, caKey.Public(), caKey)
	check(err)
	write("ca.pem", "CERTIFICATE", caDER)
	ca, err = x509.ParseCertificate(caDER)
	check(err)

	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	check(err)
	cert := template(2, "redistest")
	cert.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 1)}
	cert.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	der, err := x509.CreateCertificate(rand.Reader, cert, ca, key.Public(), caKey)
	check(err)
	write("cert.pem", "CERTIFICATE", der)
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	check(err)
	write("key.pem", "PRIVATE KEY", keyDER)

	roots := x509.NewCertPool()
	roots.AddCert(ca)
	return &tls.Config{
		RootCAs:      roots,
		Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}},
		ServerName:   "127.0.0.1",
		MinVersion:   tls.VersionTLS12,
	}
}
