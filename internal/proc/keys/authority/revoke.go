package authority

import (
	"crypto/x509"
	"math/big"
	"path/filepath"
	"slices"
	"strings"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/proc/keys"
)

// minDigits is the minimum number of digits of a serial number. Names of directories start with a role, so they never
// look like one.
const minDigits = 16

// Revocation is the result of Revoke.
type Revocation struct {
	File    string   // the new revocation list, which must be copied to holders on other machines
	Revoked []Holder // the named certificates and tokens in the list
	Completeness
}

// Revoke revokes certificates and tokens. The name of a directory stands for all unexpired certificates and tokens of
// its holder, including replaced ones. A serial number stands for one. Holders on other machines apply the revocation
// when they get the new list. If a name is unknown, nothing is revoked.
func (a *Authority) Revoke(names []string) (done Revocation, err error) {
	done.File = filepath.Join(a.dir, caDir, keys.RevokedFile)
	err = a.update(func(r *record) error {
		all, err := a.holders()
		if err != nil {
			return err
		}
		list, number, err := a.revoked()
		if err != nil {
			return err
		}
		for _, name := range names {
			ends, err := a.resolve(r, all, name)
			if err != nil {
				return err
			}
			done.Revoked = append(done.Revoked, ends...)
		}
		for i := range done.Revoked {
			h := &done.Revoked[i]
			if !isRevoked(list, h.Serial) {
				list = append(list, x509.RevocationListEntry{SerialNumber: h.Serial, RevocationTime: a.now()})
			}
			h.Revoked = true
		}
		done.Completeness = r.Completeness
		if err := a.save(r); err != nil {
			return err
		}
		if err := a.publish(list, number+1); err != nil {
			return err
		}
		for _, h := range all {
			if err := a.copyTo(keys.RevokedFile, h.Dir, 0o644); err != nil {
				return err
			}
		}
		return nil
	})
	return done, err
}

// resolve resolves a name or a serial number from the command line.
func (a *Authority) resolve(r *record, all []Holder, name string) (ends []Holder, err error) {
	n, ok := new(big.Int).SetString(strings.ToLower(name), 16)
	if ok && len(name) >= minDigits {
		return a.resolveSerial(r, all, n)
	}
	owner := map[string]bool{name: true} // a copied directory may have another name
	for _, h := range all {
		if filepath.Base(h.Dir) == name {
			ends, owner[h.Identity.DirName()] = append(ends, h), true
		}
	}
	for i := range r.Issued {
		h := a.holder(&r.Issued[i], nil)
		if owner[h.Identity.DirName()] && !holds(ends, h.Serial) {
			ends = append(ends, h)
		}
	}
	if len(ends) == 0 {
		return nil, noKeys(name)
	}
	return ends, nil
}

// resolveSerial finds the certificate or token with a serial number. An unrecorded number is an error, unless the
// record is incomplete.
func (a *Authority) resolveSerial(r *record, all []Holder, n *big.Int) ([]Holder, error) {
	if at := slices.IndexFunc(all, func(h Holder) bool { return h.Serial.Cmp(n) == 0 }); at >= 0 {
		return all[at : at+1], nil
	}
	if at := r.find(n); at >= 0 {
		return []Holder{a.holder(&r.Issued[at], nil)}, nil
	}
	if r.Since.IsZero() {
		return nil, perdure.Usagef("no unexpired certificate or token has the serial number %s; list the existing "+
			"ones with perdure keys ls", keys.Serial(n))
	}
	return []Holder{{Serial: n}}, nil
}

func holds(list []Holder, serial *big.Int) bool {
	return slices.ContainsFunc(list, func(h Holder) bool { return h.Serial.Cmp(serial) == 0 })
}
