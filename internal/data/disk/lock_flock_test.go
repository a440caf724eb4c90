//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package disk

import (
	"errors"
	"io/fs"
	"os"
	"path"
	"strings"
	"testing"
)

// TestLockFileOfADeadHolder: the line of a dead holder, whatever it is, does not block the next one.
func TestLockFileOfADeadHolder(t *testing.T) {
	name := path.Join(t.TempDir(), "lock")
	for _, left := range []string{"", "1234567890\n", "half a li", strings.Repeat("\x00\n", 4096)} {
		must(t, os.WriteFile(name, []byte(left), 0o666))
		held, err := OS().(Locker).Lock(name, "me")
		must(t, err)
		wantFile(t, OS(), name, "me\n")
		must(t, held.Close())
	}
}

// TestHolderOfALock: with an incomplete or missing line, no holder is named.
func TestHolderOfALock(t *testing.T) {
	name := path.Join(t.TempDir(), "lock")
	held, err := OS().(Locker).Lock(name, "me")
	must(t, err)
	for content, want := range map[string]string{
		"":           "",
		"me\n":       "me",
		"me":         "",
		"one\ntwo\n": "one",
		"\x00\x00":   "",
		strings.Repeat("x", maxHolderBytes) + "\n": "",
	} {
		must(t, os.WriteFile(name, []byte(content), 0o666))
		_, err := OS().(Locker).Lock(name, "you")
		var locked *LockedError
		if !errors.As(err, &locked) || *locked != (LockedError{name, want}) {
			t.Errorf("with %q in the file a second lock gives %v", content, err)
		}
	}
	must(t, held.Close())
}

// TestShare: shared and exclusive locks exclude each other. A shared lock writes nothing.
func TestShare(t *testing.T) {
	name := path.Join(t.TempDir(), "lock")
	if _, err := LockShared(name); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a lock that never existed was shared: %v", err)
	}
	held, err := OS().(Locker).Lock(name, "me")
	must(t, err)
	if _, err := LockShared(name); !errors.Is(err, ErrLocked) || !strings.Contains(err.Error(), `"me"`) {
		t.Errorf("a lock held exclusively was shared: %v", err)
	}
	must(t, held.Close())
	one, err := LockShared(name)
	must(t, err)
	two, err := LockShared(name)
	must(t, err)
	must(t, one.Close())
	if _, err := OS().(Locker).Lock(name, "you"); !errors.Is(err, ErrLocked) {
		t.Errorf("a shared lock was acquired exclusively: %v", err)
	}
	wantFile(t, OS(), name, "me\n")
	must(t, two.Close())
	held, err = OS().(Locker).Lock(name, "you")
	must(t, err)
	must(t, held.Close())
}

// TestLockFileReplaced: a lock whose file was removed or replaced reports that it is ineffective.
func TestLockFileReplaced(t *testing.T) {
	name := path.Join(t.TempDir(), "lock")
	held, err := OS().(Locker).Lock(name, "me")
	must(t, err)
	must(t, held.CheckHeld())
	must(t, os.Remove(name))
	gone := held.CheckHeld()
	second, err := OS().(Locker).Lock(name, "you")
	must(t, err)
	replaced := held.CheckHeld()
	if gone == nil || replaced == nil || strings.Contains(gone.Error()+replaced.Error(), "\n") {
		t.Errorf("the file was removed: %v; replaced: %v", gone, replaced)
	}
	must(t, held.Close())
	must(t, second.CheckHeld())
	must(t, second.Close())
}
