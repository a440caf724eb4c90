// Package keys implements mutual TLS between the processes of a job: how a process proves who it is, and checks
// its peers.
//
// A Ring is what one process has: its certificate and key, the certificates that it trusts, and the list of those that
// are revoked. It makes the configurations of TLS 1.3 for both sides of a connection. Each side shows a certificate;
// what counts is the role that it names, and not the address of its host: machines come and go.
//
// Files are read again when they have changed, so that keys are renewed and revoked while a job runs. A connection
// ends when the certificate at its other end is revoked; a certificate that has run out admits nobody anew, and ends
// nothing that is there.
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

// The files of a folder of keys.
const (
	CAFile       = "ca.pem"       // the certificates that are trusted, one or more
	IdentityFile = "identity.pem" // the process's own certificate, those between it and a trusted one, and its key
	RevokedFile  = "revoked.pem"  // the list of what is revoked (X.509 CRL); there need not be one
)

// mostFile bounds what is read of a file, in bytes.
const mostFile = 1 << 20

// lookEvery is how often Watch looks whether files have changed.
const lookEvery = time.Second

// Ring is the keys of one process. It is safe for concurrent use.
type Ring struct {
	dir   string
	clock func() time.Time // the wall clock: certificates run out by it

	mu     sync.Mutex // guards what follows
	now    held
	stamps [3]stamp
	failed string           // why the files that are there now cannot be used; "": they are
	live   map[*Hold]string // connections by the serial number of the peer's certificate
}

// held is what the files said when they were read last and were right.
type held struct {
	own      tls.Certificate
	identity Identity
	trusted  []*x509.Certificate
	roots    *x509.CertPool  // of trusted
	revoked  map[string]bool // serial numbers
}

// stamp tells whether a file has changed. Files are replaced as a whole, so that each is another one: that tells it,
// too, where the wall clock stands, or was set to what it was.
type stamp struct {
	info fs.FileInfo // nil: it is not there
}

func (s stamp) same(as stamp) bool {
	if s.info == nil || as.info == nil {
		return s.info == as.info
	}
	return os.SameFile(s.info, as.info) && s.info.Size() == as.info.Size() &&
		s.info.ModTime().Equal(as.info.ModTime())
}

// Folder is where a process of a role finds its keys: dir itself, or the folder of the role in it, as
// perdure keys new makes them.
func Folder(dir string, role Role) string {
	if _, err := os.Stat(filepath.Join(dir, IdentityFile)); err == nil {
		return dir
	}
	return filepath.Join(dir, string(role))
}

// Open reads a folder of keys.
func Open(dir string) (*Ring, error) {
	r := &Ring{dir: dir, clock: time.Now, live: map[*Hold]string{}}
	r.stamps = r.look() // before they are read: what changes meanwhile is read again
	now, err := read(dir)
	if err != nil {
		return nil, fmt.Errorf("%w: keys: %w", perdure.ErrUsage, err)
	}
	r.now = now
	return r, nil
}

// Trusting is the ring of somebody who has no certificate: whom a folder's certificates say to trust, of one job.
func Trusting(dir, domain string) (*Ring, error) {
	r := &Ring{dir: dir, clock: time.Now, live: map[*Hold]string{}}
	if err := r.now.trust(dir); err != nil {
		return nil, fmt.Errorf("%w: keys: %w", perdure.ErrUsage, err)
	}
	r.now.identity.Domain = domain
	return r, nil
}

// Identity is who this process is.
func (r *Ring) Identity() Identity { return r.current().identity }

// Until is when its certificate runs out.
func (r *Ring) Until() time.Time { return r.current().own.Leaf.NotAfter }

// Dir is the folder that the keys are in.
func (r *Ring) Dir() string { return r.dir }

// SecretFile is the file with the run's secret that lies beside the keys; "": there is none.
func (r *Ring) SecretFile() string {
	path := filepath.Join(r.dir, SecretFile)
	if _, err := os.Stat(path); err != nil {
		return ""
	}
	return path
}

// Watch looks, until ctx ends, whether files have changed, and tells warn once of each change that cannot be used: what
// was there before is used on.
func (r *Ring) Watch(ctx context.Context, warn func(error)) {
	tick := time.NewTicker(lookEvery)
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

// Refresh reads the files again if they have changed, and ends connections to those that are revoked now. An error says
// why what is there now cannot be used, once.
func (r *Ring) Refresh() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	stamps := r.look()
	if slices.EqualFunc(stamps[:], r.stamps[:], stamp.same) {
		return nil
	}
	now, err := read(r.dir)
	if err != nil {
		if r.failed == err.Error() { // two files are replaced one after the other: it is tried again
			return nil
		}
		r.failed = err.Error()
		return fmt.Errorf("keys: %w; those from before are used on", err)
	}
	r.now, r.stamps, r.failed = now, stamps, ""
	for hold, serial := range r.live {
		if now.revoked[serial] {
			delete(r.live, hold)
			hold.end()
		}
	}
	return nil
}

func (r *Ring) current() held {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.now
}

func (r *Ring) look() (s [3]stamp) {
	for i, name := range []string{CAFile, IdentityFile, RevokedFile} {
		if info, err := os.Stat(filepath.Join(r.dir, name)); err == nil {
			s[i] = stamp{info}
		}
	}
	return s
}

// Hold is a connection that ends when its peer's certificate is revoked.
type Hold struct {
	ring *Ring
	end  func()
}

// Hold remembers a connection; end ends it, and does not wait. False: its peer's certificate is revoked already.
func (r *Ring) Hold(peer *x509.Certificate, end func()) (*Hold, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	serial := peer.SerialNumber.String()
	if r.now.revoked[serial] {
		return nil, false
	}
	h := &Hold{r, end}
	r.live[h] = serial
	return h, true
}

// IsRevoked reports whether nobody takes what has a serial number any more.
func (r *Ring) IsRevoked(serial *big.Int) bool { return r.current().revoked[serial.String()] }

// Trusted are the certificates that are trusted.
func (r *Ring) Trusted() []*x509.Certificate { return r.current().trusted }

// Now is what the wall clock shows, by which what is signed runs out.
func (r *Ring) Now() time.Time { return r.clock() }

// Revoked reports whether nobody takes a certificate any more.
func (r *Ring) Revoked(c *x509.Certificate) bool { return r.current().revoked[c.SerialNumber.String()] }

// Release forgets the connection, which has ended.
func (h *Hold) Release() {
	h.ring.mu.Lock()
	defer h.ring.mu.Unlock()
	delete(h.ring.live, h)
}

// read reads a folder, and checks that what is in it fits together.
func read(dir string) (h held, err error) {
	if err := h.trust(dir); err != nil {
		return h, err
	}
	path := filepath.Join(dir, IdentityFile)
	text, err := readPrivate(path)
	if err != nil {
		return h, err
	}
	if h.own, err = tls.X509KeyPair(text, text); err != nil {
		return h, fmt.Errorf("%s has no certificate with its key: %w", path, err)
	}
	if h.identity, err = Of(h.own.Leaf); err != nil {
		return h, fmt.Errorf("%s: %w", path, err)
	}
	return h, nil
}

// trust reads whom to trust.
func (h *held) trust(dir string) (err error) {
	if h.trusted, err = certificates(filepath.Join(dir, CAFile)); err != nil {
		return err
	}
	h.roots = x509.NewCertPool()
	for _, c := range h.trusted {
		h.roots.AddCert(c)
	}
	h.revoked, err = revoked(filepath.Join(dir, RevokedFile), h.trusted)
	return err
}

// certificates reads a file of certificates.
func certificates(path string) (list []*x509.Certificate, err error) {
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

// revoked reads the serial numbers of a list of what is revoked, that somebody who is trusted has signed.
func revoked(path string, trusted []*x509.Certificate) (map[string]bool, error) {
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
		if !signed(list, trusted) {
			return nil, fmt.Errorf("%s is signed by nobody whom %s names", path, CAFile)
		}
		for _, e := range list.RevokedCertificateEntries {
			serials[e.SerialNumber.String()] = true
		}
	}
}

func signed(list *x509.RevocationList, trusted []*x509.Certificate) bool {
	for _, c := range trusted {
		if list.CheckSignatureFrom(c) == nil {
			return true
		}
	}
	return false
}

// readPrivate reads a file with a key. One that others can read, too, is none any more.
func readPrivate(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if open(info) {
		return nil, fmt.Errorf("others than its owner can use %s, which has a key (mode %04o); write chmod 600 %s",
			path, info.Mode().Perm(), path)
	}
	return readFile(path)
}

func readFile(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() || info.Size() > mostFile {
		return nil, fmt.Errorf("%s is not a file of keys", path)
	}
	return os.ReadFile(path)
}

// Serial is a serial number as it is written in lists and on command lines.
func Serial(n *big.Int) string { return n.Text(16) }
