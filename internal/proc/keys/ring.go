// Package keys implements mutual TLS between the processes of a job: how a process proves its identity and verifies its
// peers.
//
// A Ring holds what one process needs: its certificate and key, the trusted certificates, and the revocation list. It
// creates TLS 1.3 configurations for both sides of a connection. Each side presents a certificate. Peers check the role
// in the certificate, not the host's address, because machines come and go.
//
// Files are read again when they change, so keys can be renewed and revoked while a job runs. A connection ends when
// the peer's certificate is revoked. An expired certificate is rejected for new connections but does not end existing
// ones.
package keys

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/perdure/perdure"
)

// The files in a directory of keys.
const (
	CAFile = "ca.pem" // one or more trusted certificates
	// The process's own certificate, the intermediate certificates up to a trusted one, and its key.
	IdentityFile = "identity.pem"
	RevokedFile  = "revoked.pem" // the X.509 certificate revocation list; optional
)

// maxFile limits the size of a file, in bytes.
const maxFile = 1 << 20

// pollInterval is how often Watch checks the files for changes.
const pollInterval = time.Second

// Ring holds the keys of one process. It is safe for concurrent use.
type Ring struct {
	dir   string
	clock func() time.Time // the wall clock, for expiry

	mu      sync.Mutex // guards the fields below
	loaded  contents
	stamps  [3]stamp
	failed  string                  // why the current files cannot be used; "" if they can
	tracked map[*TrackedConn]string // open connections, with the serial number of the peer's certificate
}

// contents is what the files contained when they were last read successfully.
type contents struct {
	own      tls.Certificate
	identity Identity
	trusted  []*x509.Certificate
	roots    *x509.CertPool  // pool of trusted
	revoked  map[string]bool // revoked serial numbers
}

// stamp detects changes of a file. Files are replaced as a whole, so each version is another file. That detects a
// change even if the wall clock stands still or was set back.
type stamp struct {
	info fs.FileInfo // nil: the file does not exist
}

func (s stamp) same(as stamp) bool {
	if s.info == nil || as.info == nil {
		return s.info == as.info
	}
	return os.SameFile(s.info, as.info) && s.info.Size() == as.info.Size() &&
		s.info.ModTime().Equal(as.info.ModTime())
}

// RoleDir returns the directory with the keys of a role: dir itself, or the role's subdirectory, as perdure keys new
// creates it.
func RoleDir(dir string, role Role) string {
	if _, err := os.Stat(filepath.Join(dir, IdentityFile)); err == nil {
		return dir
	}
	return filepath.Join(dir, string(role))
}

// Open reads a directory of keys.
func Open(dir string) (*Ring, error) {
	r := &Ring{dir: dir, clock: time.Now, tracked: map[*TrackedConn]string{}}
	r.stamps = r.stat() // taken before reading, so that a concurrent change is read again
	now, err := readDir(dir)
	if err != nil {
		return nil, perdure.Usagef("keys: %w", err)
	}
	r.loaded = now
	return r, nil
}

// OpenTrusted returns a ring without a certificate, which trusts the certificates in dir for peers of one job.
func OpenTrusted(dir, domain string) (*Ring, error) {
	r := &Ring{dir: dir, clock: time.Now, tracked: map[*TrackedConn]string{}}
	if err := r.loaded.trust(dir); err != nil {
		return nil, perdure.Usagef("keys: %w", err)
	}
	r.loaded.identity.Domain = domain
	return r, nil
}

// Identity returns the identity of this process.
func (r *Ring) Identity() Identity { return r.current().identity }

// Expiry returns when the process's certificate expires.
func (r *Ring) Expiry() time.Time { return r.current().own.Leaf.NotAfter }

// Dir returns the directory of the keys.
func (r *Ring) Dir() string { return r.dir }

// SecretFile returns the file with the run's secret that is stored with the keys, or "" if there is none.
func (r *Ring) SecretFile() string {
	path := filepath.Join(r.dir, SecretFile)
	if _, err := os.Stat(path); err != nil {
		return ""
	}
	return path
}

// Watch checks the files for changes until ctx is done. It calls warn once for each change that cannot be used; the
// previous keys then stay in use.
func (r *Ring) Watch(ctx context.Context, warn func(error)) {
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			if err := r.Refresh(); err != nil {
				warn(err)
			}
		}
	}
}

// Refresh reads the files again if they changed, and ends connections to peers that are now revoked. It returns an
// error, once, if the new files cannot be used.
func (r *Ring) Refresh() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	stamps := r.stat()
	if slices.EqualFunc(stamps[:], r.stamps[:], stamp.same) {
		return nil
	}
	now, err := readDir(r.dir)
	if err != nil {
		if r.failed == err.Error() { // two files may be replaced one after the other: try again
			return nil
		}
		r.failed = err.Error()
		return fmt.Errorf("keys: %w; the previous keys stay in use", err)
	}
	r.loaded, r.stamps, r.failed = now, stamps, ""
	for hold, serial := range r.tracked {
		if now.revoked[serial] {
			delete(r.tracked, hold)
			hold.onRevoke()
		}
	}
	return nil
}

func (r *Ring) current() contents {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.loaded
}

func (r *Ring) stat() (s [3]stamp) {
	for i, name := range []string{CAFile, IdentityFile, RevokedFile} {
		if info, err := os.Stat(filepath.Join(r.dir, name)); err == nil {
			s[i] = stamp{info}
		}
	}
	return s
}

// TrackedConn is a connection that is closed when its peer's certificate is revoked.
type TrackedConn struct {
	ring     *Ring
	onRevoke func()
}

// Track registers a connection. The ring calls end, which must not block, when the peer's certificate is revoked. Hold
// returns false if it is already revoked.
func (r *Ring) Track(peer *x509.Certificate, end func()) (*TrackedConn, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	serial := peer.SerialNumber.String()
	if r.loaded.revoked[serial] {
		return nil, false
	}
	h := &TrackedConn{r, end}
	r.tracked[h] = serial
	return h, true
}

// IsRevoked reports whether the certificate or token with a serial number is revoked.
func (r *Ring) IsRevoked(serial *big.Int) bool { return r.current().revoked[serial.String()] }

// Trusted returns the trusted certificates.
func (r *Ring) Trusted() []*x509.Certificate { return r.current().trusted }

// Now returns the wall-clock time that expiry is checked against.
func (r *Ring) Now() time.Time { return r.clock() }

// Revoked reports whether a certificate is revoked.
func (r *Ring) Revoked(c *x509.Certificate) bool { return r.current().revoked[c.SerialNumber.String()] }

// Release unregisters a connection that has closed.
func (h *TrackedConn) Release() {
	h.ring.mu.Lock()
	defer h.ring.mu.Unlock()
	delete(h.ring.tracked, h)
}

// readDir reads a directory of keys and checks that the files match.
func readDir(dir string) (h contents, err error) {
	if err := h.trust(dir); err != nil {
		return h, err
	}
	path := filepath.Join(dir, IdentityFile)
	text, err := readPrivate(path)
	if err != nil {
		return h, err
	}
	if h.own, err = tls.X509KeyPair(text, text); err != nil {
		return h, fmt.Errorf("%s has no certificate with a matching key: %w", path, err)
	}
	if h.identity, err = IdentityOf(h.own.Leaf); err != nil {
		return h, fmt.Errorf("%s: %w", path, err)
	}
	return h, nil
}

// trust reads the trusted certificates and the revocation list.
func (h *contents) trust(dir string) (err error) {
	if h.trusted, err = readCertificates(filepath.Join(dir, CAFile)); err != nil {
		return err
	}
	h.roots = x509.NewCertPool()
	for _, c := range h.trusted {
		h.roots.AddCert(c)
	}
	h.revoked, err = readRevocations(filepath.Join(dir, RevokedFile), h.trusted)
	return err
}

// readCertificates reads a file of certificates.
func readCertificates(path string) (list []*x509.Certificate, err error) {
	text, err := readFile(path)
	for err == nil {
		var block *pem.Block
		if block, text = pem.Decode(text); block == nil {
			break
		}
		var c *x509.Certificate
		if c, err = x509.ParseCertificate(block.Bytes); err == nil {
			list = append(list, c)
		} else {
			err = fmt.Errorf("%s: %w", path, err)
		}
	}
	if err == nil && len(list) == 0 {
		err = fmt.Errorf("%s has no certificate", path)
	}
	return list, err
}

// readRevocations returns the serial numbers in a revocation list, which one of the trusted certificates must have
// signed.
func readRevocations(path string, trusted []*x509.Certificate) (map[string]bool, error) {
	text, err := readFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	serials := map[string]bool{}
	for {
		block, rest := pem.Decode(text)
		if block == nil {
			return serials, nil
		}
		text = rest
		list, err := x509.ParseRevocationList(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		signed := func(by *x509.Certificate) bool { return list.CheckSignatureFrom(by) == nil }
		if !slices.ContainsFunc(trusted, signed) {
			return nil, fmt.Errorf("%s is not signed by any certificate in %s", path, CAFile)
		}
		for _, e := range list.RevokedCertificateEntries {
			serials[e.SerialNumber.String()] = true
		}
	}
}

// readPrivate reads a file with a key. It returns an error if other users can access the file.
func readPrivate(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if accessibleToOthers(info) {
		return nil, fmt.Errorf("%s contains a private key but is accessible to other users (mode %04o); run chmod "+
			"600 %s",
			path, info.Mode().Perm(), path)
	}
	return readFile(path)
}

func readFile(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() || info.Size() > maxFile {
		return nil, fmt.Errorf("%s is not a key file", path)
	}
	return os.ReadFile(path)
}

// Serial formats a serial number for lists and command lines.
func Serial(n *big.Int) string { return n.Text(16) }
