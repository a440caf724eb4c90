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

// Error codes that are more specific than the HTTP status.
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
	// The server rejects a request signed with a wrong clock. A retry succeeds once the clock is corrected.
	clockSkewCode    = "RequestTimeTooSkewed"
	unavailableCodes = []string{
		clockSkewCode, "SlowDown", "SlowDownWrite", "SlowDownRead", "RequestTimeout", "InternalError", "Throttling",
	}
)

// wrapError adds the operation, the store and the object's name to an error and classifies it.
func (s *Store) wrapError(what, name string, err error) error {
	if err == nil {
		return nil
	}
	where := s.String()
	if name != "" {
		where += "/" + name
	}
	kind, cause := classifyError(err)
	return store.WithKind(kind, fmt.Errorf("store: %s %s: %w", what, where, cause))
}

// classifyError returns an error's kind and the error to show to users. The kind is nil if callers do not distinguish
// it.
func classifyError(err error) (kind, cause error) {
	if err == nil {
		return nil, nil
	}
	if answer, is := errors.AsType[minio.ErrorResponse](err); is {
		kind := classifyResponse(answer)
		if answer.Code == clockSkewCode {
			return kind, fmt.Errorf("%w (%s); check that the clocks of both machines agree", err, answer.Code)
		}
		if answer.Code != "" && answer.Code != http.StatusText(answer.StatusCode) {
			err = fmt.Errorf("%s (%s)", answer.Error(), answer.Code)
		}
		return kind, err
	}
	if at, is := errors.AsType[*url.Error](err); is {
		err = at.Err // the URL is long and adds nothing
	}
	if errors.Is(err, errSilent) {
		return store.ErrUnavailable, errSilent
	}
	if errors.Is(err, context.Canceled) {
		return nil, err
	}
	var untrusted x509.UnknownAuthorityError
	var invalid x509.CertificateInvalidError
	var network net.Error
	switch {
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired: // or this clock is wrong
		return store.ErrUnavailable, err
	case errors.As(err, &untrusted):
		return nil, err
	case errors.As(err, &network), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.EOF):
		return store.ErrUnavailable, err
	}
	return nil, err
}

func classifyResponse(a minio.ErrorResponse) error {
	switch is := func(codes []string) bool { return slices.Contains(codes, a.Code) }; {
	case a.StatusCode == http.StatusPreconditionFailed:
		return fs.ErrExist
	case a.Code == "NoSuchBucket":
		return store.ErrNoBucket
	case is(missingCodes):
		return fs.ErrNotExist
	case is(fullCodes), a.StatusCode == http.StatusInsufficientStorage:
		return store.ErrFull
	case is(unavailableCodes), a.StatusCode == http.StatusRequestTimeout, a.StatusCode == http.StatusTooManyRequests,
		a.StatusCode >= http.StatusInternalServerError && a.StatusCode != http.StatusNotImplemented:
		return store.ErrUnavailable
	case is(deniedCodes), a.StatusCode == http.StatusForbidden, a.StatusCode == http.StatusUnauthorized:
		return store.ErrDenied
	case a.StatusCode == http.StatusNotFound:
		return fs.ErrNotExist
	}
	return nil
}
