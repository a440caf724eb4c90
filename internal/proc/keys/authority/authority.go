// Package authority issues, renews and revokes the certificates and tokens of a job. It is for the command line of
// a person; processes of a job only use what it has made (package keys).
//
// One folder has it all: ca with the key that signs, which need not be on any machine of the job, and a folder for each
// who gets keys, to be copied to where that one runs. Their names are the roles', or ROLE-NAME for more of a role.
// Files are replaced as a whole, so a process that reads them while they are made anew finds the old or the new.
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

// How long certificates are good for unless somebody says otherwise, and how long before now they begin to be: clocks
// of machines differ.
const (
	DefaultGood = 365 * 24 * time.Hour
	rootGood    = 10 * DefaultGood
	early       = 5 * time.Minute
)

// Days is a number of days; the longest Duration where none is as long.
func Days(n int) time.Duration {
	const day = 24 * time.Hour
	if n > int(math.MaxInt64/day) {
		return math.MaxInt64
	}
	return time.Duration(max(n, -1)) * day
}

// root is the folder of what signs, and its files.
const (
	root    = "ca"
	keyFile = "key.pem"
)

// Authority is a folder of keys, opened to make more.
type Authority struct {
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	now  func() time.Time
}

// Holder is the holder of a certificate that the authority has signed, or of a token.
type Holder struct {
	keys.Identity
	Folder string // "": it is a token, or a certificate that a newer one has replaced
	Serial *big.Int
	From   time.Time
	Until  time.Time
	Token  bool
	// Revoked says that nobody takes the certificate any more.
	Revoked bool
}

// folderName names the folder of an identity's keys. Commands that renew and revoke take this name.
func folderName(who keys.Identity) string {
	if who.Name == string(who.Role) {
		return who.Name
	}
	return string(who.Role) + "-" + who.Name
}

// New makes an authority in a new folder, and the keys of one holder of each role. If it fails it leaves nothing
// behind.
func New(dir, job string, good time.Duration, now func() time.Time) (list []Holder, err error) {
	if err := (keys.Identity{Domain: job, Role: keys.Worker, Name: "worker"}).Validate(); err != nil {
		return nil, fmt.Errorf("%w: %w", perdure.ErrUsage, err)
	}
	if err := checkGood(good); err != nil {
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
	switch err := os.Mkdir(filepath.Join(dir, root), 0o700); {
	case errors.Is(err, fs.ErrExist): // another command has just made it
		return nil, notEmpty(dir)
	case err != nil:
		return nil, err
	}
	if list, err = (&Authority{dir: dir, now: now}).fill(job, good); err == nil {
		return list, nil
	}
	for _, name := range append([]string{root}, folders()...) {
		err = errors.Join(err, os.RemoveAll(filepath.Join(dir, name)))
	}
	if made {
		err = errors.Join(err, os.Remove(dir))
	}
	return nil, err
}

func notEmpty(dir string) error {
	return fmt.Errorf("%w: %s is not empty; name a new folder, or write perdure keys renew %s", perdure.ErrUsage, dir,
		dir)
}

// folders are the names of the folders that New makes for holders.
func folders() (names []string) {
	for _, role := range keys.Roles {
		names = append(names, string(role))
	}
	return names
}

// fill makes all that is in a new folder.
func (a *Authority) fill(job string, good time.Duration) (list []Holder, err error) {
	if err := a.begin(job); err != nil {
		return nil, err
	}
	path := filepath.Join(a.dir, root, keys.SecretFile)
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

// checkGood refuses keys that would be good for no time, or longer than the authority.
func checkGood(good time.Duration) error {
	if good <= 0 || good > rootGood {
		return fmt.Errorf("%w: keys that are good for %v; choose up to %v", perdure.ErrUsage, good, rootGood)
	}
	return nil
}

// begin draws the key that signs.
func (a *Authority) begin(job string) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	at := a.now()
	t := &x509.Certificate{
		SerialNumber: serial(), Subject: pkix.Name{CommonName: "perdure " + job},
		URIs:      []*url.URL{{Scheme: "spiffe", Host: job}},
		NotBefore: at.Add(-early), NotAfter: at.Add(rootGood),
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
	return errors.Join(write(filepath.Join(a.dir, root, keyFile), 0o600, block("PRIVATE KEY", private)),
		write(filepath.Join(a.dir, root, keys.CAFile), 0o644, block("CERTIFICATE", der)))
}

// Open opens a folder that New has made.
func Open(dir string, now func() time.Time) (*Authority, error) {
	a := &Authority{dir: dir, now: now}
	text, err := os.ReadFile(filepath.Join(dir, root, keys.CAFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: %s has no folder %s: it is not one that perdure keys new has made",
			perdure.ErrUsage, dir,
			root)
	}
	if err != nil {
		return nil, err
	}
	if a.cert, err = parsed(text, x509.ParseCertificate); err != nil {
		return nil, fmt.Errorf("%w: %s: %w", perdure.ErrUsage, filepath.Join(dir, root, keys.CAFile), err)
	}
	if text, err = os.ReadFile(filepath.Join(dir, root, keyFile)); err != nil {
		return nil, fmt.Errorf("%w: the key that signs: %w", perdure.ErrUsage, err)
	}
	key, err := parsed(text, x509.ParsePKCS8PrivateKey)
	if err != nil {
		return nil, fmt.Errorf("%w: %s: %w", perdure.ErrUsage, filepath.Join(dir, root, keyFile), err)
	}
	signer, ok := key.(*ecdsa.PrivateKey)
	if !ok || !signer.PublicKey.Equal(a.cert.PublicKey) {
		return nil, fmt.Errorf("%w: %s is not the key of %s", perdure.ErrUsage, filepath.Join(dir, root, keyFile),
			keys.CAFile)
	}
	a.key = signer
	return a, nil
}

// domain is whose keys they are.
func (a *Authority) domain() string {
	if len(a.cert.URIs) == 0 {
		return ""
	}
	return a.cert.URIs[0].Host
}

// Issue makes keys for somebody, or new ones in place of those that there are.
func (a *Authority) Issue(role keys.Role, name string, good time.Duration) (h Holder, err error) {
	who := keys.Identity{Domain: a.domain(), Role: role, Name: name}
	if err := who.Validate(); err != nil {
		return h, fmt.Errorf("%w: %w", perdure.ErrUsage, err)
	}
	if err := checkGood(good); err != nil {
		return h, err
	}
	err = a.change(func(r *record) error {
		h, err = a.issue(r, who, good)
		return err
	})
	return h, err
}

// issue makes keys. It records the certificate before it writes it: a certificate that exists can be revoked.
func (a *Authority) issue(r *record, who keys.Identity, good time.Duration) (h Holder, err error) {
	identity, cert, err := a.sign(who, good)
	if err != nil {
		return h, err
	}
	h = holderOf(who, cert)
	h.Folder = filepath.Join(a.dir, folderName(who))
	r.Issued = append(r.Issued, entryOf(h))
	if err := a.save(r); err != nil {
		return h, err
	}
	if err := os.MkdirAll(h.Folder, 0o700); err != nil {
		return h, err
	}
	role := who.Role
	for _, name := range []string{keys.CAFile, keys.RevokedFile} {
		if err := a.hand(name, h.Folder, 0o644); err != nil {
			return h, err
		}
	}
	if role != keys.Viewer {
		if err := a.hand(keys.SecretFile, h.Folder, 0o600); err != nil {
			return h, err
		}
	}
	if role == keys.Server || role == keys.Coordinator {
		if err := a.hand(keys.SecretFile+keys.ServersExt, h.Folder, 0o600); err != nil {
			return h, err
		}
	}
	return h, write(filepath.Join(h.Folder, keys.IdentityFile), 0o600, identity)
}

// sign makes a key, and the certificate of who has it.
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
		DNSNames:  []string{string(who.Role)}, // for tools that insist on a name: perdure itself asks for the role
		NotBefore: at.Add(-early), NotAfter: until, KeyUsage: x509.KeyUsageDigitalSignature,
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

// Token makes a token for a tool that cannot show a certificate. text is to be shown, and to be kept secret.
func (a *Authority) Token(role keys.Role, name string, good time.Duration) (t *Token, text string, err error) {
	at := a.now()
	t = &Token{
		Identity: keys.Identity{Domain: a.domain(), Role: role, Name: name}, Serial: serial(),
		From: at.Add(-early).UTC().Truncate(time.Second), Until: at.Add(good).UTC().Truncate(time.Second),
	}
	if err := t.Validate(); err != nil {
		return nil, "", fmt.Errorf("%w: %w", perdure.ErrUsage, err)
	}
	if good < time.Second || good > DefaultGood {
		return nil, "", fmt.Errorf("%w: a token that is good for %v; choose a second to %v", perdure.ErrUsage, good,
			DefaultGood)
	}
	if err := a.change(func(r *record) error {
		r.Issued = append(r.Issued, entryOf(Holder{
			Identity: t.Identity, Serial: t.Serial, From: t.From, Until: t.Until, Token: true,
		}))
		return a.save(r)
	}); err != nil {
		return nil, "", err
	}
	text, err = t.Sign(a.key)
	return t, text, err
}

// hand gives a holder a copy of a file.
func (a *Authority) hand(name, folder string, mode os.FileMode) error {
	text, err := os.ReadFile(filepath.Join(a.dir, root, name))
	if err != nil {
		return err
	}
	return write(filepath.Join(folder, name), mode, text)
}

// Renew makes new keys for all holders whose keys are not revoked, or for those that are named by their folders. What
// they had stays good until it runs out, so that nobody is cut off who has not the new ones yet.
func (a *Authority) Renew(names []string, good time.Duration) (list []Holder, err error) {
	if err := checkGood(good); err != nil {
		return nil, err
	}
	err = a.change(func(r *record) error {
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

// choose finds holders by the names of their folders; none: all.
func choose(all []Holder, names []string) (chosen []Holder, err error) {
	if len(names) == 0 {
		return all, nil
	}
	for _, name := range names {
		at := slices.IndexFunc(all, func(h Holder) bool { return filepath.Base(h.Folder) == name })
		if at < 0 {
			return nil, noKeys(name)
		}
		chosen = append(chosen, all[at])
	}
	return chosen, nil
}

func noKeys(name string) error {
	return fmt.Errorf("%w: there are no keys %s; perdure keys ls shows those that there are", perdure.ErrUsage, name)
}

// List returns the holders of keys, in the order of their folders, then everything else that the authority has signed
// and that has not run out: certificates that newer ones have replaced, and tokens.
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

// holders returns the holders of the keys in folders.
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
			continue // it is no holder's
		}
		cert, err := parsed(text, x509.ParseCertificate)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", folder, err)
		}
		who, err := keys.Of(cert)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", folder, err)
		}
		h := holderOf(who, cert)
		h.Folder, h.Revoked = folder, isRevoked(revoked, h.Serial)
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

// revoked reads the list of what is revoked, and its number.
func (a *Authority) revoked() (list []x509.RevocationListEntry, number int64, err error) {
	path := filepath.Join(a.dir, root, keys.RevokedFile)
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, 0, err
	}
	l, err := parsed(text, x509.ParseRevocationList)
	if err != nil {
		return nil, 0, fmt.Errorf("%s: %w", path, err)
	}
	return l.RevokedCertificateEntries, l.Number.Int64(), nil
}

// publish signs a list of what is revoked. It does not run out before the authority does: who has no newer one goes
// by it.
func (a *Authority) publish(list []x509.RevocationListEntry, number int64) error {
	der, err := x509.CreateRevocationList(rand.Reader, &x509.RevocationList{
		Number: big.NewInt(number), ThisUpdate: a.now(), NextUpdate: a.cert.NotAfter, RevokedCertificateEntries: list,
	}, a.cert, a.key)
	if err != nil {
		return err
	}
	return write(filepath.Join(a.dir, root, keys.RevokedFile), 0o644, block("X509 CRL", der))
}

// parsed reads the first part of a PEM file.
func parsed[T any](text []byte, parse func([]byte) (T, error)) (T, error) {
	b, _ := pem.Decode(text)
	if b == nil {
		var none T
		return none, errors.New("it has nothing in the form PEM")
	}
	return parse(b.Bytes)
}

func block(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}

// serial draws a serial number.
func serial() *big.Int {
	n, _ := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127)) // it never fails
	return n.SetBit(n, 126, 1)                                          // so that all are written with as many digits
}

// write replaces a file as a whole. At no moment can others read it who may not.
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
