//go:build unix

package supervisor

import (
	"os"
	"strings"
	"testing"

	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/transport"
)

// TestFailedByItself checks which exits count as failures: those that the program causes itself, at any age, but not
// those from an outside signal or because another process died. Wrong usage is final.
func TestFailedByItself(t *testing.T) {
	for name, c := range map[string]struct {
		e             Exit
		failed, final bool
	}{
		"an error":             {Exit{PID: 1, Code: 1, LastLine: "ValueError: x"}, true, false},
		"code 0":               {Exit{PID: 1}, true, false},
		"a wrong use":          {Exit{PID: 1, Code: 2, LastLine: "perdure: x"}, true, true},
		"not caught":           {Exit{PID: 1, Code: 1, LastLine: usageError + "x"}, true, true},
		"a panic of Go":        {Exit{PID: 1, Code: 2, LastLine: "panic: x"}, true, false},
		"a segmentation fault": {Exit{PID: 1, Code: -1, Signal: "SIGSEGV"}, true, false},
		"killed":               {Exit{PID: 1, Code: -1, Signal: "SIGKILL"}, false, false},
		"terminated":           {Exit{PID: 1, Code: -1, Signal: "SIGTERM"}, false, false},
		"told to end":          {Exit{PID: 1, Code: 128 + 15}, false, false},
		"in a shell, killed":   {Exit{PID: 1, Code: 128 + 9}, false, false},
		"code 3":               {Exit{PID: 1, Code: exitFenced}, true, false},
		"its agent was killed": {Exit{PID: 1, Code: 1, LastLine: "perdure.errors.AgentDied: x"}, false, false},
		"could not be started": {Exit{Code: -1}, false, false},
	} {
		c.e.Role, c.e.Description = wire.RoleWorker, "ended"
		got := c.e.WorkerReport(true)
		if got.Failed != c.failed || got.Final != c.final || got.How != "ended" {
			t.Errorf("%s: %+v", name, got)
		}
		if c.final && got.Detail != "x" {
			t.Errorf("%s: reason %q, want x", name, got.Detail)
		}
	}
	if fenced := (&Exit{PID: 1, Code: exitFenced}).WorkerReport(false); fenced.Failed {
		t.Error("a Perdure worker whose slot was taken counts as failed")
	}
	errors, err := os.ReadFile("../../../python/src/perdure/errors.py")
	must(t, err)
	for _, line := range append(consequences, usageError) {
		class := strings.TrimSuffix(strings.TrimPrefix(line, "perdure.errors."), ": ")
		if !strings.Contains(string(errors), "\nclass "+class+"(") {
			t.Errorf("the Python package has no class %s", class)
		}
	}
}

// TestFailureIsReported checks that the supervisor reports a program's failure with its last lines to the coordinator,
// and that a planned exit is not a failure.
func TestFailureIsReported(t *testing.T) {
	j := newTestJob(t, JobConfig{OwnWorkers: true})
	sent := &exitedConn{}
	j.up(sent, nil)
	exit := Exit{
		Role: wire.RoleWorker, Index: 1, PID: 7, Code: 1, Description: "ended with code 1", LastLine: "why",
		Tail: "a\nwhy",
	}
	if j.onExit(exit) < Restart(leaveDelay) {
		t.Error("the restart does not wait for the coordinator's reaction to the failure")
	}
	j.plannedPause[memberID{wire.RoleWorker, 1}] = 0
	j.onExit(exit)
	if len(sent.all) != 2 || !sent.all[0].Failed || sent.all[0].Output != "a\nwhy" || sent.all[1].Failed {
		t.Errorf("told %+v", sent.all)
	}
}

// exitedConn is a connection that records reported exits.
type exitedConn struct {
	transport.Conn
	all []wire.Exited
}

func (c *exitedConn) Send(frames ...wire.Frame) error {
	for _, f := range frames {
		var e wire.Exited
		if f.Kind == wire.KindExited && wire.ParseControl(&f, &e) == nil {
			c.all = append(c.all, e)
		}
	}
	return nil
}
