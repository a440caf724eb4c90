package keys

import (
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

// TestOpenTo checks that only the owner may have access to a key, except for files of root with access for a group.
func TestOpenTo(t *testing.T) {
	const me = 65532
	for _, c := range []struct {
		mode        fs.FileMode
		owner, user int
		open        bool
	}{
		{0o600, me, me, false},
		{0o400, me, me, false},
		{0o440, me, me, true},
		{0o604, me, me, true},
		{0o440, rootID, me, false}, // how Kubernetes mounts a secret for the group of a pod
		{0o640, rootID, me, false},
		{0o460, rootID, me, true},
		{0o450, rootID, me, true},
		{0o444, rootID, me, true},
		{0o440, rootID, rootID, true},
		{0o440, me + 1, me, true},
		{0o440, -1, me, true},
	} {
		if got := modeAccessibleToOthers(c.mode, c.owner, c.user); got != c.open {
			t.Errorf("mode %04o, owner %d, user %d: open %v, want %v", c.mode, c.owner, c.user, got, c.open)
		}
	}
	name := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(name, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(name)
	if err != nil {
		t.Fatal(err)
	}
	if got := ownerOf(info); got != os.Getuid() {
		t.Errorf("owner %d, want %d", got, os.Getuid())
	}
}
