package humanize

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/perdure/perdure"
)

// TestErrors checks that errors are one line each and that nothing else is logged.
func TestErrors(t *testing.T) {
	var out strings.Builder
	log := NewErrorLog(&out)
	log.Warn("a shard is unavailable")
	log.Error("it does not answer", "coordinator", "a:1", "for", 10*time.Second,
		"err", fmt.Errorf("%w: no way\nleads there", perdure.ErrRefused))
	log.With("slot", 2).WithGroup("of").Error("more")
	log.Error("alone")
	want := "perdure: it does not answer (coordinator a:1, for 10s, no way leads there)\nperdure: more (slot 2)\n" +
		"perdure: alone\n"
	if out.String() != want {
		t.Errorf("%q, want %q", &out, want)
	}
}
