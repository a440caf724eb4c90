package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/slotstate"
	"github.com/perdure/perdure/internal/run/localrun"
	"github.com/perdure/perdure/internal/run/settings"
	"github.com/perdure/perdure/worker"
)

var stateStrategies = flag.String("states.strategies", "resend:5;checkpoint:4,async;chain:2;stateless",
	"of TestStormStates; separated by ;")

const (
	stateServers, stateWorkers, stateClocks = 2, 2, 30
	// Sizes of the state of slot 0 and of the other slots.
	firstState, otherState = 40 << 20, 3 << 20
)

// statesWorker is a program that saves a large state in each clock. The state is a function of slot and clock only.
type statesWorker struct {
	c     *worker.Client
	table *worker.Table
}

func newStatesWorker(ctx context.Context, c *worker.Client, _ uint64) (stepper, error) {
	table, err := c.Table(ctx, perdure.TableSpec{Name: "t", Rows: 8, Dim: 2, Rule: perdure.Rule{Kind: perdure.RuleAdd}})
	return &statesWorker{c, table}, err
}

// largeState returns what a slot saves in a clock.
func largeState(slot perdure.Slot, clock perdure.Clock) []byte {
	n := otherState
	if slot == 0 {
		n = firstState
	}
	var seed [32]byte
	binary.LittleEndian.PutUint64(seed[:], uint64(slot))
	binary.LittleEndian.PutUint64(seed[8:], uint64(clock))
	b := make([]byte, n)
	_, _ = rand.NewChaCha8(seed).Read(b) // it never fails
	return b
}

// resume checks that the loaded state is that of the clock before the one where the slot resumes.
func (w *statesWorker) resume(ctx context.Context) error {
	state, err := w.c.LoadState(ctx)
	now := w.c.Now()
	if err != nil || now == 0 && state == nil {
		return err
	}
	if want := largeState(w.c.Slot(), now-1); !bytes.Equal(state, want) {
		return fmt.Errorf("slot %d resumes at clock %d, but its state of %d bytes is not that of clock %d",
			w.c.Slot(), now, len(state), now-1)
	}
	return nil
}

func (w *statesWorker) step(ctx context.Context, clock perdure.Clock) error {
	values := make([]float32, 16)
	if err := w.table.GetRun(ctx, 0, values); err != nil {
		return err
	}
	if err := w.table.IncRun(0, values); err != nil {
		return err
	}
	if err := pacePrograms(ctx); err != nil {
		return err
	}
	return w.c.SaveState(largeState(w.c.Slot(), clock))
}

// TestStormStates: states of 3 and of 40 MiB are loaded exactly as of the clock where their slots resume, whichever
// processes die. States that are no longer needed are deleted.
func TestStormStates(t *testing.T) {
	t.Parallel()
	list := *stateStrategies
	if testing.Short() {
		list, _, _ = strings.Cut(list, ";")
	}
	eachStorm(t, "states.strategies", list, stateServers, stateWorkers, stateClocks,
		func(t *testing.T, seed uint64, s *storm) { stormStates(t, seed, s) })
}

func stormStates(t *testing.T, seed uint64, s *storm) {
	job := perdure.JobSpec{
		Seed: seed, Slots: stateWorkers, Servers: stateServers, Shards: 4, Clocks: stateClocks, AwaitExport: true,
		Consistency: perdure.Consistency{Kind: perdure.BSP}, Recovery: s.strategy,
	}
	j, ended := startPrograms(t, settings.Run{
		Job: job, Checkpoints: settings.Checkpoints{Keep: 1},
	}, "states", stormPace(s.strategy))
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	alive, over := context.WithCancelCause(ctx)
	go func() { over(<-ended) }()
	if err := s.rage(alive, j); err != nil {
		t.Error(err)
	}
	select {
	case <-j.Complete():
	case <-alive.Done():
		t.Fatalf("the job ended early or timed out: %v", context.Cause(alive))
	}
	fewStates(t, filepath.Join(j.Dir().Path(), "checkpoint"))
	j.Job().MarkDone()
	j.Job().End(localrun.ErrExported)
	<-alive.Done()
}

// fewStates checks that the stored states use at most three times the space of those that slots resume from.
func fewStates(t *testing.T, dir string) {
	t.Helper()
	most := int64(3 * (firstState + (stateWorkers-1)*otherState) * 11 / 10)
	var bytes int64
	await(t, func() bool {
		files, err := os.ReadDir(dir)
		must(t, err)
		bytes = 0
		for _, f := range files {
			if info, err := f.Info(); err == nil && strings.HasPrefix(f.Name(), slotstate.Prefix) {
				bytes += info.Size()
			} else if err != nil && !os.IsNotExist(err) {
				t.Fatal(err)
			}
		}
		return bytes > 0 && bytes <= most
	}, func() string {
		return fmt.Sprintf("the states in the store have %d bytes, want at most %d", bytes, most)
	})
}
