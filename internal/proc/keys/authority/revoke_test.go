package authority_test

import (
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/proc/keys"
	"github.com/perdure/perdure/internal/proc/keys/authority"
)

// newAuthority creates an authority whose clock shows *at.
func newAuthority(t *testing.T, at *time.Time) (a *authority.Authority, dir string) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "keys")
	now := func() time.Time { return *at }
	_, err := authority.New(dir, "job", 40*24*time.Hour, now)
	must(t, err)
	a, err = authority.Open(dir, now)
	must(t, err)
	return a, dir
}

// revokedBy returns the serial numbers in the revocation list in a directory.
func revokedBy(t *testing.T, dir string) (serials []string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, keys.RevokedFile))
	must(t, err)
	block, _ := pem.Decode(text)
	list, err := x509.ParseRevocationList(block.Bytes)
	must(t, err)
	for _, e := range list.RevokedCertificateEntries {
		serials = append(serials, keys.Serial(e.SerialNumber))
	}
	slices.Sort(serials)
	return serials
}

// TestRevokeName checks that revoking a name revokes all unexpired certificates and tokens of its holder, and no
// others.
func TestRevokeName(t *testing.T) {
	at := time.Now()
	a, dir := newAuthority(t, &at)
	old, err := a.Issue(keys.Operator, "alice", time.Hour)
	must(t, err)
	at = at.Add(48 * time.Hour) // old has expired
	var want []string
	for range 3 {
		h, err := a.Issue(keys.Operator, "alice", 40*24*time.Hour)
		must(t, err)
		want = append(want, keys.Serial(h.Serial))
	}
	renewed, err := a.Renew(nil, 40*24*time.Hour)
	must(t, err)
	for _, h := range renewed {
		if h.Name == "alice" {
			want = append(want, keys.Serial(h.Serial))
		}
	}
	token, _, err := a.Token(keys.Operator, "alice", 40*24*time.Hour)
	must(t, err)
	want = append(want, keys.Serial(token.Serial))
	_, err = a.Issue(keys.Worker, "alice", time.Hour) // the same name with another role
	must(t, err)
	_, _, err = a.Token(keys.Operator, "bob", time.Hour)
	must(t, err)
	must(t, os.RemoveAll(filepath.Join(dir, "operator-alice"))) // moved to her machine

	for range 2 { // the second time changes nothing
		done, err := a.Revoke([]string{"operator-alice"})
		must(t, err)
		if len(done.Revoked) != len(want) || !done.Since.IsZero() {
			t.Errorf("revoked %v; Since is %v", done.Revoked, done.Since)
		}
		slices.Sort(want)
		for _, role := range keys.Roles {
			if got := revokedBy(t, filepath.Join(dir, string(role))); !slices.Equal(got, want) {
				t.Errorf("the %s has the revocation list %v, want %v", role, got, want)
			}
		}
	}
	list, _, err := a.List()
	must(t, err)
	for _, h := range list {
		if is := slices.Contains(want, keys.Serial(h.Serial)); is != h.Revoked || h.Serial.Cmp(old.Serial) == 0 {
			t.Errorf("%s %s, valid until %v: listed as revoked %v", h, keys.Serial(h.Serial), h.Until, h.Revoked)
		}
	}
}

// TestRevokeNumber checks that an unknown serial number is an error, and that then no other named certificate is
// revoked.
func TestRevokeNumber(t *testing.T) {
	at := time.Now()
	a, dir := newAuthority(t, &at)
	first, err := a.Issue(keys.Worker, "alice", time.Hour)
	must(t, err)
	_, err = a.Renew([]string{"worker-alice"}, time.Hour)
	must(t, err)
	token, _, err := a.Token(keys.Viewer, "ci", time.Hour)
	must(t, err)
	_, err = a.Revoke([]string{"worker-alice", "4fffffffffffffffffffffffffffffff"})
	if !errors.Is(err, perdure.ErrUsage) || !strings.Contains(err.Error(), "4fffffffffffffffffffffffffffffff") {
		t.Errorf("unexpected error for an unknown serial number: %v", err)
	}
	if got := revokedBy(t, filepath.Join(dir, "worker")); len(got) != 0 {
		t.Errorf("the failed command revoked %v", got)
	}
	_, err = a.Revoke([]string{strings.ToUpper(keys.Serial(first.Serial)), keys.Serial(token.Serial)})
	must(t, err)
	if got := revokedBy(t, filepath.Join(dir, "worker")); len(got) != 2 {
		t.Errorf("with two serial numbers, %v are revoked", got)
	}
}

// TestLostRecord checks that a lost record is replaced by one with the certificates in the directories, and marked as
// incomplete. An unknown serial number may then be revoked.
func TestLostRecord(t *testing.T) {
	at := time.Now()
	a, dir := newAuthority(t, &at)
	stolen, err := a.Issue(keys.Worker, "alice", time.Hour)
	must(t, err)
	_, err = a.Renew([]string{"worker-alice"}, time.Hour)
	must(t, err)
	must(t, os.Remove(filepath.Join(dir, "ca", "issued.json")))
	list, record, err := a.List()
	must(t, err)
	if len(list) != len(keys.Roles)+1 || record.Since.IsZero() {
		t.Errorf("%d holders; Since is %v", len(list), record.Since)
	}
	at = at.Add(time.Minute)
	_, err = a.Renew([]string{"worker-alice"}, time.Hour)
	must(t, err)
	at = at.Add(time.Minute)
	done, err := a.Revoke([]string{"worker-alice"})
	must(t, err)
	if len(done.Revoked) != 2 || done.Since.After(at.Add(-time.Second)) || done.Since.IsZero() {
		t.Errorf("%v are revoked, want 2; Since is %v", done.Revoked, done.Since)
	}
	_, err = a.Revoke([]string{keys.Serial(stolen.Serial)})
	must(t, err)
	if got := revokedBy(t, filepath.Join(dir, "server")); len(got) != 3 {
		t.Errorf("%v are revoked, want 3", got)
	}
}

// TestConcurrentCommands checks that commands that change one directory wait for each other and lose nothing.
func TestConcurrentCommands(t *testing.T) {
	at := time.Now()
	a, dir := newAuthority(t, &at)
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			mine, err := authority.Open(dir, time.Now)
			if err == nil {
				_, err = mine.Issue(keys.Worker, fmt.Sprintf("w%d", i), time.Hour)
			}
			if err == nil {
				_, err = mine.Renew([]string{fmt.Sprintf("worker-w%d", i)}, time.Hour)
			}
			if err == nil {
				_, err = mine.Revoke([]string{fmt.Sprintf("worker-w%d", i)})
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if got := revokedBy(t, filepath.Join(dir, "server")); len(got) != 16 {
		t.Errorf("%d of 16 certificates are revoked", len(got))
	}
	list, record, err := a.List()
	must(t, err)
	if len(list) != len(keys.Roles)+16 || !record.Since.IsZero() {
		t.Errorf("%d certificates are listed; Since is %v", len(list), record.Since)
	}
}

// TestRecordDamaged checks the one-line error for an unreadable record, and that no keys are issued that cannot be
// recorded.
func TestRecordDamaged(t *testing.T) {
	at := time.Now()
	a, dir := newAuthority(t, &at)
	path := filepath.Join(dir, "ca", "issued.json")
	for _, text := range []string{"", "{", `{"version": 2}`, `{"version": 1, "issued": [{"serial": "x"}]}`} {
		must(t, os.WriteFile(path, []byte(text), 0o600))
		_, err := a.Issue(keys.Worker, "bob", time.Hour)
		if !errors.Is(err, perdure.ErrUsage) || strings.Contains(err.Error(), "\n") ||
			!strings.Contains(err.Error(), path) {
			t.Errorf("unexpected error for the record %q: %v", text, err)
		}
	}
	must(t, os.Remove(path))
	must(t, os.Mkdir(path, 0o700)) // the record cannot be written
	if _, err := a.Issue(keys.Worker, "bob", time.Hour); err == nil {
		t.Error("issued unrecorded keys")
	}
	if _, err := os.Stat(filepath.Join(dir, "worker-bob")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("unrecorded keys were written: %v", err)
	}
}

// TestNewRefused checks that a failed New writes nothing, so that a corrected call succeeds.
func TestNewRefused(t *testing.T) {
	parent := t.TempDir()
	dir := filepath.Join(parent, "keys")
	for _, days := range []int{0, -1, math.MinInt, 11 * 365, 213504, math.MaxInt} {
		good := authority.Days(days)
		if _, err := authority.New(dir, "job", good, time.Now); !errors.Is(err, perdure.ErrUsage) {
			t.Errorf("unexpected error for a lifetime of %v: %v", good, err)
		}
	}
	// Not representable in a certificate.
	late := func() time.Time { return time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC) }
	if _, err := authority.New(dir, "job", time.Hour, late); err == nil {
		t.Error("New succeeded in the year 10000")
	}
	if left, err := os.ReadDir(parent); err != nil || len(left) > 0 {
		t.Errorf("the failed command left %v (error %v)", left, err)
	}
	must(t, os.Mkdir(dir, 0o700))
	if _, err := authority.New(dir, "job", time.Hour, late); err == nil {
		t.Error("New succeeded in the year 10000")
	}
	_, err := authority.New(dir, "job", time.Hour, time.Now)
	must(t, err)
}
