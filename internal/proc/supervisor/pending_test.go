//go:build unix

package supervisor

import (
	"fmt"
	"strings"
	"testing"

	"github.com/perdure/perdure/internal/data/wire"
)

// Whoever may plan faults may plan many, but not without end: one too many is left out, and
// the job says so.
func TestPendingIsBounded(t *testing.T) {
	j := newTestJob(t, JobConfig{})
	for i := range maxPending {
		must(t, j.order(wire.Order{Kind: "fault", Spec: fmt.Sprintf("kill:server:0@clock:%d", 1000+i)}))
	}
	must(t, j.order(wire.Order{Kind: "fault", Spec: "kill:server:0@clock:7"}))
	if e := j.event(); e.Kind != "trouble" ||
		!strings.Contains(e.Text, "kill:server:0@clock:7 is left out: 4096 faults are planned already") {
		t.Errorf("the job says %+v", e)
	}
	if n := len(j.Pending()); n != maxPending {
		t.Errorf("%d faults are planned", n)
	}
}
