package bench

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"math/big"
)

// tlsSettings returns the settings of connections of a job with keys (package keys), so that nothing else differs.
func tlsSettings() *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS13, DynamicRecordSizingDisabled: true, SessionTicketsDisabled: true}
}

// clientTLS trusts any peer, because the benchmark has started it.
func clientTLS() *tls.Config {
	c := tlsSettings()
	c.InsecureSkipVerify = true
	return c
}

// serverTLS returns the settings of the peer, with a self-signed certificate.
func serverTLS() (*tls.Config, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	t := &x509.Certificate{SerialNumber: big.NewInt(1)}
	der, err := x509.CreateCertificate(rand.Reader, t, t, key.Public(), key)
	if err != nil {
		return nil, err
	}
	c := tlsSettings()
	c.Certificates = []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}
	return c, nil
}
