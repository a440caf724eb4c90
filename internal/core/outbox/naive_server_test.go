package outbox

import (
	"fmt"
	"maps"
	"slices"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/words"
	"github.com/perdure/perdure/internal/data/wire"
)

// This file has the servers of the naive twin: each keeps what every clock is to do to its rows.

// row is a row of a table.
type row struct {
	t    perdure.TableID
	id   perdure.RowID
	sets bool // the table's rule is set
}

// row names a row of a table. In every other job the second one has the rule set.
func (w *world) row(t perdure.TableID, id perdure.RowID) row {
	return row{t, id, w.view.Tables[t].Rule.Kind == perdure.RuleSet}
}

// change is what updates do to rows.
type change map[row][testDim]float32

const testDim = 2

func (c change) add(r row, d []float32) {
	v := c[r]
	if r.sets {
		v = [testDim]float32{}
	}
	for i := range v {
		v[i] += d[i]
	}
	c[r] = v
}

func (c change) addAll(other change) {
	for r, v := range other {
		c.add(r, v[:])
	}
}

// equal compares what is not 0.
func (c change) equal(other change) bool {
	isZero := func(_ row, v [testDim]float32) bool { return v == [testDim]float32{} }
	a, b := maps.Clone(c), maps.Clone(other)
	maps.DeleteFunc(a, isZero)
	maps.DeleteFunc(b, isZero)
	return maps.Equal(a, b)
}

// sent is a frame on its way, and what it was when it was sent.
type sent struct {
	wire.Frame
	copied []byte
	entry  *Update // of the log: what it completes
}

func (f *sent) bytes() []byte { return slices.Concat(f.Payload, f.Body) }

// server is a naive shard, and the way to it.
type server struct {
	s      *Shard
	open   bool
	way    []sent // not received yet, in order
	lost   []sent // queued on connections that have broken
	counts words.Counts
	rows   change
	staged map[perdure.Clock]change // not applied yet, by first clock
	until  map[perdure.Clock]perdure.Clock
	parts  []sent        // of the update that is coming
	log    []sent        // all that was ever appended
	read   int           // of it
	acked  int           // of it: the log has acknowledged it
	whole  perdure.Clock // updates of clocks below are among that
	was    []change      // by clock: what it did, or is to do
	// Clocks below this the shard had when the present process took the slot over.
	inherited perdure.Clock
}

// forget drops what a server has received and not staged.
func (v *server) forget() {
	v.staged, v.until, v.parts = map[perdure.Clock]change{}, map[perdure.Clock]perdure.Clock{}, nil
}

// receive is the naive server.
func (w *world) receive(v *server, f sent) error {
	c := &v.counts
	switch f.Kind {
	case wire.KindAddTable:
		return nil
	case wire.KindTick:
		if f.Clock < c.Staged {
			c.Ticked = max(c.Ticked, f.Clock+1)
		}
	case wire.KindUpdate:
		until := f.Until()
		for cut := f.Clock + 1; cut < until; cut++ {
			if w.b.terms.cuts.Has(cut) {
				return fmt.Errorf("an update of the clocks %d to %d lies across the cut %d", f.Clock, until-1, cut)
			}
		}
		if until <= c.Staged {
			return nil
		}
		if f.Clock != c.Staged {
			return fmt.Errorf("an update of the clocks %d to %d comes to a shard that has %d",
				f.Clock, until-1, c.Staged)
		}
		if until-f.Clock > 1 {
			w.did["merged"]++
		}
		if f.Part == 0 {
			v.parts = nil
		}
		if int(f.Part) != len(v.parts) {
			return fmt.Errorf("part %d of clock %d comes after %d others", f.Part, f.Clock, len(v.parts))
		}
		v.parts = append(v.parts, f)
		if f.Parts == 0 || int(f.Part) < int(f.Parts)-1 {
			return nil
		}
		sum, err := w.unpack(v.parts)
		if err != nil {
			return err
		}
		v.parts = nil
		if want := v.between(f.Clock, until); !sum.equal(want) {
			return fmt.Errorf("the update of the clocks %d to %d has %v, want %v", f.Clock, until-1, sum, want)
		}
		c.Staged = until
		v.staged[f.Clock], v.until[f.Clock] = sum, until
		if f.Flags&wire.FlagTicked != 0 || !w.model.TwoStep() {
			c.Ticked = max(c.Ticked, until)
		}
	}
	for c.Applied < c.Ticked && v.staged[c.Applied] != nil {
		at := c.Applied
		v.rows.addAll(v.staged[at])
		c.Applied = v.until[at]
		delete(v.staged, at)
	}
	return nil
}

// between is what clocks did to a shard's rows.
func (v *server) between(from, to perdure.Clock) change {
	sum := change{}
	for c := from; c < to; c++ {
		sum.addAll(v.was[c])
	}
	return sum
}

// unpack reads an update.
func (w *world) unpack(parts []sent) (change, error) {
	sum := change{}
	for _, f := range parts {
		b := wire.ReadBlocks(f.Payload)
		for b.Next() {
			for i := range b.Count {
				r, d := w.row(b.Table, b.ID(i)), b.Given[i*testDim:(i+1)*testDim]
				if f.Flags&wire.FlagRepeats != 0 || parts[len(parts)-1].Flags&wire.FlagRepeats != 0 {
					delete(sum, r)
				}
				sum.add(r, d)
			}
		}
		if err := b.Err(); err != nil {
			return nil, err
		}
	}
	return sum, nil
}

// back gives a shard the rows that it had at a clock.
func (v *server) back(to perdure.Clock) {
	v.rows, v.counts = v.between(0, to), words.Counts{Staged: to, Ticked: to, Applied: to, Seen: to}
}
