package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"strconv"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/recovery"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/hooks"
	"github.com/perdure/perdure/internal/proc/httpdebug"
	"github.com/perdure/perdure/internal/proc/supervisor"
	"github.com/perdure/perdure/internal/proc/transport"
	"github.com/perdure/perdure/internal/run/localrun"
	"github.com/perdure/perdure/internal/run/locate"
	"github.com/perdure/perdure/internal/run/role"
	"github.com/perdure/perdure/internal/run/settings"
	"github.com/perdure/perdure/internal/run/terminal"
	"github.com/perdure/perdure/internal/run/workload"
	"github.com/perdure/perdure/worker"
)

// asProgram makes this test binary act as one of the programs below: a process that takes a slot of a job, like a
// user's training program. Its arguments are the slot, the coordinator's address and the seed.
const asProgram = "PERDURE_TEST_PROGRAM"

// program is a training program. It opens its tables and returns its stepper.
type program func(ctx context.Context, c *worker.Client, seed uint64) (stepper, error)

var ownPrograms = map[string]program{
	"sums": newSumsWorker, "sets": newSetsWorker, "soak": newSoakWorker, "states": newStatesWorker,
	"older": newOlderWorker,
}

// wholePrograms implement the whole process and return its exit code.
var wholePrograms = map[string]func(args []string) int{}

// stepper is a training program with open tables.
type stepper interface {
	resume(ctx context.Context) error                    // after the process has started or the job has rolled back
	step(ctx context.Context, clock perdure.Clock) error // the work of one clock
}

// runProgram is the main function of a program's process. It returns the exit code.
func runProgram(name string) int {
	if run := wholePrograms[name]; run != nil {
		return run(os.Args[1:])
	}
	err := work(context.Background(), ownPrograms[name])
	switch {
	case err == nil || errors.Is(err, perdure.ErrStopped):
		return 0
	case errors.Is(err, perdure.ErrFenced):
		return exitFenced
	}
	fmt.Fprintln(os.Stderr, "perdure:", err)
	return exitError
}

func work(ctx context.Context, p program) error {
	flag.Parse()
	slot, err := strconv.Atoi(flag.Arg(0))
	if err != nil {
		return err
	}
	seed, err := strconv.ParseUint(flag.Arg(2), 10, 64)
	if err != nil {
		return err
	}
	faults := transport.NewFaultLayer(transport.TCP{})
	c, err := worker.Dial(hooks.NewContext(ctx, hooks.Worker{
		Network: faults,
		OnOrder: func(o wire.Order) { role.ApplyFault(o, faults, nil, seed) },
	}), worker.Config{
		Coordinator: flag.Arg(1),
		SecretFile:  os.Getenv("PERDURE_SECRET_FILE"),
		Slot:        perdure.Slot(slot).Exactly(),
		Process:     locate.ProcessName(),
		PID:         os.Getpid(),
		Log:         httpdebug.NewLog(stdout.File, httpdebug.Text),
		CacheBytes:  2 << 20, // small enough for a soak to fill it
	})
	if err != nil {
		return err
	}
	defer c.Close()
	s, err := p(ctx, c, seed)
	if err != nil {
		return err
	}
	return clockLoop(ctx, c, s)
}

// clockLoop runs the job's clocks and repeats clocks after a rollback.
func clockLoop(ctx context.Context, c *worker.Client, s stepper) error {
	clock, started := c.Now(), false
	for {
		var err error
		if !started {
			err = s.resume(ctx)
		}
		switch end := c.End(); {
		case err != nil:
		case end > 0 && clock >= end:
			if err = c.Finish(ctx); err == nil {
				return nil
			}
		default:
			err = s.step(ctx, clock)
		}
		if err != nil && !errors.Is(err, perdure.ErrRolledBack) {
			return err
		}
		now, err := c.Clock(ctx)
		if err != nil {
			return err
		}
		started = now == clock+1
		clock = now
	}
}

// startPrograms starts a job whose workers are a test program, with env added to their environment. This process is the
// job's supervisor and injects its faults.
func startPrograms(t *testing.T, s settings.Run, name string, env ...string) (j *localrun.Run, ended <-chan error) {
	t.Helper()
	faults, err := s.ParseFaults()
	must(t, err)
	must(t, recovery.Check(&s.Job))
	s.Job.ID, s.Job.Workload, s.Reach.Listen = settings.NewJobID(), settings.OwnWorkload, localrun.AnyPort
	s.Params = workload.Params{Seed: s.Job.Seed, Slots: s.Job.Slots}
	s.Job.Alarms = supervisor.NewSchedule(faults).Alarms()
	dir := newFolder(t)
	j, err = localrun.Start(context.WithoutCancel(t.Context()),
		localrun.Options{Settings: s, Folder: dir, View: terminal.NopView{}})
	must(t, err)
	t.Cleanup(func() {
		must(t, j.Close())
		checkRaces(t, dir)
		if t.Failed() {
			t.Log(logs(dir))
		}
	})
	exe, err := os.Executable()
	must(t, err)
	for i := range s.Job.Slots {
		must(t, j.Job().Group().Start(supervisor.Spec{
			Role: wire.RoleWorker, Index: i, Command: []string{
				exe, fmt.Sprint(i), j.Coordinator(),
				fmt.Sprint(s.Job.Seed),
			},
			Env:     append([]string{asProgram + "=" + name, "PERDURE_SECRET_FILE=" + j.Secrets().Path}, env...),
			LogPath: j.Dir().LogFile(fmt.Sprintf("worker-%d", i)),
		}))
	}
	done := make(chan error, 1)
	go func() { done <- j.Job().Run() }()
	return j, done
}

// mix spreads a number over 64 bits (SplitMix64).
func mix(x uint64) uint64 {
	x = (x + 0x9e3779b97f4a7c15) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
