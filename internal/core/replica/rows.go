package replica

import (
	"errors"
	"fmt"
	"slices"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/consistency"
	"github.com/perdure/perdure/internal/core/placement"
	"github.com/perdure/perdure/internal/core/protocol"
	"github.com/perdure/perdure/internal/core/slotstate"
	"github.com/perdure/perdure/internal/data/table"
	"github.com/perdure/perdure/internal/data/wire"
)

// ErrEarly means that an update names a table that the log does not have yet.
var ErrEarly = errors.New("replica: the table is not in the log yet")

// Content is the state that a shard is restored to: rows as of one moment, and the updates in them.
type Content struct {
	Parts    []*table.Part        // by table
	States   [][]byte             // by slot: the state that its program saved last
	Applied  []perdure.Clock      // by slot: how many of its clocks are contained
	Seq      uint64               // number of updates contained
	RowFiles *RowFiles            // the rows' files if each row was saved separately; else nil
	Kept     []protocol.SavedRows // of a lost shard: how many rows come from each file, and how many from none
}

// RowFiles describes the files of rows that were saved separately.
type RowFiles struct {
	Files     []protocol.SegmentFile // oldest first
	FileIndex [][]int32              // by table, by position: index of the row's file; -1: initial value
	// SavedValues are the saved rows, where they have changed since; nil if they are unchanged.
	SavedValues []*table.Part
}

// rows are what updates change: the rows of all tables, and the states that slots' programs have saved. They are a
// function of the log alone, and equal on all replicas.
type rows struct {
	shard    perdure.ShardID
	job      *perdure.JobSpec
	parts    []*table.Part // by table
	states   [][]byte      // by slot: the state that its program saved last, as of the applied vector
	seq      uint64        // number of updates that the rows contain
	scales   bool          // updates are scaled down by their age
	distant  bool          // slots may be far apart, because all tables use asp, and progress is needed
	worked   float64       // in that case: clocks applied since the start, each divided by the number of slots
	scaled   scaled
	unpacked []float32 // scratch: the unpacked values of a block
}

// scaled is the factor that multiplies an update's deltas before they are applied. It follows from the log
// alone, so that all replicas and every replay compute the same.
type scaled struct {
	by     float32 // 1: deltas are applied unchanged
	deltas []float32
}

// progress returns the clock that stands for the progress of the shard. It is MinClock, unless slots may be far apart:
// one that stands must not stop what happens every few clocks.
func (w *rows) progress(in *consistency.Sequencer) perdure.Clock {
	if w.distant {
		return max(in.MinClock(), perdure.Clock(w.worked))
	}
	return in.MinClock()
}

// count counts an applied update.
func (w *rows) count(u *consistency.Update, in *consistency.Sequencer) {
	w.seq += uint64(u.Clocks)
	if w.distant {
		w.worked += float64(u.Clocks) / float64(max(1, in.NumParticipants(u.Clock)))
	}
}

// scale computes the factor for an update that is applied at the given MinClock.
func (w *rows) scale(u *consistency.Update, minClock perdure.Clock, in *consistency.Sequencer) {
	w.scaled.by = 1
	if n := len(u.Parts); w.scales && n > 0 {
		b := wire.ReadBlocks(u.Parts[n-1])
		for b.Next() {
		}
		origin := consistency.Origin{Basis: b.Basis, Lag: b.Lag, DuringOutage: b.InOutage}
		w.scaled.by = consistency.Scale(w.job.StaleScale, origin, minClock, in.NumParticipants(u.Clock))
	}
}

// scaledValues returns a block's values, scaled by the update's age. It does not modify the block.
func (w *rows) scaledValues(b *wire.Block) []float32 {
	s, deltas := &w.scaled, b.Values
	if s.by == 1 || !w.job.StaleScale.AppliesTo(w.parts[b.Table].Spec.Rule) {
		return deltas
	}
	s.deltas = append(s.deltas[:0], deltas...)
	for i := range s.deltas {
		s.deltas[i] *= s.by
	}
	return s.deltas
}

// fits returns an error unless the block's table exists and the number of values matches its rows.
func (w *rows) fits(b *wire.Block) error {
	if int(b.Table) >= len(w.parts) || len(b.Values) != b.Count*w.parts[b.Table].Spec.Dim {
		return fmt.Errorf("%w: a block has %d values for %d rows of table %d (of %d), which does not match the job's "+
			"tables",
			wire.ErrPayload, len(b.Values), b.Count,
			b.Table, len(w.parts))
	}
	return nil
}

// apply changes the rows by a block of an update whose last clock is given.
func (w *rows) apply(b *wire.Block, last perdure.Clock) error {
	if err := w.fits(b); err != nil {
		return err
	}
	return w.parts[b.Table].ApplyRows(b.First, b.IDs, b.Count, w.scaledValues(b), last)
}

// add adds this shard's part of a table, with initial rows.
func (w *rows) add(spec perdure.TableSpec) {
	first, n := placement.Range(&spec, w.job.Shards, w.shard)
	w.parts = append(w.parts, table.New(spec, perdure.TableID(len(w.parts)), w.job.Seed, first, n))
}

// specs returns the specifications of all tables.
func (w *rows) specs() (specs []perdure.TableSpec) {
	for _, p := range w.parts {
		specs = append(specs, p.Spec)
	}
	return specs
}

// check rejects rows that do not belong to this shard, and a number of values that does not match the rows.
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

// checkUpdate rejects an update that cannot be applied, before any part of it is. tables is the number of tables that
// the job has by now.
func (w *rows) checkUpdate(payload []byte, tables int) error {
	b := wire.ReadBlocks(payload)
	for b.Next() {
		if int(b.Table) >= len(w.parts) {
			if int(b.Table) < tables {
				return ErrEarly
			}
			return fmt.Errorf("an update is for table %d, but the job has %d tables", b.Table, len(w.parts))
		}
		p := w.parts[b.Table]
		if err := w.check(p, &b.Rows, b.Len); err != nil {
			return err
		}
		if p.Spec.NonFinite == perdure.AllowNonFinite {
			continue
		}
		if k := table.FirstNonFinite(b.Sent); k >= 0 { // omitted values are 0
			at := b.Index(k)
			return fmt.Errorf("%w: value %d of row %d of table %s is %v",
				perdure.ErrNonFinite, at%p.Spec.Dim, b.ID(at/p.Spec.Dim), p.Spec.Name, b.Sent[k])
		}
	}
	return b.Err()
}

// checkRead rejects a read that cannot be answered.
func (w *rows) checkRead(rd *Read, slots int) error {
	p := w.parts[rd.Rows.Table]
	if rd.Scan {
		if !p.Spec.Sparse || rd.Rows.IDs != nil {
			return fmt.Errorf("table %s is not sparse: its stored rows cannot be listed", p.Spec.Name)
		}
		return nil
	}
	n := rd.Rows.Count * p.Spec.Dim
	if err := w.check(p, &rd.Rows, n); err != nil {
		return err
	}
	if wire.AnswerHeaderBytes(slots)+4*n > wire.MaxPayload {
		return fmt.Errorf("a read of %d rows of table %s: the answer does not fit in %d bytes; read fewer rows",
			rd.Rows.Count, p.Spec.Name, wire.MaxPayload)
	}
	return nil
}

// saved returns the state that a slot's program saved last before a clock. It includes updates that are ticked but not
// yet applied.
func (w *rows) saved(slot perdure.Slot, clock perdure.Clock, in *consistency.Sequencer) ([]byte, error) {
	if slot < 0 || int(slot) >= len(w.states) {
		return nil, fmt.Errorf("the saved state of slot %d was requested, but the job has %d slots", slot,
			len(w.states))
	}
	state := w.states[slot]
	for _, u := range in.Pending(slot) {
		if !u.Ticked() || u.Clock >= clock {
			break
		}
		if u.Lost {
			state = slotstate.MarkGap(state, u.Last()+1)
		}
		for _, payload := range u.Parts {
			b := wire.ReadBlocks(payload)
			for b.Next() {
			}
			state = slotstate.ApplyUpdate(state, b.State, u.Last()+1)
		}
	}
	return slices.Clone(state), nil
}

// bytes returns the approximate size of a save of the changed rows, and of one of all rows.
func (w *rows) bytes() (changed, all int64) {
	for _, p := range w.parts {
		c, a := p.ChangedBytes()
		changed, all = changed+c, all+a
	}
	return changed, all
}
