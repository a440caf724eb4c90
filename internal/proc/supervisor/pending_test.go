//go:build unix

package supervisor

import (
	"fmt"
	"strings"
	"testing"

	"github.com/perdure/perdure/internal/data/wire"
)

// TestPendingIsBounded checks that faults above the limit are ignored, and that this is reported.
func TestPendingIsBounded(t *testing.T) {
	j := newTestJob(t, JobConfig{})
	for i := range maxPending {
		must(t, j.order(wire.Order{Kind: "fault", Spec: fmt.Sprintf("kill:server:0@clock:%d", 1000+i)}))
	}
	must(t, j.order(wire.Order{Kind: "fault", Spec: "kill:server:0@clock:7"}))
	if e := j.event(); e.Kind != "trouble" ||
		!strings.Contains(e.Text, "ignored fault kill:server:0@clock:7, because 4096 faults are already planned") {
		t.Errorf("got event %+v", e)
	}
	if n := len(j.Pending()); n != maxPending {
		t.Errorf("%d faults are pending", n)
	}
}
