package keys

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"time"
)

// Client returns the configuration for connections to peers of the given roles.
func (r *Ring) Client(roles ...Role) *tls.Config {
	c := r.config(x509.ExtKeyUsageServerAuth, "the server", roles...)
	// Host names are not checked. verify performs all other standard checks, and more.
	c.InsecureSkipVerify = true
	c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return r.own(), nil }
	return c
}

// Server returns the configuration for accepting connections. Callers must present a certificate.
func (r *Ring) Server() *tls.Config {
	c := r.config(x509.ExtKeyUsageClientAuth, "the caller", Roles...)
	c.ClientAuth = tls.RequireAnyClientCert
	c.SessionTicketsDisabled = true // every connection gets the full verification
	c.GetCertificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return r.own(), nil }
	return c
}

// WebServer returns the configuration for accepting connections from browsers and tools as well. Callers without a
// certificate must authenticate in another way.
func (r *Ring) WebServer() *tls.Config {
	c := r.Server()
	verify := c.VerifyConnection
	c.ClientAuth = tls.RequestClientCert
	c.VerifyConnection = func(s tls.ConnectionState) error {
		if len(s.PeerCertificates) == 0 {
			return nil
		}
		return verify(s)
	}
	c.NextProtos = []string{"h2", "http/1.1"}
	return c
}

func (r *Ring) config(use x509.ExtKeyUsage, whom string, roles ...Role) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13,
		// Records have full size from the start, because connections carry frames, and no user waits for the first
		// bytes of a page.
		DynamicRecordSizingDisabled: true,
		VerifyConnection: func(s tls.ConnectionState) error {
			if err := r.verify(s.PeerCertificates, use, roles); err != nil {
				return rejectedError{whom, err}
			}
			return nil
		},
	}
}

func (r *Ring) own() *tls.Certificate {
	own := r.current().own
	return &own
}

// verify checks the certificates that a peer presents. The first one is the peer's own.
func (r *Ring) verify(shown []*x509.Certificate, use x509.ExtKeyUsage, roles []Role) error {
	now, at := r.current(), r.clock()
	if len(shown) == 0 {
		return permanentError{errors.New("it presents no certificate")}
	}
	between := x509.NewCertPool()
	for _, c := range shown[1:] {
		between.AddCert(c)
	}
	leaf := shown[0]
	if _, err := leaf.Verify(x509.VerifyOptions{
		Roots: now.roots, Intermediates: between, KeyUsages: []x509.ExtKeyUsage{use}, CurrentTime: at,
	}); err != nil {
		return explain(leaf, at, err)
	}
	for _, c := range shown {
		if now.revoked[c.SerialNumber.String()] {
			return fmt.Errorf("its certificate %s is revoked", describe(c))
		}
	}
	who, err := IdentityOf(leaf)
	if err != nil {
		return err
	}
	if who.Domain != now.identity.Domain {
		return permanentError{
			fmt.Errorf("its certificate is for job %s, but ours is for %s", who.Domain, now.identity.Domain),
		}
	}
	if !slices.Contains(roles, who.Role) {
		return permanentError{
			fmt.Errorf("its certificate has the role %s, which is not allowed for this connection", who.Role),
		}
	}
	return nil
}

// describe returns a certificate's serial number, followed by its identity if it has one.
func describe(c *x509.Certificate) string {
	who, err := IdentityOf(c)
	if err != nil { // an intermediate certificate
		return Serial(c.SerialNumber)
	}
	return fmt.Sprintf("%s (%s)", Serial(c.SerialNumber), who)
}

// explain returns a helpful error for a certificate that failed verification.
func explain(leaf *x509.Certificate, at time.Time, err error) error {
	var invalid x509.CertificateInvalidError
	var unknown x509.UnknownAuthorityError
	switch {
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired && at.After(leaf.NotAfter):
		return fmt.Errorf("its certificate expired at %s; renew it with perdure keys renew",
			leaf.NotAfter.UTC().Format(time.RFC3339))
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return fmt.Errorf("its certificate is not valid before %s; check that the clocks of both machines agree",
			leaf.NotBefore.UTC().Format(time.RFC3339))
	case errors.As(err, &unknown):
		return permanentError{errors.New("its certificate is not signed by a certificate that we trust; it probably " +
			"comes from another job's keys")}
	}
	return err
}

// rejectedError is the reason for rejecting a peer's certificate.
type rejectedError struct {
	whom string
	why  error
}

func (e rejectedError) Error() string { return fmt.Sprintf("%s: %v", e.whom, e.why) }
func (e rejectedError) Unwrap() error { return e.why }

// RejectedCertificate returns which certificate was rejected, and why, if err comes from a failed handshake with the
// ring. Otherwise it returns nil.
func (r *Ring) RejectedCertificate(err error) error {
	var ours rejectedError
	var alert *net.OpError
	switch own := r.current().own.Leaf; {
	case errors.As(err, &ours):
		return fmt.Errorf("we reject it: %w", ours.why)
	case !errors.As(err, &alert) || alert.Op != "remote error":
		return nil
	case own == nil:
		return fmt.Errorf("it requires a certificate (%w)", err)
	case r.clock().After(own.NotAfter):
		return fmt.Errorf("it rejects our certificate, in %s, which expired at %s; renew it with perdure keys renew",
			r.dir, own.NotAfter.UTC().Format(time.RFC3339))
	default:
		return fmt.Errorf("it rejects %w", r.ExplainRejection(err))
	}
}

// ErrRevoked reports that the certificate of this process is revoked.
var ErrRevoked = errors.New("revoked")

// ExplainRejection describes this process's certificate after a peer has rejected it with a TLS alert, and says what to
// do. An alert does not contain the reason. The revocation list is read again, because it is copied to all machines of
// a job at about the same time. Without it in this process's directory, the reason is unknown.
func (r *Ring) ExplainRejection(alert error) error {
	now := r.current()
	renew := fmt.Sprintf("make a new one with perdure keys renew KEYS %s and copy it there", now.identity.DirName())
	list, err := readRevocations(filepath.Join(r.dir, RevokedFile), now.trusted)
	if err == nil && list[now.own.Leaf.SerialNumber.String()] {
		return fmt.Errorf("our certificate, in %s, which is %w; to readmit its holder, %s", r.dir, ErrRevoked, renew)
	}
	return fmt.Errorf("our certificate, in %s (%w); its log has the reason; to readmit the holder of a revoked "+
		"certificate, %s", r.dir, alert, renew)
}

// permanentError is an error about a peer that can never become a valid one, however often the call is retried.
type permanentError struct{ error }

// IsPermanent reports whether an error concerns a peer that can never become a valid one.
func IsPermanent(err error) bool {
	var f permanentError
	return errors.As(err, &f)
}
