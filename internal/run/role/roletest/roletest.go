// Package roletest makes a test binary the processes of a job, so that a test can be the
// parent of one without the perdure command: what localrun starts is the binary that it is
// called from. It is for tests only.
//
//	func TestMain(m *testing.M) { os.Exit(roletest.Main(m)) }
//
//	func TestSomething(t *testing.T) {
//		roletest.Parent(t)
//		r, err := localrun.Start(…)
//	}
package roletest

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"testing"
	"time"

	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/supervisor"
	"github.com/perdure/perdure/internal/run/reach"
	"github.com/perdure/perdure/internal/run/role"
)

// asProcess is set in the environment of processes of a job.
const asProcess = "PERDURE_TEST_AS_PROCESS"

// Parent makes the processes that the test starts such of a job.
func Parent(t testing.TB) {
	t.Helper()
	t.Setenv(asProcess, "1")
	t.Setenv("GORACE", "atexit_sleep_ms=0")
}

// Main runs the tests, or is the process that this binary was started as, and returns the exit
// code. more are other
// commands than the roles, by name.
func Main(m *testing.M, more ...func(name string, args []string) (known bool, err error)) (code int) {
	if os.Getenv(asProcess) == "" {
		return m.Run()
	}
	if err := process(os.Args[1], os.Args[2:], more); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// process is the process of a role, as the command is with the same arguments.
func process(name string, args []string, more []func(string, []string) (bool, error)) error {
	if err := supervisor.DieWithParent(); err != nil {
		return err
	}
	for _, command := range more {
		if known, err := command(name, args); known {
			return err
		}
	}
	flags := flag.NewFlagSet(name, flag.ContinueOnError)
	run, at := flags.String("run", "", ""), flags.String("coordinator", "", "")
	index, slot := flags.Int("index", -1, ""), flags.Int("slot", -1, "")
	listen, zone := flags.String("listen", "", ""), flags.String("zone", "", "")
	if err := flags.Parse(args); err != nil {
		return err
	}
	ctx, job, log := context.Background(), reach.Job{Run: *run, Coordinator: *at},
		slog.New(slog.NewTextHandler(os.Stdout, nil))
	switch wire.Role(name) {
	case wire.RoleCoordinator:
		return (&role.Coordinator{Folder: *run, Log: log}).Run(ctx)
	case wire.RoleServer:
		return (&role.Server{Job: job, Index: *index, Listen: *listen, Zone: *zone, Log: log}).Run(ctx, ctx)
	case wire.RoleWorker:
		return (&role.Worker{Job: job, Slot: *slot, LostAfter: time.Minute, Out: os.Stdout, Log: log}).Run(ctx)
	}
	return fmt.Errorf("no role %q", name)
}
