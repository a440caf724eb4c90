package s3

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net/url"
	"testing"

	"github.com/perdure/perdure/internal/data/store"
)

// TestExpired: a server certificate that has expired or is not yet valid may be so only by this machine's clock, so the
// error is temporary. An untrusted certificate is a permanent error.
func TestExpired(t *testing.T) {
	for reason, away := range map[x509.InvalidReason]bool{x509.Expired: true, x509.CANotAuthorizedForThisName: false} {
		err := &url.Error{Op: "Put", URL: "https://store", Err: &tls.CertificateVerificationError{
			Err: x509.CertificateInvalidError{Cert: &x509.Certificate{}, Reason: reason},
		}}
		if kind, _ := classifyError(err); errors.Is(kind, store.ErrUnavailable) != away {
			t.Errorf("%v has kind %v", err, kind)
		}
	}
}
