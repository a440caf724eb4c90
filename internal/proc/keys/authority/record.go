package authority

import (
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/disk"
	"github.com/perdure/perdure/internal/proc/keys"
)

// The record is stored with the signing key. The lock prevents two commands from changing the record, or the revocation
// list, at the same time.
const (
	recordFile = "issued.json"
	lockFile   = "lock"
)

// recordVersion is the format of the record.
const recordVersion = 1

// lockTimeout is how long a command waits for another one that changes the same keys, and lockInterval how often it
// retries.
const (
	lockTimeout  = 10 * time.Second
	lockInterval = 10 * time.Millisecond
)

// retention is how long an entry stays in the record, and revoked, after it expired, because the clocks of machines
// differ.
const retention = 24 * time.Hour

// record lists each certificate and token that the authority has signed and that may still be accepted. Revoking a name
// must cover all of them, but a directory has only the newest certificate of its holder.
type record struct {
	Version int `json:"version"`
	Completeness
	Issued []issuedEntry `json:"issued"`
}

// Completeness reports from when on certificates and tokens may be missing from the record.
type Completeness struct {
	// Since is when a lost record was replaced by a new one, or when a recorded certificate was found missing, as
	// happens with an older copy. The zero time means that the record is complete.
	Since time.Time `json:"since,omitzero"`
}

// issuedEntry is one certificate or token.
type issuedEntry struct {
	Serial string    `json:"serial"`
	Role   keys.Role `json:"role"`
	Name   string    `json:"name"`
	Token  bool      `json:"token,omitempty"`
	From   time.Time `json:"from"`
	Until  time.Time `json:"until"`

	serial *big.Int
}

func issuedEntryOf(h Holder) issuedEntry {
	return issuedEntry{
		Serial: keys.Serial(h.Serial), Role: h.Role, Name: h.Name, Token: h.Token, From: h.From.UTC(),
		Until: h.Until.UTC(), serial: h.Serial,
	}
}

// holder returns the holder of a recorded certificate or token.
func (a *Authority) holder(e *issuedEntry, revoked []x509.RevocationListEntry) Holder {
	return Holder{
		Identity: keys.Identity{Domain: a.domain(), Role: e.Role, Name: e.Name}, Serial: e.serial, From: e.From,
		Until: e.Until, Token: e.Token, Revoked: isRevoked(revoked, e.serial),
	}
}

// update runs do while no other command changes the directory. do receives the record and must save its changes.
func (a *Authority) update(do func(*record) error) error {
	lock, err := a.lock()
	if err != nil {
		return err
	}
	r, err := a.load()
	if err == nil {
		err = do(r)
	}
	return errors.Join(err, lock.Close())
}

// lock acquires the directory's lock, waiting at most lockTimeout.
func (a *Authority) lock() (disk.Lock, error) {
	locker := disk.OS().(disk.Locker) // always a Locker; without system support it locks nothing
	path := filepath.ToSlash(filepath.Join(a.dir, caDir, lockFile))
	for end := time.Now().Add(lockTimeout); ; time.Sleep(lockInterval) {
		lock, err := locker.Lock(path, fmt.Sprintf("process %d", os.Getpid()))
		var locked *disk.LockedError
		if !errors.As(err, &locked) {
			return lock, err
		}
		if time.Now().After(end) {
			return nil, perdure.Usagef("another command is changing the keys in %s (%s); try again when it has "+
				"finished", a.dir, locked.Holder)
		}
	}
}

// load reads the record, without long-expired entries. It adds certificates that exist in directories but are not
// recorded: then the record is an older copy or was lost, so more entries may be missing.
func (a *Authority) load() (*record, error) {
	r, err := a.read()
	if err != nil {
		return nil, err
	}
	r.Issued = slices.DeleteFunc(r.Issued, func(e issuedEntry) bool { return a.now().After(e.Until.Add(retention)) })
	all, err := a.holders()
	if err != nil {
		return nil, err
	}
	for _, h := range all {
		if a.now().After(h.Until) || r.find(h.Serial) >= 0 || !a.signed(&h) {
			continue
		}
		r.Issued = append(r.Issued, issuedEntryOf(h))
		r.Since = a.now().UTC()
	}
	return r, nil
}

// read reads the record's file. If the file was lost, it returns a new record.
func (a *Authority) read() (*record, error) {
	path := filepath.Join(a.dir, caDir, recordFile)
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return &record{Completeness: Completeness{Since: a.now().UTC()}}, nil
	}
	if err != nil {
		return nil, err
	}
	r := &record{}
	if err := json.Unmarshal(text, r); err != nil {
		return nil, perdure.Usagef("%s, the record of all issued keys, is damaged: %w; restore it from a backup", path,
			err)
	}
	if r.Version != recordVersion {
		return nil, perdure.Usagef("%s has version %d, but this program reads version %d; use the version that wrote "+
			"it", path, r.Version, recordVersion)
	}
	for i := range r.Issued {
		e := &r.Issued[i]
		n, ok := new(big.Int).SetString(e.Serial, 16)
		if !ok {
			return nil, perdure.Usagef("%s, the record of all issued keys, is damaged: invalid serial number %q; "+
				"restore it from a backup", path, e.Serial)
		}
		e.serial = n
	}
	return r, nil
}

func (a *Authority) save(r *record) error {
	r.Version = recordVersion
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	return write(filepath.Join(a.dir, caDir, recordFile), 0o600, append(text, '\n'))
}

// find returns the index of the entry with a serial number, or -1.
func (r *record) find(serial *big.Int) int {
	return slices.IndexFunc(r.Issued, func(e issuedEntry) bool { return e.serial.Cmp(serial) == 0 })
}

// signed reports whether this authority signed the certificate in a holder's directory.
func (a *Authority) signed(h *Holder) bool {
	text, err := os.ReadFile(filepath.Join(h.Dir, keys.IdentityFile))
	if err != nil {
		return false
	}
	c, err := parsePEM(text, x509.ParseCertificate)
	return err == nil && c.CheckSignatureFrom(a.cert) == nil
}
