// Package authority issues, renews and revokes the certificates and tokens of a job. It is used by people on the
// command line. Processes of a job only use the resulting files (package keys).
//
// An authority is a directory. Its subdirectory ca has the signing key, which does not need to be on any machine of the
// job. Each holder of keys has another subdirectory, to be copied to the holder's machine. Subdirectories are named
// ROLE, or ROLE-NAME for further holders of a role. Files are replaced atomically, so a concurrent reader finds the old
// or the new version.
package authority

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"math/big"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/disk"
	"github.com/perdure/perdure/internal/proc/keys"
)

// The default lifetimes of certificates, and how far their start is backdated, because the clocks of machines differ.
const (
	DefaultLifetime = 365 * 24 * time.Hour
	rootLifetime    = 10 * DefaultLifetime
	backdate        = 5 * time.Minute
)

// Days returns n days, or the longest Duration if n days would overflow.
func Days(n int) time.Duration {
	const day = 24 * time.Hour
	if n > int(math.MaxInt64/day) {
		return math.MaxInt64
	}
	return time.Duration(max(n, -1)) * day
}

// caDir is the subdirectory of the signing key, and keyFile the key's file.
const (
	caDir   = "ca"
	keyFile = "key.pem"
)

// Authority is a directory of keys, opened to issue more.
type Authority struct {
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	now  func() time.Time
}

// Holder describes a certificate that the authority has signed, or a token, and its holder.
type Holder struct {
	keys.Identity
	Dir    string // "" for a token, and for a certificate that was replaced by a newer one
	Serial *big.Int
	From   time.Time
	Until  time.Time
	Token  bool
	// Revoked reports whether the certificate or token is revoked.
	Revoked bool
}

// New creates an authority in a new directory, and the keys of one holder of each role. On failure it removes
// everything that it created.
func New(dir, job string, good time.Duration, now func() time.Time) (list []Holder, err error) {
	if err := (keys.Identity{Domain: job, Role: keys.Worker, Name: "worker"}).Validate(); err != nil {
		return nil, perdure.Usagef("%w", err)
	}
	if err := checkLifetime(good); err != nil {
		return nil, err
	}
	names, err := os.ReadDir(dir)
	made := errors.Is(err, fs.ErrNotExist)
	if len(names) > 0 {
		return nil, notEmpty(dir)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	switch err := os.Mkdir(filepath.Join(dir, caDir), 0o700); {
	case errors.Is(err, fs.ErrExist): // another command has just created it
		return nil, notEmpty(dir)
	case err != nil:
		return nil, err
	}
	if list, err = (&Authority{dir: dir, now: now}).fill(job, good); err == nil {
		return list, nil
	}
	for _, name := range append([]string{caDir}, roleDirs()...) {
		err = errors.Join(err, os.RemoveAll(filepath.Join(dir, name)))
	}
	if made {
		err = errors.Join(err, os.Remove(dir))
	}
	return nil, err
}

func notEmpty(dir string) error {
	return perdure.Usagef("%s is not empty; choose a new directory, or run perdure keys renew %s", dir, dir)
}

// roleDirs returns the names of the directories that New creates for holders.
func roleDirs() (names []string) {
	for _, role := range keys.Roles {
		names = append(names, string(role))
	}
	return names
}

// fill creates the contents of a new directory.
func (a *Authority) fill(job string, good time.Duration) (list []Holder, err error) {
	if err := a.createRoot(job); err != nil {
		return nil, err
	}
	path := filepath.Join(a.dir, caDir, keys.SecretFile)
	if err := errors.Join(keys.WriteSecret(path, keys.NewSecret()),
		keys.WriteSecret(path+keys.ServersExt, keys.NewSecret())); err != nil {
		return nil, err
	}
	if err := errors.Join(a.publish(nil, 1), a.save(&record{})); err != nil {
		return nil, err
	}
	for _, role := range keys.Roles {
		h, err := a.Issue(role, string(role), good)
		if err != nil {
			return nil, err
		}
		list = append(list, h)
	}
	return list, nil
}

// checkLifetime checks that a lifetime is positive and not longer than the authority's.
func checkLifetime(good time.Duration) error {
	if good <= 0 || good > rootLifetime {
		return perdure.Usagef("invalid lifetime %v; choose at most %v", good, rootLifetime)
	}
	return nil
}

// createRoot generates the signing key and its certificate.
func (a *Authority) createRoot(job string) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	at := a.now()
	t := &x509.Certificate{
		SerialNumber: serial(), Subject: pkix.Name{CommonName: "perdure " + job},
		URIs:      []*url.URL{{Scheme: "spiffe", Host: job}},
		NotBefore: at.Add(-backdate), NotAfter: at.Add(rootLifetime),
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign, BasicConstraintsValid: true, IsCA: true,
		MaxPathLenZero: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, t, t, key.Public(), key)
	if err != nil {
		return err
	}
	if a.cert, err = x509.ParseCertificate(der); err != nil {
		return err
	}
	a.key = key
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	return errors.Join(write(filepath.Join(a.dir, caDir, keyFile), 0o600, block("PRIVATE KEY", private)),
		write(filepath.Join(a.dir, caDir, keys.CAFile), 0o644, block("CERTIFICATE", der)))
}

// Open opens a directory that New has created.
func Open(dir string, now func() time.Time) (*Authority, error) {
	a := &Authority{dir: dir, now: now}
	text, err := os.ReadFile(filepath.Join(dir, caDir, keys.CAFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, perdure.Usagef("%s has no directory %s; create the keys with perdure keys new", dir, caDir)
	}
	if err != nil {
		return nil, err
	}
	if a.cert, err = parsePEM(text, x509.ParseCertificate); err != nil {
		return nil, perdure.Usagef("%s: %w", filepath.Join(dir, caDir, keys.CAFile), err)
	}
	if text, err = os.ReadFile(filepath.Join(dir, caDir, keyFile)); err != nil {
		return nil, perdure.Usagef("the signing key: %w", err)
	}
	key, err := parsePEM(text, x509.ParsePKCS8PrivateKey)
	if err != nil {
		return nil, perdure.Usagef("%s: %w", filepath.Join(dir, caDir, keyFile), err)
	}
	signer, ok := key.(*ecdsa.PrivateKey)
	if !ok || !signer.PublicKey.Equal(a.cert.PublicKey) {
		return nil, perdure.Usagef("%s is not the key of %s", filepath.Join(dir, caDir, keyFile), keys.CAFile)
	}
	a.key = signer
	return a, nil
}

// domain returns the trust domain of the keys.
func (a *Authority) domain() string {
	if len(a.cert.URIs) == 0 {
		return ""
	}
	return a.cert.URIs[0].Host
}

// Issue creates keys for a holder, replacing existing ones.
func (a *Authority) Issue(role keys.Role, name string, good time.Duration) (h Holder, err error) {
	who := keys.Identity{Domain: a.domain(), Role: role, Name: name}
	if err := who.Validate(); err != nil {
		return h, perdure.Usagef("%w", err)
	}
	if err := checkLifetime(good); err != nil {
		return h, err
	}
	err = a.update(func(r *record) error {
		h, err = a.issue(r, who, good)
		return err
	})
	return h, err
}

// issue creates keys. It records the certificate before writing it, so that every existing certificate can be revoked.
func (a *Authority) issue(r *record, who keys.Identity, good time.Duration) (h Holder, err error) {
	identity, cert, err := a.sign(who, good)
	if err != nil {
		return h, err
	}
	h = holderOf(who, cert)
	h.Dir = filepath.Join(a.dir, who.DirName())
	r.Issued = append(r.Issued, issuedEntryOf(h))
	if err := a.save(r); err != nil {
		return h, err
	}
	if err := os.MkdirAll(h.Dir, 0o700); err != nil {
		return h, err
	}
	role := who.Role
	for _, name := range []string{keys.CAFile, keys.RevokedFile} {
		if err := a.copyTo(name, h.Dir, 0o644); err != nil {
			return h, err
		}
	}
	if role != keys.Viewer {
		if err := a.copyTo(keys.SecretFile, h.Dir, 0o600); err != nil {
			return h, err
		}
	}
	if role == keys.Server || role == keys.Coordinator {
		if err := a.copyTo(keys.SecretFile+keys.ServersExt, h.Dir, 0o600); err != nil {
			return h, err
		}
	}
	return h, write(filepath.Join(h.Dir, keys.IdentityFile), 0o600, identity)
}

// sign creates a key and its certificate.
func (a *Authority) sign(who keys.Identity, good time.Duration) (identity []byte, cert *x509.Certificate, err error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	at := a.now()
	until := at.Add(good)
	if until.After(a.cert.NotAfter) {
		until = a.cert.NotAfter
	}
	t := &x509.Certificate{
		SerialNumber: serial(), Subject: pkix.Name{CommonName: who.String()}, URIs: []*url.URL{who.URL()},
		DNSNames:  []string{string(who.Role)}, // for tools that require a name; Perdure itself checks the role
		NotBefore: at.Add(-backdate), NotAfter: until, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
		BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, t, a.cert, key.Public(), a.key)
	if err != nil {
		return nil, nil, err
	}
	if cert, err = x509.ParseCertificate(der); err != nil {
		return nil, nil, err
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	return append(block("CERTIFICATE", der), block("PRIVATE KEY", private)...), cert, err
}

// Token creates a token for a tool that cannot present a certificate. The text is what the tool presents; it must be
// kept secret.
func (a *Authority) Token(role keys.Role, name string, good time.Duration) (t *Token, text string, err error) {
	at := a.now()
	t = &Token{
		Identity: keys.Identity{Domain: a.domain(), Role: role, Name: name}, Serial: serial(),
		From: at.Add(-backdate).UTC().Truncate(time.Second), Until: at.Add(good).UTC().Truncate(time.Second),
	}
	if err := t.Validate(); err != nil {
		return nil, "", perdure.Usagef("%w", err)
	}
	if good < time.Second || good > DefaultLifetime {
		return nil, "", perdure.Usagef("invalid token lifetime %v; choose 1s to %v", good, DefaultLifetime)
	}
	if err := a.update(func(r *record) error {
		r.Issued = append(r.Issued, issuedEntryOf(Holder{
			Identity: t.Identity, Serial: t.Serial, From: t.From, Until: t.Until, Token: true,
		}))
		return a.save(r)
	}); err != nil {
		return nil, "", err
	}
	text, err = t.Sign(a.key)
	return t, text, err
}

// copyTo copies a file to a holder's directory.
func (a *Authority) copyTo(name, folder string, mode os.FileMode) error {
	text, err := os.ReadFile(filepath.Join(a.dir, caDir, name))
	if err != nil {
		return err
	}
	return write(filepath.Join(folder, name), mode, text)
}

// Renew issues new keys for the named holders, or for all whose keys are not revoked. The old keys stay valid until
// they expire, so that holders without the new ones are not cut off.
func (a *Authority) Renew(names []string, good time.Duration) (list []Holder, err error) {
	if err := checkLifetime(good); err != nil {
		return nil, err
	}
	err = a.update(func(r *record) error {
		all, err := a.holders()
		if err != nil {
			return err
		}
		chosen, err := choose(all, names)
		if err != nil {
			return err
		}
		if len(names) == 0 {
			chosen = slices.DeleteFunc(chosen, func(h Holder) bool { return h.Revoked })
		}
		for _, h := range chosen {
			if h, err = a.issue(r, h.Identity, good); err != nil {
				return err
			}
			list = append(list, h)
		}
		return nil
	})
	return list, err
}

// choose finds holders by the names of their directories. Without names, it returns all.
func choose(all []Holder, names []string) (chosen []Holder, err error) {
	if len(names) == 0 {
		return all, nil
	}
	for _, name := range names {
		at := slices.IndexFunc(all, func(h Holder) bool { return filepath.Base(h.Dir) == name })
		if at < 0 {
			return nil, noKeys(name)
		}
		chosen = append(chosen, all[at])
	}
	return chosen, nil
}

func noKeys(name string) error {
	return perdure.Usagef("there are no keys named %s; list the existing ones with perdure keys ls", name)
}

// List returns the holders of keys in the order of their directories. Then follow all other certificates and tokens
// that have not expired: replaced certificates, and tokens.
func (a *Authority) List() (list []Holder, record Completeness, err error) {
	r, err := a.load()
	if err != nil {
		return nil, record, err
	}
	if list, err = a.holders(); err != nil {
		return nil, record, err
	}
	revoked, _, err := a.revoked()
	if err != nil {
		return nil, record, err
	}
	for _, e := range r.Issued {
		current := slices.ContainsFunc(list, func(h Holder) bool { return h.Serial.Cmp(e.serial) == 0 })
		if !current && a.now().Before(e.Until) {
			list = append(list, a.holder(&e, revoked))
		}
	}
	return list, r.Completeness, nil
}

// holders returns the holders that have directories.
func (a *Authority) holders() (list []Holder, err error) {
	entries, err := os.ReadDir(a.dir)
	if err != nil {
		return nil, err
	}
	revoked, _, err := a.revoked()
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		folder := filepath.Join(a.dir, e.Name())
		text, err := os.ReadFile(filepath.Join(folder, keys.IdentityFile))
		if err != nil {
			continue // not a holder's directory
		}
		cert, err := parsePEM(text, x509.ParseCertificate)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", folder, err)
		}
		who, err := keys.IdentityOf(cert)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", folder, err)
		}
		h := holderOf(who, cert)
		h.Dir, h.Revoked = folder, isRevoked(revoked, h.Serial)
		list = append(list, h)
	}
	return list, nil
}

func holderOf(who keys.Identity, c *x509.Certificate) Holder {
	return Holder{Identity: who, Serial: c.SerialNumber, From: c.NotBefore, Until: c.NotAfter}
}

func isRevoked(list []x509.RevocationListEntry, serial *big.Int) bool {
	return slices.ContainsFunc(list, func(r x509.RevocationListEntry) bool { return r.SerialNumber.Cmp(serial) == 0 })
}

// revoked reads the revocation list and its number.
func (a *Authority) revoked() (list []x509.RevocationListEntry, number int64, err error) {
	path := filepath.Join(a.dir, caDir, keys.RevokedFile)
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, 0, err
	}
	l, err := parsePEM(text, x509.ParseRevocationList)
	if err != nil {
		return nil, 0, fmt.Errorf("%s: %w", path, err)
	}
	return l.RevokedCertificateEntries, l.Number.Int64(), nil
}

// publish signs a revocation list. It expires together with the authority, so a process without a newer list continues
// to use it.
func (a *Authority) publish(list []x509.RevocationListEntry, number int64) error {
	der, err := x509.CreateRevocationList(rand.Reader, &x509.RevocationList{
		Number: big.NewInt(number), ThisUpdate: a.now(), NextUpdate: a.cert.NotAfter, RevokedCertificateEntries: list,
	}, a.cert, a.key)
	if err != nil {
		return err
	}
	return write(filepath.Join(a.dir, caDir, keys.RevokedFile), 0o644, block("X509 CRL", der))
}

// parsePEM parses the first block of a PEM file.
func parsePEM[T any](text []byte, parse func([]byte) (T, error)) (T, error) {
	b, _ := pem.Decode(text)
	if b == nil {
		var none T
		return none, errors.New("no PEM block found")
	}
	return parse(b.Bytes)
}

func block(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}

// serial returns a random serial number.
func serial() *big.Int {
	n, _ := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127)) // never fails
	return n.SetBit(n, 126, 1)                                          // all have the same number of digits
}

// write replaces a file atomically. Unauthorized users cannot read it at any moment.
func write(path string, mode os.FileMode, text []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-")
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	err = errors.Join(err, f.Sync(), f.Chmod(mode), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return disk.OS().SyncDir(filepath.ToSlash(filepath.Dir(path)))
}
