package main

import (
	"context"
	"fmt"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/run/localrun"
	"github.com/perdure/perdure/internal/run/settings"
	"github.com/perdure/perdure/worker"
)

// olderWorker is a program that saves its clock. It checks that the state it loads is the newest, or that the reported
// age is right.
type olderWorker struct {
	c     *worker.Client
	table *worker.Table
}

func newOlderWorker(ctx context.Context, c *worker.Client, _ uint64) (stepper, error) {
	table, err := c.Table(ctx, perdure.TableSpec{Name: "t", Rows: 8, Dim: 2, Rule: perdure.Rule{Kind: perdure.RuleAdd}})
	return &olderWorker{c, table}, err
}

func (w *olderWorker) resume(ctx context.Context) error {
	got, err := w.c.LoadSaved(ctx)
	now := w.c.Now()
	if err != nil || now == 0 {
		return err
	}
	saved := perdure.Clock(-1)
	if got.State != nil {
		if _, err := fmt.Sscanf(string(got.State), "clock %d", &saved); err != nil {
			return err
		}
	}
	if saved != got.Clock || saved+got.Older != now-1 {
		return fmt.Errorf("at clock %d it loads the state %q of clock %d, reported to be %d clocks older", now,
			got.State, got.Clock, got.Older)
	}
	return nil
}

func (w *olderWorker) step(ctx context.Context, clock perdure.Clock) error {
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
	return w.c.SaveState(fmt.Appendf(nil, "clock %d", clock))
}

// TestOlderState: a worker and the server that has its state are killed at the same time, before anything is saved or
// some clocks after the last checkpoint. The replacement worker is notified that its state is older, and by how many
// clocks. The summary reports the same. If only a server dies, no state is lost: the live worker resends it.
func TestOlderState(t *testing.T) {
	t.Parallel()
	both, apart := []string{"kill:worker:0@clock:20", "kill:server:0@clock:20"},
		[]string{"kill:server:0@clock:15", "kill:worker:0@clock:30"}
	for _, c := range []struct {
		recovery string
		faults   []string
		older    bool
		most     int64 // in clocks
	}{
		{"scar:1000,1/2,round", both, true, 40},
		{"scar:1000,1/2,round", apart, false, 0},
		{"resend:1000,partial", both, true, 40},
		{"resend:1000,partial", apart, false, 0},
		{"resend:17,partial", both, true, 16}, // from the checkpoint of clock 17
	} {
		t.Run(fmt.Sprint(c.recovery, c.older), func(t *testing.T) {
			t.Parallel()
			how, err := perdure.ParseRecovery(c.recovery)
			must(t, err)
			j, ended := startPrograms(t, settings.Run{Faults: c.faults, Job: perdure.JobSpec{
				Seed: 1, Slots: 2, Servers: 2, Shards: 4, Clocks: 40, AwaitExport: true,
				Consistency: perdure.Consistency{Kind: perdure.BSP}, Recovery: how,
			}}, "older", paceEnv+"=20")
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			select {
			case <-j.Complete():
			case err := <-ended:
				t.Fatalf("the job ended early: %v", err)
			case <-ctx.Done():
				t.Fatal("the job does not end")
			}
			s := j.Summary(nil)
			if (s.OlderStates != nil) != c.older || c.older && (s.StatesLost != 1 || s.StatesOlder > c.most ||
				c.most == 40 && s.StatesOlder < 20) {
				t.Errorf("unexpected older states: %+v", s.OlderStates)
			}
			j.Job().MarkDone()
			j.Job().End(localrun.ErrExported)
			<-ended
		})
	}
}
