package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/worker"
)

// A clock of a large table keeps a server busy for seconds.
var (
	largeRows   = flag.Int64("large.rows", 0, "TestLargeTable: rows of 1,024 values; 0: the test is skipped")
	largeClocks = flag.Int("large.clocks", 8, "TestLargeTable: clocks of each job")
)

// TestLargeTable: no process is suspected while servers apply updates to a large table and two other processes keep the
// machine busy.
func TestLargeTable(t *testing.T) {
	if *largeRows == 0 {
		t.Skip("takes minutes and 12 GB of memory; run make check-large")
	}
	exe, err := os.Executable()
	must(t, err)
	for range 2 {
		busy := exec.Command("sh", "-c", "while :; do :; done")
		must(t, busy.Start())
		defer func() { _ = busy.Process.Kill(); _ = busy.Wait() }()
	}
	for _, recovery := range []string{"resend:2", "checkpoint:2", "chain:2"} {
		servers := "1"
		if recovery == "chain:2" {
			servers = "2"
		}
		dir := newFolder(t)
		wantOut(t, 0, []string{
			"up", "--workers", "2", "--clocks", fmt.Sprint(*largeClocks), "--servers", servers, "--shards", "2",
			"--recovery", recovery, "--out", dir,
			"--exec", fmt.Sprintf("env %s=large %s %d", asProgram, exe, *largeRows),
		}, fmt.Sprintf("every worker has finished %d clocks", *largeClocks))
		events, err := os.ReadFile(filepath.Join(dir, "events.jsonl"))
		must(t, err)
		if strings.Contains(string(events), `"suspected"`) {
			t.Errorf("%s: a healthy process is suspected:\n%s", recovery, events)
		}
	}
}

func init() { wholePrograms["large"] = largeProgram }

// largeProgram adds to every row of a table in each clock, under Adam. Its argument is the number of rows.
func largeProgram(args []string) int {
	var rows int64
	_, err := fmt.Sscan(args[0], &rows)
	begin := func(ctx context.Context, c *worker.Client) (worker.Step, error) {
		const dim = 1024
		model, err := c.Table(ctx, perdure.TableSpec{
			Name: "model", Rows: rows, Dim: dim,
			Rule: perdure.Rule{Kind: perdure.RuleAdam, Rate: 0.001, Beta1: 0.9, Beta2: 0.999, Epsilon: 1e-8},
		})
		by, row := make([]float32, dim), make([]float32, dim)
		for i := range by {
			by[i] = float32(i%7) - 3
		}
		return func(ctx context.Context, clock perdure.Clock) error {
			for r := range perdure.RowID(rows) {
				if err := model.Inc(r, by); err != nil {
					return err
				}
			}
			return model.Get(ctx, perdure.RowID(int64(clock)%rows), row)
		}, err
	}
	if err == nil {
		err = worker.Run(context.Background(), worker.Config{}, begin)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "perdure:", err)
		return exitError
	}
	return 0
}
