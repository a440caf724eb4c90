package authority

import (
	"crypto/x509"
	"fmt"
	"math/big"
	"path/filepath"
	"slices"
	"strings"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/proc/keys"
)

// leastDigits is how many digits a serial number has at least. Names of folders never look like one: they begin with a
// role.
const leastDigits = 16

// Revocation is what Revoke has done.
type Revocation struct {
	File  string   // the new list of revoked serial numbers, which holders on other machines must get
	Ended []Holder // whose certificates and tokens it has, of those that were named
	Completeness
}

// Revoke revokes certificates and tokens. A name is that of a folder, and stands for every certificate and token of
// its holder that has not run out, also those that newer ones have replaced; a serial number stands for one. Holders on
// other machines learn it when they get the new list. If one name is unknown, nothing is revoked.
func (a *Authority) Revoke(names []string) (done Revocation, err error) {
	done.File = filepath.Join(a.dir, root, keys.RevokedFile)
	err = a.change(func(r *record) error {
		all, err := a.holders()
		if err != nil {
			return err
		}
		list, number, err := a.revoked()
		if err != nil {
			return err
		}
		for _, name := range names {
			ends, err := a.named(r, all, name)
			if err != nil {
				return err
			}
			done.Ended = append(done.Ended, ends...)
		}
		for i := range done.Ended {
			h := &done.Ended[i]
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
			if err := a.hand(keys.RevokedFile, h.Folder, 0o644); err != nil {
				return err
			}
		}
		return nil
	})
	return done, err
}

// named resolves a name or a serial number from the command line.
func (a *Authority) named(r *record, all []Holder, name string) (ends []Holder, err error) {
	n, ok := new(big.Int).SetString(strings.ToLower(name), 16)
	if ok && len(name) >= leastDigits {
		return a.numbered(r, all, n)
	}
	whose := map[string]bool{name: true} // a copy of a folder may have another name
	for _, h := range all {
		if filepath.Base(h.Folder) == name {
			ends, whose[folderName(h.Identity)] = append(ends, h), true
		}
	}
	for i := range r.Issued {
		h := a.holder(&r.Issued[i], nil)
		if whose[folderName(h.Identity)] && !holds(ends, h.Serial) {
			ends = append(ends, h)
		}
	}
	if len(ends) == 0 {
		return nil, noKeys(name)
	}
	return ends, nil
}

// numbered finds the certificate or token with a serial number. A number that the authority has not recorded is a
// mistake, unless the record is not complete.
func (a *Authority) numbered(r *record, all []Holder, n *big.Int) ([]Holder, error) {
	if at := slices.IndexFunc(all, func(h Holder) bool { return h.Serial.Cmp(n) == 0 }); at >= 0 {
		return all[at : at+1], nil
	}
	if at := r.find(n); at >= 0 {
		return []Holder{a.holder(&r.Issued[at], nil)}, nil
	}
	if r.Since.IsZero() {
		return nil, fmt.Errorf("%w: no certificate or token that has not run out has the serial number %s; perdure "+
			"keys ls shows those that there are", perdure.ErrUsage, keys.Serial(n))
	}
	return []Holder{{Serial: n}}, nil
}

func holds(list []Holder, serial *big.Int) bool {
	return slices.ContainsFunc(list, func(h Holder) bool { return h.Serial.Cmp(serial) == 0 })
}
