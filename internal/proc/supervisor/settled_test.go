package supervisor

import (
	"testing"
	"time"

	"github.com/perdure/perdure/internal/data/wire"
)

// TestServesUnreported checks that a failure ends when the whole job serves with another process in the place. The
// coordinator may die before it reports the replacement.
func TestServesUnreported(t *testing.T) {
	var line timeline
	at := time.Now()
	line.died("worker:1", Exit{PID: 7, At: at}, time.Second, wire.Progress{})
	tell := func(serving bool, pid int, state string) Failure {
		line.settled(&wire.Progress{
			Serving: serving, ClocksRedone: 3,
			Members: []wire.MemberProgress{{Role: wire.RoleWorker, Index: 1, PID: pid, State: state}},
		}, at.Add(time.Minute))
		return line.list()[0]
	}
	line.settled(&wire.Progress{
		Serving: true,
		Members: []wire.MemberProgress{{Role: wire.RoleWorker, Index: 1, PID: 6, State: stateAlive}},
	},
		at.Add(time.Millisecond))
	for _, f := range []Failure{
		tell(false, 8, stateAlive), tell(true, 7, stateAlive), tell(true, 8, stateDead),
		tell(true, 0, stateAlive),
	} {
		if f.Serving != nil || f.Detected != nil {
			t.Fatalf("the failure ended too early: %+v", f)
		}
	}
	if f := tell(true, 8, stateAlive); f.Serving == nil || *f.Serving != time.Minute || f.Detected == nil ||
		f.ClocksRedone != 3 {
		t.Errorf("the failure did not end correctly: %+v", f)
	}
}
