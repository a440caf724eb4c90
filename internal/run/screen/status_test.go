package screen

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/proc/control"
)

// TestAwayLine: a status says that the registry is away, since when and why; one that is not says nothing of it.
func TestAwayLine(t *testing.T) {
	now := time.Date(2026, time.November, 26, 7, 0, 5, 0, time.UTC)
	want := "the registry is away since 06:59:50, for 15 s: nothing is decided until it answers; training goes on, " +
		"and this is how all was then; no answer"
	if got := awayLine(&control.Away{Seconds: 15, Why: "no answer"}, now); got != want {
		t.Errorf("%q; want %q", got, want)
	}
	for _, away := range []*control.Away{nil, {Seconds: 3}} {
		var out bytes.Buffer
		Status(&out, &control.Status{RegistryAway: away}, &perdure.View{}, "")
		if got := strings.Contains(out.String(), "the registry is away since"); got != (away != nil) {
			t.Errorf("away %v: %s", away, &out)
		}
	}
}
