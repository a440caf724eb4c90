package s3

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"slices"

	"github.com/minio/minio-go/v7"

	"github.com/perdure/perdure/internal/data/store"
)

// Codes of errors that say more than the number of the answer does.
var (
	missingCodes = []string{"NoSuchKey", "NoSuchUpload", "NotFound"}
	fullCodes    = []string{
		"XMinioStorageFull", "XMinioAdminBucketQuotaExceeded", "QuotaExceeded", "InsufficientStorage",
		"EntityTooLarge",
	}
	deniedCodes = []string{
		"AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "InvalidToken",
		"AllAccessDisabled", "AccountProblem", "AuthorizationHeaderMalformed",
	}
	// A request is refused that was signed by a clock that is wrong: the next is not, once the clock is set right.
	skewedCode = "RequestTimeTooSkewed"
	awayCodes  = []string{
		skewedCode, "SlowDown", "SlowDownWrite", "SlowDownRead", "RequestTimeout", "InternalError", "Throttling",
	}
)

// wrong says what was done, and where, and what is wrong, of the kind that it is.
func (s *Store) wrong(what, name string, err error) error {
	if err == nil {
		return nil
	}
	where := s.String()
	if name != "" {
		where += "/" + name
	}
	kind, cause := kindOf(err)
	return store.Kind(kind, fmt.Errorf("store: %s %s: %w", what, where, cause))
}

// kindOf says of which kind an error is, and what people are to read of it; a nil kind is none that
// callers tell apart.
func kindOf(err error) (kind, cause error) {
	if err == nil {
		return nil, nil
	}
	if answer := (minio.ErrorResponse{}); errors.As(err, &answer) {
		kind := kindOfAnswer(answer)
		if answer.Code == skewedCode {
			return kind, fmt.Errorf("%w (%s); do the clocks of both machines agree?", err, answer.Code)
		}
		if answer.Code != "" && answer.Code != http.StatusText(answer.StatusCode) {
			err = fmt.Errorf("%s (%s)", answer.Error(), answer.Code)
		}
		return kind, err
	}
	if at := (*url.Error)(nil); errors.As(err, &at) {
		err = at.Err // the address is long, and says nothing
	}
	if errors.Is(err, errSilent) {
		return store.ErrAway, errSilent
	}
	if errors.Is(err, context.Canceled) {
		return nil, err
	}
	var untrusted x509.UnknownAuthorityError
	var invalid x509.CertificateInvalidError
	var network net.Error
	switch {
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired: // by this machine's clock, or it is renewed
		return store.ErrAway, err
	case errors.As(err, &untrusted):
		return nil, err
	case errors.As(err, &network), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.EOF):
		return store.ErrAway, err
	}
	return nil, err
}

func kindOfAnswer(a minio.ErrorResponse) error {
	switch is := func(codes []string) bool { return slices.Contains(codes, a.Code) }; {
	case a.StatusCode == http.StatusPreconditionFailed:
		return fs.ErrExist
	case a.Code == "NoSuchBucket":
		return store.ErrNoBucket
	case is(missingCodes):
		return fs.ErrNotExist
	case is(fullCodes), a.StatusCode == http.StatusInsufficientStorage:
		return store.ErrFull
	case is(awayCodes), a.StatusCode == http.StatusRequestTimeout, a.StatusCode == http.StatusTooManyRequests,
		a.StatusCode >= http.StatusInternalServerError && a.StatusCode != http.StatusNotImplemented:
		return store.ErrAway
	case is(deniedCodes), a.StatusCode == http.StatusForbidden, a.StatusCode == http.StatusUnauthorized:
		return store.ErrDenied
	case a.StatusCode == http.StatusNotFound:
		return fs.ErrNotExist
	}
	return nil
}
