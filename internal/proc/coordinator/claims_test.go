package coordinator_test

import (
	"strings"
	"testing"
	"time"

	"github.com/perdure/perdure/internal/data/wire"
)

// TestTwoOfOneSlot checks that a second process started by one supervisor's slot is rejected permanently, with one log
// line, while the first one lives. A process of another start may ask again, as may a process whose predecessor may be
// dead.
func TestTwoOfOneSlot(t *testing.T) {
	for name, c := range map[string]struct {
		second string // the name of the second process's start
		silent bool   // the first process is silent
		again  bool
	}{
		"of one start":              {hostName, false, false},
		"of another start":          {hostName + "2", false, true},
		"the first one may be dead": {hostName, true, true},
	} {
		t.Run(name, func(t *testing.T) {
			inFailing(t, 3, func(f *failing) {
				_ = peer(f.T, f.on.Net, wire.Hello{Role: wire.RoleServer, Process: "s", PID: 9})
				hello := wire.Hello{Role: wire.RoleWorker, PID: 1, Process: wire.OfHost(hostName, 1) + "x"}
				first := peer(f.T, f.on.Net, hello)
				<-time.After(arrives)
				if c.silent {
					first.Close()
				}
				hello.PID, hello.Process = 2, wire.OfHost(c.second, 2)
				var r wire.Refusal
				for asks := 0; asks < 3; asks++ {
					r = wire.Refusal{}
					second := peer(f.T, f.on.Net, hello)
					if c.silent {
						return // it holds the slot, or waits for it
					}
					if await(f.T, second, wire.KindRefuse, &r); asks == 0 && !r.Temporary {
						f.Fatalf("it is rejected immediately: %+v", r)
					}
					if !r.Temporary {
						break
					}
					f.reach(0, 1, 0)
					<-time.After(5 * time.Second)
				}
				if r.Temporary != c.again ||
					!c.again && !strings.Contains(r.Reason, "processes 1 and 2 of one program") {
					f.Errorf("it received %+v", r)
				}
			})
		})
	}
}
