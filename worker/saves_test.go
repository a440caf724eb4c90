package worker_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/recovery"
	"github.com/perdure/perdure/internal/testcluster"
	"github.com/perdure/perdure/worker"
)

// walker is a program whose updates depend only on a state that it carries from clock to clock.
type walker struct {
	c     *cluster
	slot  perdure.Slot
	rare  bool // it saves the state only for checkpoints
	says  bool // it declares that
	kills *rand.Rand
	left  int // number of its processes that will still die
}

func walk(state uint64) uint64 { return state*6364136223846793005 + 1442695040888963407 }

// process runs until it is killed or has done the given number of clocks.
func (p *walker) process(clocks perdure.Clock) (done bool, err error) {
	host := fmt.Sprintf("worker:%d", p.slot)
	w, err := p.c.tryDial(host, p.slot, func(cfg *testcluster.DialConfig) { cfg.SavesAtCuts = p.says })
	if err != nil {
		return false, err
	}
	table := p.c.table(w)
	for {
		state, err := p.load(w)
		for clock := w.Now(); err == nil && clock < clocks; {
			if p.left > 0 && p.kills.IntN(12) == 0 {
				p.left--
				p.c.Net.Kill(host)
				return false, w.Close()
			}
			clock, err = p.iterate(w, table, clock, &state)
		}
		if err == nil {
			err = w.Finish(p.c.ctx)
		}
		if !errors.Is(err, perdure.ErrRolledBack) {
			return err == nil, err
		}
		if _, err := w.Clock(p.c.ctx); err != nil {
			return false, err
		}
	}
}

// iterate does one clock and returns the next.
func (p *walker) iterate(
	w *worker.Client, table *worker.Table, clock perdure.Clock, state *uint64,
) (perdure.Clock, error) {
	*state = walk(*state)
	delta := make([]float32, dim)
	delta[p.slot] = float32(*state >> 60)
	if err := table.Inc(perdure.RowID(clock)%rows, delta); err != nil {
		return clock, err
	}
	if !p.rare || w.SaveDue() {
		if err := w.SaveState(binary.LittleEndian.AppendUint64(nil, *state)); err != nil {
			return clock, err
		}
	}
	p.c.pass(time.Duration(p.kills.IntN(5)) * time.Millisecond)
	next, err := w.Clock(p.c.ctx)
	if err == nil && next != clock+1 {
		*state, err = p.load(w) // all slots have rolled back
	}
	return next, err
}

// load returns the state at the current clock.
func (p *walker) load(w *worker.Client) (uint64, error) {
	saved, err := w.LoadState(p.c.ctx)
	if err != nil || saved == nil {
		return uint64(p.slot), err
	}
	return binary.LittleEndian.Uint64(saved), nil
}

// walks runs a job of such programs, and reports whether its final table equals that of a job without failures.
func walks(t *testing.T, model, recovery string, rare, says bool, deaths int) (as bool) {
	const clocks = 40
	inCluster(t, model, recovery, 2, clocks, func(c *cluster) {
		both(2, func(slot int) {
			p := &walker{
				c: c, slot: perdure.Slot(slot), rare: rare, says: says,
				kills: rand.New(rand.NewPCG(*seed, uint64(slot))), left: deaths,
			}
			for done := false; !done && !t.Failed(); {
				var err error
				if done, err = p.process(clocks); err != nil {
					t.Errorf("-worker.seed=%d: slot %d: %v", *seed, slot, err)
				}
			}
		})
		if t.Failed() {
			return
		}
		o := c.dial("observer:0", -1, func(cfg *testcluster.DialConfig) { cfg.Observer = true })
		o.SetReadClock(clocks)
		table, got := c.table(o), make([]float32, rows*dim)
		if err := table.GetRun(c.ctx, 0, got); err != nil {
			t.Fatal(err)
		}
		as = true
		want := make([]float32, rows*dim)
		for slot := range 2 {
			state := uint64(slot)
			for clock := range clocks {
				state = walk(state)
				want[clock%rows*dim+slot] += float32(state >> 60)
			}
		}
		for i := range want {
			as = as && got[i] == want[i]
		}
	})
	return as
}

// TestProgramsState checks programs that resume from saved state. A program that saves its state in each clock
// continues wherever its process dies. A program that saves it only for checkpoints causes a rollback to the last one
// if it declares that; if it does not, the final model is wrong, which the test detects. Strategies without checkpoints
// support only the former.
func TestProgramsState(t *testing.T) {
	for _, strategy := range []string{
		"checkpoint:5", "chain:2,checkpoint:5", "checkpoint:5,async", "resend:5",
		"chain:2", "stateless",
	} {
		for _, model := range []string{"bsp", "ssp:2", "asp"} {
			t.Run(model+","+strategy, func(t *testing.T) {
				r, err := perdure.ParseRecovery(strategy)
				if err != nil {
					t.Fatal(err)
				}
				if recovery.Of(r).Traits().SavesCuts() && !walks(t, model, strategy, true, true, 3) {
					t.Errorf("-worker.seed=%d: the model is another where state is saved for checkpoints", *seed)
				}
				if model == "bsp" && !walks(t, model, strategy, false, false, 3) {
					t.Errorf("-worker.seed=%d: the model is another where state is saved in each clock", *seed)
				}
				if recovery.Of(r).Traits().SavesCuts() && walks(t, model, strategy, true, false, 3) {
					t.Errorf("-worker.seed=%d: the model is the same though states were lost", *seed)
				}
			})
		}
	}
}

// TestStateNeedsCheckpoints checks that a program that saves its state for checkpoints is rejected if there are none.
func TestStateNeedsCheckpoints(t *testing.T) {
	for _, recovery := range []string{"none", "chain:2"} {
		inCluster(t, "asp", recovery, 1, 0, func(c *cluster) {
			_, err := c.tryDial("worker:0", 0, func(cfg *testcluster.DialConfig) { cfg.SavesAtCuts = true })
			if !errors.Is(err, perdure.ErrRefused) {
				t.Errorf("%s: %v", recovery, err)
			}
		})
	}
}
