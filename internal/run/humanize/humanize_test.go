package humanize

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/updatelog"
)

func TestText(t *testing.T) {
	for want, err := range map[string]error{
		"--rank 0; choose more":     fmt.Errorf("%w: --rank 0; choose more", perdure.ErrUsage),
		"run.json: it is not whole": fmt.Errorf("run.json: %w: it is not whole", perdure.ErrUsage),
		"record 7":                  fmt.Errorf("updatelog: %w: record 7", updatelog.ErrDamaged),
		"anything else":             errors.New("anything else"),
	} {
		if got := ErrorText(err); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

func TestCause(t *testing.T) {
	_, err := os.Open(filepath.Join(t.TempDir(), "none"))
	if got := Cause(fmt.Errorf("cannot begin: %w", err)); !errors.Is(got, syscall.ENOENT) ||
		got.Error() != syscall.ENOENT.Error() {
		t.Errorf("%v", got)
	}
	if other := errors.New("other"); Cause(other) != other {
		t.Errorf("%v", Cause(other))
	}
}
