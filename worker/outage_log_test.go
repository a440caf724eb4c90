package worker_test

import (
	"log/slog"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/testcluster"
)

// errorLog holds the errors that a worker has logged.
type errorLog struct {
	mu   sync.Mutex
	text strings.Builder // guarded by mu
}

func (e *errorLog) Write(p []byte) (int, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.text.Write(p)
}

func (e *errorLog) String() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.text.String()
}

// TestLongOutagesAreLogged checks that a worker logs once that it no longer continues in an outage, with the size of
// its queue or the limit of its cached rows, and once that it continues.
func TestLongOutagesAreLogged(t *testing.T) {
	longOutage(t, perdure.OnOutage{Continue: true, Clocks: 1000}, `the queue of updates is full.*clocks=\d+ queued="0`)
	longOutage(t, perdure.OnOutage{Continue: true, Clocks: 4}, `rows in the cache are too old.*clocks=\d+ N=4`)
}

func longOutage(t *testing.T, policy perdure.OnOutage, want string) {
	t.Helper()
	goesOn(t, "asp", 1, perdure.JobSpec{OnOutage: policy, OutageBytes: 20_000}, func(c *chained) {
		var log errorLog
		w := c.dial(0, func(cfg *testcluster.DialConfig) {
			cfg.Log = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelError}))
		})
		table := c.table(w)
		c.all(table)
		c.Net.Cut("worker:0", "server:0", false)
		c.step(w, table, 1)
		<-time.After(time.Second)
		trained := go1(func() error {
			for range 40 {
				if err := table.GetRun(c.ctx, 0, make([]float32, rows*dim)); err != nil {
					return err
				}
				if err := table.IncRun(0, slices.Repeat([]float32{1}, rows*dim)); err != nil {
					return err
				}
				if _, err := w.Clock(c.ctx); err != nil {
					return err
				}
			}
			return nil
		})
		<-time.After(3 * time.Second)
		if len(trained) > 0 {
			t.Fatalf("the worker did not wait: %v", <-trained)
		}
		said := log.String()
		if ok, _ := regexp.MatchString(want, said); !ok || strings.Count(said, "\n") != 1 {
			t.Errorf("the worker logged %q", said)
		}
		c.Net.Heal("worker:0", "server:0")
		if err := <-trained; err != nil {
			t.Fatal(err)
		}
		<-time.After(time.Second)
		said = log.String()
		if !strings.Contains(said, "training continues after the outage") || strings.Count(said, "\n") != 2 {
			t.Errorf("after the outage the worker logged %q", said)
		}
	})
}
