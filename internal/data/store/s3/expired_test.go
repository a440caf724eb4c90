package s3

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net/url"
	"testing"

	"github.com/perdure/perdure/internal/data/store"
)

// TestExpired: a server's certificate that has run out, or is not good yet, may be so by this machine's clock alone: it
// is tried again. One that nobody signed stays so.
func TestExpired(t *testing.T) {
	for reason, away := range map[x509.InvalidReason]bool{x509.Expired: true, x509.CANotAuthorizedForThisName: false} {
		err := &url.Error{Op: "Put", URL: "https://store", Err: &tls.CertificateVerificationError{
			Err: x509.CertificateInvalidError{Cert: &x509.Certificate{}, Reason: reason},
		}}
		if kind, _ := kindOf(err); errors.Is(kind, store.ErrAway) != away {
			t.Errorf("%v is of the kind %v", err, kind)
		}
	}
}
