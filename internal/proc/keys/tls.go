package keys

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"time"
)

// Client is how a process calls others, who are of the given roles.
func (r *Ring) Client(roles ...Role) *tls.Config {
	c := r.config(x509.ExtKeyUsageServerAuth, "the peer that was called", roles...)
	// The name of a host says nothing here; verify checks the rest of what would be checked, and more.
	c.InsecureSkipVerify = true
	c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return r.own(), nil }
	return c
}

// Server is how a process is called. Whoever calls shows a certificate.
func (r *Ring) Server() *tls.Config {
	c := r.config(x509.ExtKeyUsageClientAuth, "the caller", Roles...)
	c.ClientAuth = tls.RequireAnyClientCert
	c.SessionTicketsDisabled = true // so that each connection is checked as a whole
	c.GetCertificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return r.own(), nil }
	return c
}

// Web is how a process is called by browsers and tools, too: whoever shows no certificate shows something else.
func (r *Ring) Web() *tls.Config {
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
		// Records are as large as they may be from the first on: they carry frames, and no page that somebody waits
		// for.
		DynamicRecordSizingDisabled: true,
		VerifyConnection: func(s tls.ConnectionState) error {
			if err := r.verify(s.PeerCertificates, use, roles); err != nil {
				return declinedError{whom, err}
			}
			return nil
		},
	}
}

func (r *Ring) own() *tls.Certificate {
	own := r.current().own
	return &own
}

// verify checks the certificates that a peer shows: the first is its own.
func (r *Ring) verify(shown []*x509.Certificate, use x509.ExtKeyUsage, roles []Role) error {
	now, at := r.current(), r.clock()
	if len(shown) == 0 {
		return foreign{errors.New("it shows no certificate")}
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
			return fmt.Errorf("its certificate %s is revoked", Serial(c.SerialNumber))
		}
	}
	who, err := Of(leaf)
	if err != nil {
		return err
	}
	if who.Domain != now.identity.Domain {
		return foreign{fmt.Errorf("its certificate is for job %s, and ours for %s", who.Domain, now.identity.Domain)}
	}
	for _, role := range roles {
		if who.Role == role {
			return nil
		}
	}
	return foreign{fmt.Errorf("its certificate is for a %s, whom nobody calls", who.Role)}
}

// explain says in words that help why a certificate is not taken.
func explain(leaf *x509.Certificate, at time.Time, err error) error {
	var invalid x509.CertificateInvalidError
	var unknown x509.UnknownAuthorityError
	switch {
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired && at.After(leaf.NotAfter):
		return fmt.Errorf("its certificate ran out at %s; perdure keys renew makes new ones",
			leaf.NotAfter.UTC().Format(time.RFC3339))
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return fmt.Errorf("its certificate is good from %s on: do the clocks of both machines agree?",
			leaf.NotBefore.UTC().Format(time.RFC3339))
	case errors.As(err, &unknown):
		return foreign{errors.New("its certificate is of another job's keys: nobody whom we trust has signed it")}
	}
	return err
}

// declinedError is why the ring does not accept a peer's certificate.
type declinedError struct {
	whom string
	why  error
}

func (e declinedError) Error() string { return fmt.Sprintf("%s: %v", e.whom, e.why) }
func (e declinedError) Unwrap() error { return e.why }

// Declined says which certificate was not accepted, and why, if a call with the ring has failed for that reason; nil:
// it has failed for another.
func (r *Ring) Declined(err error) error {
	var ours declinedError
	var alert *net.OpError
	switch own := r.current().own.Leaf; {
	case errors.As(err, &ours):
		return fmt.Errorf("we refuse it: %w", ours.why)
	case !errors.As(err, &alert) || alert.Op != "remote error":
		return nil
	case own == nil:
		return fmt.Errorf("it asks for a certificate (%w)", err)
	case r.clock().After(own.NotAfter):
		return fmt.Errorf("it refuses our certificate, in %s, which ran out at %s: perdure keys renew makes a new one",
			r.dir, own.NotAfter.UTC().Format(time.RFC3339))
	case r.Revoked(own):
		return fmt.Errorf("it refuses our certificate, in %s, which is revoked", r.dir)
	default:
		return fmt.Errorf("it refuses our certificate, in %s; its log says why (%w)", r.dir, err)
	}
}

// foreign is an error about a peer that will never be one of ours, however often it is called.
type foreign struct{ error }

// Foreign reports whether an error says that a peer was called that will never be one of ours.
func Foreign(err error) bool {
	var f foreign
	return errors.As(err, &f)
}
