//go:build unix

package supervisor

import (
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/perdure/perdure/internal/data/wire"
)

// TestKillOfAnother checks that a suspect that reports the PID of another role's process does not get that process
// killed.
func TestKillOfAnother(t *testing.T) {
	j := newTestJob(t, JobConfig{})
	var said strings.Builder
	j.cfg.Log = slog.New(slog.NewTextHandler(&said, nil))
	must(t, j.group.Start(Spec{
		Role: wire.RoleServer, Command: []string{os.Args[0]},
		Env: []string{childEnv + "=wait"}, Files: []*os.File{os.Stdout},
	}))
	pid := j.group.PID(wire.RoleServer, 0)
	must(t, j.order(wire.Order{Kind: "kill", Target: "worker:0", PID: pid}))
	if !strings.Contains(said.String(), "the ID of another process") || j.group.PID(wire.RoleServer, 0) != pid {
		t.Errorf("log %q; the server's process is %d, was %d", said.String(), j.group.PID(wire.RoleServer, 0),
			pid)
	}
	must(t, j.order(wire.Order{Kind: "kill", Target: "server:0", PID: pid}))
	look := time.NewTicker(time.Millisecond)
	defer look.Stop()
	for j.group.PID(wire.RoleServer, 0) == pid {
		<-look.C
	}
}
