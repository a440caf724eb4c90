package bench

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"math/big"
)

// tlsSettings are those of a connection of a job with keys (package keys): what is measured differs in nothing else.
func tlsSettings() *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS13, DynamicRecordSizingDisabled: true, SessionTicketsDisabled: true}
}

// clientTLS trusts whoever answers: it is a process that the bench has started.
func clientTLS() *tls.Config {
	c := tlsSettings()
	c.InsecureSkipVerify = true
	return c
}

// serverTLS is a peer's side, with a certificate of its own making.
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
