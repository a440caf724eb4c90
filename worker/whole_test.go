package worker_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/worker"
)

// whole makes the test table a whole table with the given number of rows.
func whole(name string, rows int64) func(*perdure.TableSpec) {
	return func(s *perdure.TableSpec) { s.Name, s.Rows, s.Whole = name, rows, true }
}

// TestWholeTables checks, under every model, that whole tables are written, read and pushed next to a table spread over
// all shards. Most shards have no rows of them, and one table has fewer rows than there are shards.
func TestWholeTables(t *testing.T) {
	for _, model := range models {
		t.Run(model, func(t *testing.T) {
			inCluster(t, model, "none", 2, 0, func(c *cluster) {
				ws := []*worker.Client{c.dial("worker:0", 0), c.dial("worker:1", 1)}
				ts := make([][]*worker.Table, 2)
				both(2, func(slot int) {
					for _, change := range []func(*perdure.TableSpec){
						whole("tiny", 2), func(*perdure.TableSpec) {}, whole("layer", 40),
					} {
						ts[slot] = append(ts[slot], c.table(ws[slot], change))
					}
				})
				for i, table := range ts[0] {
					if a, b := table.Spec(), ts[1][i].Spec(); a != b {
						t.Fatalf("a table is %+v, and of another slot %+v", a, b)
					}
				}
				if a, b := ts[0][0].Spec().Shard, ts[0][2].Spec().Shard; a != 0 || b != 2 { // on the other server
					t.Errorf("whole tables are on shards %d and %d", a, b)
				}
				const clocks = 6
				both(2, func(slot int) { c.useWhole(ws[slot], ts[slot], model, clocks) })
				for _, table := range ts[0] {
					table.Forget()
					got := make([]float32, table.Spec().Rows*dim)
					if err := table.GetRun(c.ctx, 0, got); err != nil {
						t.Fatal(err)
					}
					for i, v := range got {
						if v != 2*clocks {
							t.Fatalf("value %d of table %s is %v at the end, want %d", i, table.Spec().Name, v,
								2*clocks)
						}
					}
				}
			})
		})
	}
}

// useWhole adds 1 to all rows of some tables in each of a number of clocks, as one of two slots, and reads all rows.
func (c *cluster) useWhole(w *worker.Client, tables []*worker.Table, model string, clocks perdure.Clock) {
	for clock := range clocks {
		for _, table := range tables {
			n := int(table.Spec().Rows) * dim
			got := make([]float32, n)
			if err := table.GetRun(c.ctx, 0, got); err != nil {
				c.Error(err)
				return
			}
			for i, v := range got {
				if least, most := float32(clock), float32(2*clocks); v < least || v > most ||
					model == "bsp" && v != float32(2*clock) {
					c.Errorf("%s: value %d of table %s is %v at clock %d", model, i, table.Spec().Name, v, clock)
					return
				}
			}
			if err := table.IncRun(0, all(n/dim, 1)); err != nil {
				c.Error(err)
				return
			}
		}
		if _, err := w.Clock(c.ctx); err != nil {
			c.Error(err)
			return
		}
	}
	if err := w.Settle(c.ctx); err != nil {
		c.Error(err)
	}
}

// TestAskForWhole checks that a program that requests a whole table gets it from any shard. A request for a table of
// another kind, or for an invalid one, returns a one-line error.
func TestAskForWhole(t *testing.T) {
	inCluster(t, "asp", "none", 1, 0, func(c *cluster) {
		w := c.dial("worker:0", 0)
		c.table(w, whole("first", 5))
		table := c.table(w, whole("t", 4))
		if again, err := w.Table(c.ctx, table.Spec()); err != nil || again != table {
			t.Errorf("asked for by what it is: %v", err)
		}
		elsewhere := func(s *perdure.TableSpec) { whole("t", 4)(s); s.Shard = 3 }
		if again := c.table(w, elsewhere); again != table {
			t.Error("asked for on another shard, it is another table")
		}
		rule := c.table(w, whole("rule", 3), func(s *perdure.TableSpec) {
			s.Rule = perdure.Rule{Kind: perdure.RuleMomentum, Rate: 1}
		}).Spec().Rule
		if rule != rule.WithDefaults() {
			t.Errorf("a rule is not completed: %+v", rule)
		}
		for says, change := range map[string]func(*perdure.TableSpec){
			"already exists":       func(s *perdure.TableSpec) { s.Rows = 4 },
			"cannot be kept whole": func(s *perdure.TableSpec) { whole("s", 0)(s); s.Sparse = true },
		} {
			spec := table.Spec()
			spec.Whole, spec.Shard = false, 0
			change(&spec)
			_, err := w.Table(c.ctx, spec)
			if !errors.Is(err, perdure.ErrUsage) || !strings.Contains(err.Error(), says) ||
				strings.Contains(err.Error(), "\n") {
				t.Errorf("%+v: %v", spec, err)
			}
		}
	})
}
