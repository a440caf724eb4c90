package worker_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/proc/transport"
	"github.com/perdure/perdure/worker"
)

// naive is the expected content of a table that only one slot changes: every delta is applied immediately.
type naive struct {
	values [rows * dim]float32
	scale  float32
}

func (n *naive) inc(row perdure.RowID, delta []float32) {
	for i, d := range delta {
		n.values[int(row)*dim+i] += n.scale * d
	}
}

func (n *naive) run(first perdure.RowID, count int) []float32 {
	return n.values[int(first)*dim : (int(first)+count)*dim]
}

func (n *naive) list(ids []perdure.RowID) (out []float32) {
	for _, id := range ids {
		out = append(out, n.run(id, 1)...)
	}
	return out
}

// TestReadYourWrites checks that a single slot reads its own writes immediately and permanently, however it names rows
// and whenever answers arrive. All numbers are exact in float32.
func TestReadYourWrites(t *testing.T) {
	for _, model := range []string{"bsp", "ssp:0", "ssp:2", "asp"} {
		for _, rule := range []perdure.Rule{{Kind: perdure.RuleAdd}, {Kind: perdure.RuleSGD, Rate: 0.5}} {
			t.Run(model+" "+string(rule.Kind), func(t *testing.T) {
				inCluster(t, model, "none", 1, 0, func(c *cluster) {
					w := c.dial("worker:0", perdure.NoSlot)
					table := c.table(w, func(s *perdure.TableSpec) { s.Rule = rule })
					n := &naive{scale: 1}
					if rule.Kind == perdure.RuleSGD {
						n.scale = -0.5
					}
					rng := rand.New(rand.NewPCG(*seed, 5))
					clock := perdure.Clock(0)
					for op := range 400 {
						if what, got, want := drawnOp(c, table, n, rng); !slices.Equal(got, want) {
							t.Fatalf("-worker.seed=%d: operation %d at clock %d: %s gave %v, want %v", *seed, op, clock,
								what, got, want)
						}
						if rng.IntN(4) == 0 {
							clock++
							c.clock(w, clock)
						}
						if rng.IntN(4) == 0 {
							c.pass(time.Millisecond)
						}
					}
				})
			})
		}
	}
}

// drawnOp performs one operation on both the table and the naive model.
func drawnOp(c *cluster, t *worker.Table, n *naive, rng *rand.Rand) (what string, got, want []float32) {
	first := perdure.RowID(rng.IntN(rows))
	count := 1 + rng.IntN(rows-int(first))
	ids := make([]perdure.RowID, 1+rng.IntN(2*rows)) // some rows occur twice
	for i := range ids {
		ids[i] = perdure.RowID(rng.IntN(rows))
	}
	delta := make([]float32, max(len(ids), rows)*dim)
	for i := range delta {
		delta[i] = float32(rng.IntN(7) - 3)
	}
	var err error
	switch op := rng.IntN(6); op {
	case 0:
		what, got, want = fmt.Sprintf("Get(%d)", first), make([]float32, dim), n.run(first, 1)
		err = t.Get(c.ctx, first, got)
	case 1:
		what, got, want = fmt.Sprintf("GetRun(%d, %d rows)", first, count), make([]float32, count*dim),
			n.run(first, count)
		err = t.GetRun(c.ctx, first, got)
	case 2:
		what, got, want = fmt.Sprintf("GetRows(%d)", ids), make([]float32, len(ids)*dim), n.list(ids)
		err = t.GetRows(c.ctx, ids, got)
	case 3:
		n.inc(first, delta[:dim])
		err = t.Inc(first, delta[:dim])
	case 4:
		n.inc(first, delta[:count*dim])
		err = t.IncRun(first, delta[:count*dim])
	case 5:
		for i, id := range ids {
			n.inc(id, delta[i*dim:(i+1)*dim])
		}
		err = t.IncRows(ids, delta[:len(ids)*dim])
	}
	if err != nil {
		c.Fatal(err)
	}
	return what, got, want
}

// TestIncBeforeTheAnswer checks that a row includes deltas that were Inc'd while its first answer was in transit.
func TestIncBeforeTheAnswer(t *testing.T) {
	inCluster(t, "ssp:1", "none", 1, 0, func(c *cluster) {
		w := c.dial("worker:0", 0)
		table := c.table(w)
		for i := range c.job.Servers {
			c.Net.Cut("worker:0", fmt.Sprintf("server:%d", i), false)
		}
		row := make([]float32, dim)
		got := go1(func() error { return table.Get(c.ctx, 7, row) })
		c.pass(time.Millisecond)
		if err := table.Inc(7, []float32{1, 2, 3}); err != nil {
			t.Fatal(err)
		}
		if len(got) != 0 {
			t.Fatal("a row came through a cut network")
		}
		for i := range c.job.Servers {
			c.Net.Heal("worker:0", fmt.Sprintf("server:%d", i))
		}
		if err := <-got; err != nil || !slices.Equal(row, []float32{1, 2, 3}) {
			t.Fatalf("read %v, %v; want what was Inc'd", row, err)
		}
	})
}

// TestBSPIsExact checks that under bsp a read at clock c contains exactly the clocks < c of the other slots, plus the
// reader's own updates.
func TestBSPIsExact(t *testing.T) {
	inCluster(t, "bsp", "none", 3, 0, func(c *cluster) {
		ws := c.workers()
		ts := c.tables(ws)
		both(3, func(slot int) {
			for clock := range perdure.Clock(12) {
				c.pass(time.Duration(slot) * 3 * time.Millisecond)
				if got := c.get(ts[slot]); got != float32(3*clock) {
					t.Errorf("slot %d at clock %d read %v, want %d", slot, clock, got, 3*clock)
				}
				c.inc(ts[slot], 1)
				if got := c.get(ts[slot]); got != float32(3*clock+1) {
					t.Errorf("slot %d at clock %d, after its Inc, read %v, want %d", slot, clock, got, 3*clock+1)
				}
				c.clock(ws[slot], clock+1)
			}
		})
	})
}

// TestSSPBound checks that under ssp:2 a slot may be two clocks ahead of the slowest, and waits at the third.
func TestSSPBound(t *testing.T) {
	inCluster(t, "ssp:2", "none", 2, 0, func(c *cluster) {
		ws := c.workers()
		ts := c.tables(ws)
		fast, slow := 0, 1
		c.inc(ts[slow], 100)
		for clock := range perdure.Clock(3) {
			if got := c.get(ts[fast]); got != float32(clock) {
				t.Fatalf("the fast slot read %v at clock %d", got, clock)
			}
			c.inc(ts[fast], 1)
			c.clock(ws[fast], clock+1)
		}
		dst := make([]float32, rows*dim)
		if err := ts[fast].GetRun(c.within(5*time.Second), 0, dst); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("at clock 3, the other at 0, under ssp:2: %v; want to wait", err)
		}
		got := go1(func() float32 { return c.get(ts[fast]) })
		c.pass(time.Second)
		if len(got) != 0 {
			t.Fatal("the read did not wait for the slow slot")
		}
		c.clock(ws[slow], 1)
		if v := <-got; v != 103 {
			t.Fatalf("read %v once the slow slot had moved, want 103", v)
		}
	})
}

// TestASPNeverWaits checks that under asp no slot waits for another.
func TestASPNeverWaits(t *testing.T) {
	inCluster(t, "asp", "none", 2, 0, func(c *cluster) {
		ws := c.workers()
		ts := c.tables(ws)
		for clock := range perdure.Clock(20) {
			if got := c.get(ts[0]); got != float32(clock) {
				t.Fatalf("read %v at clock %d", got, clock)
			}
			c.inc(ts[0], 1)
			c.clock(ws[0], clock+1)
		}
		c.pass(100 * time.Millisecond)
		c.clock(ws[1], 1) // rows read at clock 0 are valid throughout clock 0
		if got := c.get(ts[1]); got != 20 {
			t.Fatalf("the other slot, at clock 1, read %v, want all 20", got)
		}
	})
}

// waits returns how long each clock's read waits in a steady loop of two slots.
func waits(t *testing.T, model string, clocks int, ids func(clock int) []perdure.RowID) (waited []time.Duration) {
	inCluster(t, model, "none", 2, 0, func(c *cluster) {
		ws := c.workers()
		ts := c.tables(ws)
		both(2, func(slot int) {
			for clock := range clocks {
				list := ids(clock)
				got := make([]float32, len(list)*dim)
				before := time.Now()
				if err := ts[slot].GetRows(c.ctx, list, got); err != nil {
					t.Error(err)
					return
				}
				if slot == 0 {
					waited = append(waited, time.Since(before))
				}
				// Every slot adds 1 to every row in every clock.
				for i, v := range got {
					least := clock + max(0, clock-int(c.job.Consistency.Staleness)) // own clocks and the other slot's
					if most := 2*clock + int(c.job.Consistency.Staleness) + 1; int(v) < least || int(v) > most {
						t.Errorf("slot %d at clock %d: row %d is %v, want %d to %d", slot, clock, list[i/dim], v, least,
							most)
						return
					}
				}
				c.pass(10 * time.Millisecond) // computation
				c.inc(ts[slot], 1)
				c.clock(ws[slot], perdure.Clock(clock+1))
			}
		})
	})
	return waited
}

func everyRow(int) []perdure.RowID {
	all := make([]perdure.RowID, rows)
	for i := range all {
		all[i] = perdure.RowID(i)
	}
	return all
}

// TestRenewAhead checks that under ssp the rows are requested again together with the clock's updates, and that answers
// arrive during computation. A steady loop soon stops waiting.
func TestRenewAhead(t *testing.T) {
	sparse := func(clock int) []perdure.RowID { // one row twice, not sorted
		return []perdure.RowID{9, 2, perdure.RowID(4 + clock%2), 2, 0}
	}
	for name, ids := range map[string]func(int) []perdure.RowID{"all rows": everyRow, "sparse": sparse} {
		t.Run(name, func(t *testing.T) {
			waited := waits(t, "ssp:2", 30, ids)
			for clock, d := range waited[4:] {
				if d > 0 {
					t.Errorf("at clock %d the read waited %v", clock+4, d)
				}
			}
		})
	}
	// Without staleness nothing can be renewed ahead, so each read waits. This also shows that the test above would
	// detect waiting.
	for clock, d := range waits(t, "bsp", 5, everyRow)[1:] {
		if d == 0 {
			t.Errorf("under bsp the read at clock %d did not wait", clock+1)
		}
	}
}

// TestSparseAndChanging checks reads of rows that differ from clock to clock, while renewals of other rows are in
// transit.
func TestSparseAndChanging(t *testing.T) {
	for _, model := range []string{"ssp:1", "ssp:3"} {
		waits(t, model, 40, func(clock int) []perdure.RowID {
			rng := rand.New(rand.NewPCG(*seed, uint64(clock)))
			ids := make([]perdure.RowID, 1+rng.IntN(rows))
			for i := range ids {
				ids[i] = perdure.RowID(rng.IntN(rows))
			}
			return ids
		})
	}
}

// TestWrongArguments checks that an invalid request is rejected with a one-line reason and that the client continues.
func TestWrongArguments(t *testing.T) {
	inCluster(t, "bsp", "none", 1, 0, func(c *cluster) {
		w := c.dial("worker:0", 0)
		table := c.table(w)
		row, two := make([]float32, dim), make([]float32, 2*dim)
		ids := func(list ...perdure.RowID) []perdure.RowID { return list }
		spec := table.Spec()
		other := func(change func(*perdure.TableSpec)) error {
			s := spec
			change(&s)
			_, err := w.Table(c.ctx, s)
			return err
		}
		for what, err := range map[string]error{
			"Get: too few values":           table.Get(c.ctx, 0, row[:2]),
			"Get: none":                     table.Get(c.ctx, 0, nil),
			"Get: row beyond the end":       table.Get(c.ctx, rows, row),
			"Get: row far beyond the end":   table.Get(c.ctx, 1<<63, row),
			"Get: last row there is":        table.Get(c.ctx, 1<<64-1, row),
			"GetRun: not whole rows":        table.GetRun(c.ctx, 0, two[:4]),
			"GetRun: over the end":          table.GetRun(c.ctx, rows-1, two),
			"GetRows: one id, two rows":     table.GetRows(c.ctx, ids(1), two),
			"GetRows: two ids, one row":     table.GetRows(c.ctx, ids(1, 2), row),
			"GetRows: beyond the end":       table.GetRows(c.ctx, ids(1, rows), two),
			"Inc: too few values":           table.Inc(0, row[:1]),
			"Inc: none":                     table.Inc(0, nil),
			"Inc: beyond the end":           table.Inc(rows, row),
			"IncRun: over the end":          table.IncRun(rows-1, two),
			"IncRows: one id, two rows":     table.IncRows(ids(1), two),
			"IncRows: beyond the end":       table.IncRows(ids(rows+5), row),
			"SaveStateFrom: too large":      w.SaveStateFrom(worker.MaxState+1, nil, nil),
			"Table: other properties":       other(func(s *perdure.TableSpec) { s.Dim = 4 }),
			"Table: no name":                other(func(s *perdure.TableSpec) { s.Name = "" }),
			"Table: fewer rows than shards": other(func(s *perdure.TableSpec) { s.Name, s.Rows = "u", 3 }),
			"Table: no rule":                other(func(s *perdure.TableSpec) { s.Name, s.Rule.Kind = "u", "" }),
			"Table: unknown consistency model": other(func(s *perdure.TableSpec) {
				s.Name, s.Consistency.Kind = "u", "x"
			}),
		} {
			if !errors.Is(err, perdure.ErrUsage) || strings.Contains(err.Error(), "\n") {
				t.Errorf("%s: %v; want one line of ErrUsage", what, err)
			}
		}
		if err := table.GetRows(c.ctx, nil, nil); err != nil {
			t.Errorf("GetRows of no rows: %v", err)
		}
		if err := table.IncRows(nil, nil); err != nil {
			t.Errorf("IncRows of no rows: %v", err)
		}
		c.inc(table, 2)
		c.clock(w, 1)
		if got := c.get(table); got != 2 {
			t.Errorf("after all that it reads %v, want 2", got)
		}
	})
}

// TestFinalRows: a slot that has done its clocks reads the job's final rows under every model.
func TestFinalRows(t *testing.T) {
	const clocks = 6
	for _, model := range []string{"bsp", "ssp:2", "essp:2", "asp"} {
		for _, kind := range []perdure.RuleKind{perdure.RuleAdd, perdure.RuleMomentum} {
			for _, atomic := range []bool{false, true} {
				if model == "bsp" && atomic {
					continue
				}
				t.Run(fmt.Sprintf("%s %s atomic=%t", model, kind, atomic), func(t *testing.T) {
					job := jobOf(model, "resend:2", 3, 1000)
					job.AtomicClocks = atomic
					inJob(t, transport.MemoryOptions{}, nil, job, func(c *cluster) {
						rule := perdure.Rule{Kind: kind}
						if kind == perdure.RuleMomentum {
							rule.Rate, rule.Momentum = 0.5, 0.9
						}
						ws, found := c.workers(), [3][rows * dim]float32{}
						both(3, func(slot int) {
							w := ws[slot]
							table := c.table(w, func(s *perdure.TableSpec) { s.Rule = rule })
							get := func() {
								if err := table.GetRun(c.ctx, 0, found[slot][:]); err != nil {
									c.Error(err)
								}
							}
							for w.End() == 0 || w.Now() < w.End() {
								get()
								c.pass(time.Duration(slot) * 20 * time.Millisecond)
								c.inc(table, float32(slot+1))
								if now, err := w.Clock(c.ctx); err != nil {
									c.Error(err)
								} else if now == clocks && slot == 0 {
									if err := w.EndJob(c.ctx); err != nil {
										c.Error(err)
									}
								}
							}
							get()
							if err := w.Finish(c.ctx); err != nil {
								c.Error(err)
							}
						})
						if found[0][0] == 0 || found[1] != found[0] || found[2] != found[0] {
							c.Errorf("the slots read %v at the end", found)
						}
					})
				})
			}
		}
	}
}
