package localrun

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
	"github.com/perdure/perdure/internal/run/locate"
	"github.com/perdure/perdure/internal/run/role"
)

// asProcess is set in the environment of processes of a job.
const asProcess = "PERDURE_TEST_AS_PROCESS"

// startsItself makes the test's jobs start this test binary for each of their processes.
func startsItself(t *testing.T) {
	t.Helper()
	t.Setenv(asProcess, "1")
	t.Setenv("GORACE", "atexit_sleep_ms=0")
}

// TestMain runs the tests, or the process of a job that this binary was started as.
func TestMain(m *testing.M) {
	if os.Getenv(asProcess) == "" {
		os.Exit(m.Run())
	}
	if err := process(os.Args[1], os.Args[2:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// process runs a role, as the command does with the same arguments.
func process(name string, args []string) error {
	if err := supervisor.DieWithParent(); err != nil {
		return err
	}
	flags := flag.NewFlagSet(name, flag.ContinueOnError)
	run, at := flags.String("run", "", ""), flags.String("coordinator", "", "")
	index, slot := flags.Int("index", -1, ""), flags.Int("slot", -1, "")
	listen, zone := flags.String("listen", "", ""), flags.String("zone", "", "")
	_ = flags.Bool("starts-workers", false, "")
	if err := flags.Parse(args); err != nil {
		return err
	}
	ctx, job, log := context.Background(), locate.Job{Run: *run, Coordinator: *at},
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
