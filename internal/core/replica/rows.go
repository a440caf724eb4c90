package replica

import (
	"errors"
	"fmt"
	"slices"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/consistency"
	"github.com/perdure/perdure/internal/core/placement"
	"github.com/perdure/perdure/internal/core/states"
	"github.com/perdure/perdure/internal/core/words"
	"github.com/perdure/perdure/internal/data/table"
	"github.com/perdure/perdure/internal/data/wire"
)

// ErrEarly means that an update is of a table that the log does not have yet.
var ErrEarly = errors.New("replica: the table is on its way")

// Content is what a shard is restored to: its rows of one moment, and what they contain.
type Content struct {
	Parts   []*table.Part   // by table
	States  [][]byte        // by slot: what its program saved last
	Applied []perdure.Clock // by slot: its clocks that are contained
	Seq     uint64          // updates that are contained
	Saved   *Saved          // where each row was saved by itself; else nil
	Kept    []words.Kept    // of a lost shard's rows, how many are of which file, and of none
}

// Saved says of rows, of which each was saved by itself, which files they are from.
type Saved struct {
	Files []words.SegmentFile // the oldest first
	Layer [][]int32           // by table, by position: index of the row's file; -1: it is initial
	// Past are the rows as they were saved, where they have changed since; nil: they are as they were.
	Past []*table.Part
}

// rows are what updates change: rows of all tables, and what slots' programs have saved. They
// are a function of the log alone, on every replica the same.
type rows struct {
	shard  perdure.ShardID
	job    *perdure.JobSpec
	parts  []*table.Part // by table
	states [][]byte      // by slot: what its program saved last, as of the applied vector
	seq    uint64        // updates that the rows contain
	scales bool          // updates are weakened by their age
	scaled scaled
	room   []float32 // scratch: a block's values that came packed
}

// scaled is what an update's deltas are multiplied with before they are applied: it
// follows from the log alone, so that all replicas, and every replay, do the same.
type scaled struct {
	by     float32 // 1: they are applied as they are
	deltas []float32
}

// scale looks how old an update is that is applied at a MinClock.
func (w *rows) scale(u *consistency.Update, minClock perdure.Clock, in *consistency.Intake) {
	w.scaled.by = 1
	if n := len(u.Parts); w.scales && n > 0 {
		b := wire.ReadBlocks(u.Parts[n-1])
		for b.Next() {
		}
		origin := consistency.Origin{Basis: b.Basis, Lag: b.Lag, Alone: b.Alone}
		w.scaled.by = consistency.Scale(w.job.StaleScale, origin, minClock, in.Slots(u.Clock))
	}
}

// aged returns a block's values as they are applied; they themselves stay as they
// are.
func (w *rows) aged(b *wire.Block) []float32 {
	s, deltas := &w.scaled, b.Values
	if s.by == 1 || !w.job.StaleScale.Weakens(w.parts[b.Table].Spec.Rule) {
		return deltas
	}
	s.deltas = append(s.deltas[:0], deltas...)
	for i := range s.deltas {
		s.deltas[i] *= s.by
	}
	return s.deltas
}

// fits reports what is wrong with a block, which must be of a table that there is, with as
// many values as its rows have.
func (w *rows) fits(b *wire.Block) error {
	if int(b.Table) >= len(w.parts) || len(b.Values) != b.Count*w.parts[b.Table].Spec.Dim {
		return fmt.Errorf("%w: %d values for %d rows of table %d of %d", wire.ErrPayload, len(b.Values), b.Count,
			b.Table, len(w.parts))
	}
	return nil
}

// apply changes rows by a block of an update whose last clock is given.
func (w *rows) apply(b *wire.Block, last perdure.Clock) error {
	if err := w.fits(b); err != nil {
		return err
	}
	return w.parts[b.Table].ApplyRows(b.First, b.IDs, b.Count, w.aged(b), last)
}

// add makes a table's part with its initial rows.
func (w *rows) add(spec perdure.TableSpec) {
	first, n := placement.Range(&spec, w.job.Shards, w.shard)
	w.parts = append(w.parts, table.New(spec, perdure.TableID(len(w.parts)), w.job.Seed, first, n))
}

// specs are the tables that there are.
func (w *rows) specs() (specs []perdure.TableSpec) {
	for _, p := range w.parts {
		specs = append(specs, p.Spec)
	}
	return specs
}

// check refuses rows that are not this shard's, and a number of values that is not theirs.
func (w *rows) check(p *table.Part, rows *wire.Rows, values int) error {
	if err := p.CheckRows(rows.First, rows.IDs, rows.Count, values); err != nil || !p.Spec.Sparse {
		return err
	}
	for _, id := range rows.IDs {
		if at := placement.ShardOf(&p.Spec, w.job.Shards, id); at != w.shard {
			return fmt.Errorf("%w: row %d of table %s is on shard %d, not on shard %d", table.ErrRow, id, p.Spec.Name,
				at, w.shard)
		}
	}
	return nil
}

// checkUpdate refuses an update that could not be applied, before any of it is. By now
// the job has a number of tables.
func (w *rows) checkUpdate(payload []byte, tables int) error {
	b := wire.ReadBlocks(payload)
	for b.Next() {
		if int(b.Table) >= len(w.parts) {
			if int(b.Table) < tables {
				return ErrEarly
			}
			return fmt.Errorf("update of table %d; the job has %d tables", b.Table, len(w.parts))
		}
		p := w.parts[b.Table]
		if err := w.check(p, &b.Rows, b.Len); err != nil {
			return err
		}
		if p.Spec.NonFinite == perdure.AllowNonFinite {
			continue
		}
		if k := table.FirstNonFinite(b.Given); k >= 0 { // what was left out is 0
			at := b.Place(k)
			return fmt.Errorf("%w: value %d of row %d of table %s is %v",
				perdure.ErrNonFinite, at%p.Spec.Dim, b.ID(at/p.Spec.Dim), p.Spec.Name, b.Given[k])
		}
	}
	return b.Err()
}

// checkRead refuses a read that cannot be answered.
func (w *rows) checkRead(rd *Read, slots int) error {
	p := w.parts[rd.Rows.Table]
	if rd.Scan {
		if !p.Spec.Sparse || rd.Rows.IDs != nil {
			return fmt.Errorf("table %s is not sparse: nobody asks for the rows that it stores", p.Spec.Name)
		}
		return nil
	}
	n := rd.Rows.Count * p.Spec.Dim
	if err := w.check(p, &rd.Rows, n); err != nil {
		return err
	}
	if wire.AnswerHeaderBytes(slots)+4*n > wire.MaxPayload {
		return fmt.Errorf("%d rows of table %s asked for at once: the answer does not fit in %d bytes", rd.Rows.Count,
			p.Spec.Name, wire.MaxPayload)
	}
	return nil
}

// saved returns what a slot's program saved last before a clock: with its newest update that
// counts, applied or not.
func (w *rows) saved(slot perdure.Slot, clock perdure.Clock, in *consistency.Intake) ([]byte, error) {
	if slot < 0 || int(slot) >= len(w.states) {
		return nil, fmt.Errorf("saved state of slot %d of a job of %d", slot, len(w.states))
	}
	state := w.states[slot]
	for _, u := range in.Pending(slot) {
		if !u.Ticked() || u.Clock >= clock {
			break
		}
		if u.Lost {
			state = states.Lose(state, u.Last()+1)
		}
		for _, payload := range u.Parts {
			b := wire.ReadBlocks(payload)
			for b.Next() {
			}
			state = states.Next(state, b.State, u.Last()+1)
		}
	}
	return slices.Clone(state), nil
}

// bytes returns about how many bytes a save of what has changed would have, and one of all.
func (w *rows) bytes() (changed, all int64) {
	for _, p := range w.parts {
		c, a := p.ChangedBytes()
		changed, all = changed+c, all+a
	}
	return changed, all
}
