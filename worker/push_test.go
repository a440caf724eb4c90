package worker_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/transport"
	"github.com/perdure/perdure/worker"
)

// twoTapped joins two slots of an essp job and opens their tables.
func twoTapped(
	c *cluster, change ...func(*perdure.TableSpec),
) (ws [2]*worker.Client, taps [2]*tap, ts [2]*worker.Table) {
	c.Helper()
	for i := range ws {
		ws[i], taps[i] = c.tapped(fmt.Sprintf("worker:%d", i), perdure.Slot(i))
		ts[i] = c.table(ws[i], change...)
	}
	return ws, taps, ts
}

// incRows adds v to rows.
func (c *cluster) incRows(t *worker.Table, v float32, ids ...perdure.RowID) {
	c.Helper()
	if err := t.IncRows(ids, all(len(ids), v)); err != nil {
		c.Fatal(err)
	}
}

// reads checks the value of rows, and whether they were available immediately.
func (c *cluster) reads(t *worker.Table, atOnce bool, want float32, ids ...perdure.RowID) {
	c.Helper()
	if v, waited := c.read(t, ids); v != want || atOnce != (waited == 0) {
		c.Fatalf("rows %v are %v after %v, want %v, at once: %v", ids, v, waited, want, atOnce)
	}
}

// TestPushedRows checks that under essp only the first Get of a row requests it. Every new MinClock pushes the row
// without a request. A slot's own deltas are visible immediately.
func TestPushedRows(t *testing.T) {
	for _, model := range []string{"essp:0", "essp:1", "essp:3"} {
		for _, sparse := range []bool{false, true} {
			for _, sgd := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s/%v/%v", model, sparse, sgd), func(t *testing.T) {
					inCluster(t, model, "none", 2, 0, func(c *cluster) { pushedRows(c, sparse, sgd) })
				})
			}
		}
	}
}

func pushedRows(c *cluster, sparse, sgd bool) {
	sign := float32(1)
	ws, taps, ts := twoTapped(c, func(s *perdure.TableSpec) {
		if sparse {
			sparsely(s)
		}
		if sgd {
			s.Rule, sign = perdure.Rule{Kind: perdure.RuleSGD, Rate: 1}, -1
		}
	})
	ids := everyRow(0)
	var asked [2]int
	for clock := range perdure.Clock(12) {
		for slot, table := range ts {
			c.reads(table, clock > 0, sign*11*float32(clock), ids...)
			c.incRows(table, float32(1+9*slot), ids...)
			c.reads(table, true, sign*(11*float32(clock)+float32(1+9*slot)), ids...)
			if !sparse {
				if v := c.get(table); v != sign*(11*float32(clock)+float32(1+9*slot)) {
					c.Fatalf("slot %d read a run as %v at clock %d", slot, v, clock)
				}
			}
			if clock == 0 {
				asked[slot] = taps[slot].sent(wire.KindGet)
			}
		}
		c.clock(ws[0], clock+1)
		c.pass(10 * time.Millisecond)
		if c.job.Consistency.Staleness > 0 { // the other slot's clock is not finished
			c.reads(ts[0], true, sign*(11*float32(clock)+1), ids...)
		}
		c.clock(ws[1], clock+1)
		c.pass(10 * time.Millisecond)
	}
	for slot, w := range ws {
		if n := taps[slot].sent(wire.KindGet); n != asked[slot] {
			c.Errorf("slot %d sent %d requests, %d of them after its first reads", slot, n, n-asked[slot])
		}
		if lag := w.Counters().ReadLag; len(lag) != 1 || lag[0] == 0 {
			c.Errorf("slot %d read rows that were behind their shard, by clocks: %v", slot, lag)
		}
		if missing := w.Counters().MissingUpdates; len(missing) != 1 || missing[0] == 0 {
			c.Errorf("slot %d read rows that lacked updates: %v", slot, missing)
		}
	}
}

// TestWhatIsPushed checks that a slot receives pushes of exactly those rows that it has read and that have changed, and
// only while it continues to read them.
func TestWhatIsPushed(t *testing.T) {
	for _, sparse := range []bool{false, true} {
		inCluster(t, "essp:0", "none", 2, 0, func(c *cluster) {
			ws, taps, ts := twoTapped(c, func(s *perdure.TableSpec) {
				if sparse {
					sparsely(s)
				}
			})
			total := map[perdure.RowID]float32{}
			clock := perdure.Clock(0)
			step := func(change, pushed, again []perdure.RowID) { // both slots do a clock
				c.Helper()
				taps[0].takePushed()
				c.incRows(ts[1], 1, change...)
				for _, row := range change {
					total[row]++
				}
				clock++
				both(2, func(slot int) { c.clock(ws[slot], clock) })
				c.pass(10 * time.Millisecond)
				if got := slices.Sorted(maps.Keys(taps[0].takePushed())); !slices.Equal(got, pushed) {
					c.Fatalf("sparse %v, clock %d: rows %v were pushed, want %v", sparse, clock, got, pushed)
				}
				for _, row := range again {
					c.reads(ts[0], true, total[row], row)
				}
			}
			ids := func(ids ...perdure.RowID) []perdure.RowID { return ids }
			c.reads(ts[0], false, 0, 1, 2, 10)
			step(ids(1, 2, 4, 5), ids(1, 2), ids(1, 2, 10))
			step(ids(2, 4), ids(2), ids(1, 2, 10))
			step(ids(4, 5), nil, ids(1, 2, 10))
			step(nil, nil, ids(1, 2, 10))
			c.reads(ts[0], false, total[5], 5)
			step(ids(1, 2, 4, 5, 7, 8, 10), ids(1, 2, 5, 10), ids(1))
			last := clock // the last clock that read only row 1
			for range 3 { // unused pushes end sooner
				step(ids(1, 2, 5, 10), ids(1, 2, 5, 10), ids(1))
			}
			for drops := taps[0].sent(wire.KindUnsubscribe); taps[0].sent(wire.KindUnsubscribe) == drops; {
				if clock > last+14 {
					c.Fatalf("sparse %v: rows that were read last at clock %d are wanted at clock %d", sparse, last,
						clock)
				}
				if step(ids(1, 7), ids(1), ids(1)); clock < last+7 && taps[0].sent(wire.KindUnsubscribe) > drops {
					c.Fatalf("sparse %v: rows that were read last at clock %d are dropped at clock %d", sparse, last,
						clock)
				}
			}
			for range 5 { // the next check, for rows that were read one clock later
				step(ids(1), ids(1), ids(1))
			}
			step(ids(1, 2, 4, 5, 10), ids(1), ids(1))
			step(ids(1, 2, 4, 5, 10), ids(1), ids(1))
			c.reads(ts[0], false, total[10], 10)
			c.reads(ts[0], false, total[2], 2)
			step(ids(1, 2, 5, 10), ids(1, 2, 10), ids(1, 2, 10))
			step(ids(10), ids(10), ids(1, 2, 10))
		})
	}
}

// TestDroppedAndReadAgain checks that a row which is dropped and read again, before the server is notified, is pushed.
func TestDroppedAndReadAgain(t *testing.T) {
	inCluster(t, "essp:0", "none", 2, 0, func(c *cluster) {
		ws, taps, ts := twoTapped(c, sparsely)
		c.reads(ts[0], false, 0, 1, 2)
		total := float32(0)
		for clock := range perdure.Clock(8) {
			ts[0].Forget() // the server continues to push rows that this slot no longer wants
			if clock%2 == 1 {
				c.reads(ts[0], false, total, 1) // it wants the row again before the server is notified
			}
			c.incRows(ts[1], 1, 1, 2)
			total++
			both(2, func(slot int) { c.clock(ws[slot], clock+1) })
			c.pass(10 * time.Millisecond)
			c.reads(ts[0], clock%2 == 1, total, 1)
			c.reads(ts[0], false, total, 2)
		}
		for clock := perdure.Clock(8); clock < 12; clock++ {
			taps[0].takePushed()
			c.incRows(ts[1], 1, 1, 2)
			total++
			both(2, func(slot int) { c.clock(ws[slot], clock+1) })
			c.pass(10 * time.Millisecond)
			c.reads(ts[0], true, total, 1, 2)
		}
	})
}

// TestSlowReader checks that other slots continue while a slot accepts no pushes. When it accepts them again, it
// receives each row in its latest state, however often it changed. Pushes never hide the slot's own deltas.
func TestSlowReader(t *testing.T) {
	slow := transport.NewFaultLayer(nil)
	inClusterOf(t, transport.MemoryOptions{}, slowly("worker:1", slow), "essp:50", "none", 3, 0, func(c *cluster) {
		const large, clocks = 60_000, 40 // a round is about 3/4 MB from each shard
		wide := func(s *perdure.TableSpec) { s.Rows = large }
		var ws []*worker.Client
		var taps []*tap
		var ts []*worker.Table
		for i := range 3 {
			w, tp := c.tapped(fmt.Sprintf("worker:%d", i), perdure.Slot(i))
			ws, taps, ts = append(ws, w), append(taps, tp), append(ts, c.table(w, wide))
		}
		values := make([]float32, large*dim)
		get := func(slot int) float32 {
			c.Helper()
			if err := ts[slot].GetRun(c.ctx, 0, values); err != nil {
				c.Fatal(err)
			}
			return values[large*dim-1]
		}
		for slot := range ws {
			get(slot)
		}
		delta := slices.Repeat([]float32{1}, large*dim)
		slow.SetLink(transport.LinkModel{BytesPerSecond: 2 << 20})
		began := time.Now()
		for clock := range perdure.Clock(clocks) {
			for slot, w := range ws {
				if err := ts[slot].IncRun(0, delta); err != nil {
					c.Fatal(err)
				}
				c.clock(w, clock+1)
			}
			c.pass(10 * time.Millisecond)
			for _, slot := range []int{0, 2} {
				if v := get(slot); v != float32(3*(clock+1)) {
					c.Fatalf("slot %d read %v at clock %d", slot, v, clock+1)
				}
			}
			own := float32(clock + 1)
			if v := get(1); v < own {
				c.Fatalf("the slow slot read %v, and has done %v clocks itself", v, own)
			}
		}
		if took := time.Since(began); took > 2*time.Second {
			c.Errorf("others were held up: %d clocks took %v", clocks, took)
		}
		for range 200 {
			if c.pass(100 * time.Millisecond); get(1) == 3*clocks {
				break
			}
		}
		if v := get(1); v != 3*clocks {
			c.Errorf("the slow slot has %v in the end, want %v", v, 3*clocks)
		}
		if fast, n := taps[0].takePushed()[5], taps[1].takePushed()[5]; fast != clocks || n > 20 {
			c.Errorf("a row was pushed %d times to a fast slot and %d times to the slow one, in %d clocks", fast, n,
				clocks)
		}
	})
}

// slowly routes messages from servers to a host through a fault layer.
func slowly(host string, layer *transport.FaultLayer) func(string, transport.Network) transport.Network {
	return func(_ string, n transport.Network) transport.Network { return hostNetwork{n, host, layer} }
}

type hostNetwork struct {
	transport.Network
	host  string
	layer *transport.FaultLayer
}

type hostListener struct {
	transport.Listener
	to hostNetwork
}

// accepted is a listener with a single connection.
type accepted struct {
	transport.Listener
	conn transport.Conn
}

func (l accepted) Accept() (transport.Conn, error) { return l.conn, nil }

func (n hostNetwork) Listen(addr string) (transport.Listener, error) {
	l, err := n.Network.Listen(addr)
	return hostListener{l, n}, err
}

func (l hostListener) Accept() (transport.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil || conn.Peer() != l.to.host {
		return conn, err
	}
	return l.to.layer.Wrap(accepted{l.Listener, conn}).Accept()
}

// TestWaitForPush checks that a call that waits for a push returns when the job ends or its context ends.
func TestWaitForPush(t *testing.T) {
	inCluster(t, "essp:0,b=bsp", "none", 2, 100, func(c *cluster) {
		ws, _, ts := twoTapped(c)
		b := [2]*worker.Table{}
		for i := range ws {
			b[i] = c.table(ws[i], func(s *perdure.TableSpec) { s.Name = "b" })
		}
		c.reads(ts[0], false, 0, 1, 2)
		c.clock(ws[0], 1)
		for range 2 {
			start := time.Now()
			err := ts[0].GetRows(c.within(time.Second), []perdure.RowID{1, 2}, make([]float32, 2*dim))
			if took := time.Since(start); !errors.Is(err, context.DeadlineExceeded) || took != time.Second {
				t.Fatalf("Get of rows that wait for a push: %v after %v", err, took)
			}
		}
		c.incRows(ts[1], 5, 1)
		c.clock(ws[1], 1)
		c.pass(10 * time.Millisecond)
		c.reads(ts[0], true, 5, 1)
		c.clock(ws[0], 2)
		got := go1(func() error { return ts[0].GetRows(c.ctx, []perdure.RowID{1, 2}, make([]float32, 2*dim)) })
		c.pass(time.Second)
		if len(got) > 0 {
			t.Fatalf("rows that need the other slot's clock were read: %v", <-got)
		}
		if err := ws[1].EndJob(c.ctx); err != nil || ws[1].End() != 1 {
			t.Fatalf("EndJob: %v; the end is %d", err, ws[1].End())
		}
		start := time.Now()
		if err := <-got; err != nil || time.Since(start) > 100*time.Millisecond {
			t.Errorf("a Get that waited for a push when the job was ended: %v after %v", err, time.Since(start))
		}
	})
}

// TestWaitAtTheEnd checks the same for rows that were never pushed because they already have their final values.
func TestWaitAtTheEnd(t *testing.T) {
	inCluster(t, "essp:0,b=bsp", "none", 2, 100, func(c *cluster) {
		ws, _, ts := twoTapped(c, sparsely) // for a dense table, Table itself reads rows
		both(2, func(slot int) { c.clock(ws[slot], 1) })
		c.reads(ts[0], false, 0, 1, 2)
		c.clock(ws[0], 2)
		got := go1(func() error { return ts[0].GetRows(c.ctx, []perdure.RowID{1, 2}, make([]float32, 2*dim)) })
		c.pass(time.Second)
		if len(got) > 0 {
			t.Fatalf("rows that need the other slot's clock were read: %v", <-got)
		}
		if err := ws[1].EndJob(c.ctx); err != nil || ws[1].End() != 1 {
			t.Fatalf("EndJob: %v; the end is %d", err, ws[1].End())
		}
		if err := <-got; err != nil {
			t.Error(err)
		}
	})
}
