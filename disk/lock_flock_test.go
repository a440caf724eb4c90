//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package disk

import (
	"errors"
	"fmt"
	"os"
	"path"
	"strings"
	"testing"
)

func TestLock(t *testing.T) {
	name := path.Join(t.TempDir(), "lock")
	locker := OS().(Locker)
	must(t, os.WriteFile(name, []byte("1234567890 of a holder that died"), 0o666))
	held, err := locker.Lock(name)
	must(t, err)
	if _, err := locker.Lock(name); !errors.Is(err, ErrLocked) ||
		!strings.HasSuffix(err.Error(), fmt.Sprintf("%s: locked by another process, pid %d", name, os.Getpid())) {
		t.Errorf("a second lock gives %v", err)
	}
	must(t, held.Close())
	held, err = locker.Lock(name)
	must(t, err)
	must(t, held.Close())
}
