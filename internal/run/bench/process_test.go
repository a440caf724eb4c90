package bench

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"testing"

	"github.com/perdure/perdure/internal/proc/supervisor"
	"github.com/perdure/perdure/internal/run/locate"
	"github.com/perdure/perdure/internal/run/role"
)

// asProcess is set in the environment of processes that this test binary starts: those of a job, and the raw peer.
const asProcess = "PERDURE_TEST_AS_PROCESS"

func startsItself(t *testing.T) {
	t.Helper()
	t.Setenv(asProcess, "1")
	t.Setenv("GORACE", "atexit_sleep_ms=0")
}

// TestMain runs the tests, or the process that the environment selects.
func TestMain(m *testing.M) {
	var err error
	switch {
	case os.Getenv(asTrain) != "":
		err = runAsTrain()
	case os.Getenv(asProcess) != "":
		err = process(os.Args[1], os.Args[2:])
	default:
		os.Exit(m.Run())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// process runs a process of a moves benchmark, as the perdure command does with the same arguments.
func process(name string, args []string) error {
	if err := supervisor.DieWithParent(); err != nil {
		return err
	}
	flags := flag.NewFlagSet(name, flag.ContinueOnError)
	run, at, index := flags.String("run", "", ""), flags.String("coordinator", "", ""), flags.Int("index", -1, "")
	listen, zone := flags.String("listen", "", ""), flags.String("zone", "", "")
	if err := flags.Parse(args); err != nil {
		return err
	}
	ctx, log := context.Background(), slog.New(slog.DiscardHandler)
	switch name {
	case "bench-peer":
		return AnswerRaw(ctx)
	case "coordinator":
		return (&role.Coordinator{Folder: *run, Log: log}).Run(ctx)
	case "server":
		job := locate.Job{Run: *run, Coordinator: *at}
		return (&role.Server{Job: job, Index: *index, Listen: *listen, Zone: *zone, Log: log}).Run(ctx, ctx)
	}
	return errors.New("no such process: " + name)
}
