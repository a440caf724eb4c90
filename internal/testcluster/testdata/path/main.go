// Command path runs updates and reads of a small job in virtual time. It writes the coverage counters of each part to a
// directory of its own below the one given. Build it with -cover.
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime/coverage"
	"testing"
	"testing/synctest"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/testcluster"
)

// calls is how often each part calls the worker.
const calls = 500

func main() {
	out := os.Args[1]
	os.Args = os.Args[:1]
	all := func(string, string) (bool, error) { return true, nil }
	test := func(t *testing.T) {
		testcluster.RunVirtual(t, time.Hour, testcluster.Options{Seed: 1}, func(t *testing.T, ctx context.Context, h *testcluster.Hosts) {
			if err := run(ctx, h, out); err != nil {
				t.Fatal(err)
			}
		})
	}
	testing.Main(all, []testing.InternalTest{{Name: "path", F: test}}, nil, nil)
}

func run(ctx context.Context, h *testcluster.Hosts, out string) error {
	if _, err := h.StartCoordinator(testcluster.Job("bsp", "chain:2", 1, 2, 1)); err != nil {
		return err
	}
	for i := range 2 {
		h.StartServer(fmt.Sprintf("server:%d", i))
	}
	w, err := h.NewProcess("worker:0").Dial(ctx, 0)
	if err != nil {
		return err
	}
	defer w.Close()
	t, err := w.Table(ctx, perdure.TableSpec{
		Name: "t", Rows: calls + 1, Dim: 3, Rule: perdure.Rule{Kind: perdure.RuleAdd},
	})
	if err != nil {
		return err
	}
	row := []float32{1, 2, 3}
	update := func(int) error {
		if err := t.Inc(0, row); err != nil {
			return err
		}
		_, err := w.Clock(ctx)
		return err
	}
	read := func(i int) error { return t.Get(ctx, perdure.RowID(1+i), row) }
	idle := func(int) error { return nil }
	for _, part := range []struct {
		name string
		call func(i int) error
	}{
		{"start", update}, {"before", idle}, {"update", update}, {"read", read}, {"cached", read}, {"after", idle},
	} {
		for i := range calls {
			if err := part.call(i); err != nil {
				return err
			}
		}
		time.Sleep(time.Until(time.Now().Truncate(time.Minute).Add(time.Minute))) // heartbeats: equally many in each part
		synctest.Wait()
		if err := write(filepath.Join(out, part.name)); err != nil {
			return err
		}
	}
	return nil
}

// write writes the counters to a directory and resets them.
func write(dir string) error {
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return err
	}
	if err := coverage.WriteMetaDir(dir); err != nil {
		return err
	}
	if err := coverage.WriteCountersDir(dir); err != nil {
		return err
	}
	return coverage.ClearCounters()
}
