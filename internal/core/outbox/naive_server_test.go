package outbox

import (
	"fmt"
	"maps"
	"slices"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/protocol"
	"github.com/perdure/perdure/internal/data/wire"
)

// This file has the servers of the naive twin: each keeps the effect of every clock on its rows.

// row identifies a row of a table.
type row struct {
	t    perdure.TableID
	id   perdure.RowID
	sets bool // the table's rule is set
}

// row returns the identity of a row. In every second job, the second table has the rule set.
func (w *world) row(t perdure.TableID, id perdure.RowID) row {
	return row{t, id, w.view.Tables[t].Rule.Kind == perdure.RuleSet}
}

// change is the effect of updates on rows.
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

// equal compares the nonzero values.
func (c change) equal(other change) bool {
	isZero := func(_ row, v [testDim]float32) bool { return v == [testDim]float32{} }
	a, b := maps.Clone(c), maps.Clone(other)
	maps.DeleteFunc(a, isZero)
	maps.DeleteFunc(b, isZero)
	return maps.Equal(a, b)
}

// sent is a frame in transit, with its original content.
type sent struct {
	wire.Frame
	copied []byte
	entry  *Update // for the log: the update that it completes
}

func (f *sent) bytes() []byte { return slices.Concat(f.Payload, f.Body) }

// server is a naive shard, and the connection to it.
type server struct {
	s      *Shard
	open   bool
	way    []sent // not received yet, in order
	lost   []sent // queued on broken connections
	counts protocol.Counts
	rows   change
	staged map[perdure.Clock]change // not applied yet, by first clock
	until  map[perdure.Clock]perdure.Clock
	parts  []sent        // received parts of an incomplete update
	log    []sent        // everything ever appended
	read   int           // number of entries read
	acked  int           // number of entries that the log has acknowledged
	whole  perdure.Clock // updates of clocks below this are among the acknowledged entries
	was    []change      // by clock: its effect, past or future
	// The shard had the clocks below this when the current process took over the slot.
	inherited perdure.Clock
}

// forget drops what a server has received and not staged.
func (v *server) forget() {
	v.staged, v.until, v.parts = map[perdure.Clock]change{}, map[perdure.Clock]perdure.Clock{}, nil
}

// receive plays the naive server.
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
			if w.b.jobView.cuts.Has(cut) {
				return fmt.Errorf("an update of clocks %d to %d extends across the cut %d", f.Clock, until-1, cut)
			}
		}
		if until <= c.Staged {
			return nil
		}
		if f.Clock != c.Staged {
			return fmt.Errorf("an update of clocks %d to %d reaches a shard that has %d clocks",
				f.Clock, until-1, c.Staged)
		}
		if until-f.Clock > 1 {
			w.did["merged"]++
		}
		if f.Part == 0 {
			v.parts = nil
		}
		if int(f.Part) != len(v.parts) {
			return fmt.Errorf("part %d of clock %d arrives after %d others", f.Part, f.Clock, len(v.parts))
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
			return fmt.Errorf("the update of clocks %d to %d has %v, want %v", f.Clock, until-1, sum, want)
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

// between returns the combined effect of clocks on a shard's rows.
func (v *server) between(from, to perdure.Clock) change {
	sum := change{}
	for c := from; c < to; c++ {
		sum.addAll(v.was[c])
	}
	return sum
}

// unpack decodes an update.
func (w *world) unpack(parts []sent) (change, error) {
	sum := change{}
	for _, f := range parts {
		b := wire.ReadBlocks(f.Payload)
		for b.Next() {
			for i := range b.Count {
				r, d := w.row(b.Table, b.ID(i)), b.Sent[i*testDim:(i+1)*testDim]
				if f.Flags&wire.FlagDuplicateRows != 0 || parts[len(parts)-1].Flags&wire.FlagDuplicateRows != 0 {
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

// back resets a shard to the rows that it had at a clock.
func (v *server) back(to perdure.Clock) {
	v.rows, v.counts = v.between(0, to), protocol.Counts{Staged: to, Ticked: to, Applied: to, Seen: to}
}
