package membership

import (
	"slices"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/gaps"
	"github.com/perdure/perdure/internal/core/recovery"
	"github.com/perdure/perdure/internal/core/running"
)

// Facts are what must survive the coordinator.
type Facts struct {
	Job          perdure.JobSpec `json:"job"`
	View         perdure.View    `json:"view"`
	Servers      []Place         `json:"servers"`
	Slots        []Place         `json:"slots"`
	ClocksRedone int64           `json:"clocks_redone"` // slot-clocks done, wholly or in part, and then done again
	gaps.Ledger

	Ending bool    `json:"ending,omitempty"` // the slots pause so that the job's end can be named
	Change *Change `json:"change,omitempty"` // they pause so that its clock can be
	Told   uint64  `json:"told,omitempty"`   // the View.Roster that all shards have heard of

	Cutting bool          `json:"cutting,omitempty"`  // the slots pause so that a cut can be named
	CutTold perdure.Clock `json:"cut_told,omitempty"` // the View.Named that all shards have heard of
	Closing *Closing      `json:"closing,omitempty"`  // the job is to end, and a last checkpoint is wanted

	Saving perdure.Saving `json:"saving,omitzero"` // where the interval between checkpoints is chosen

	Running running.Checkpoint `json:"running,omitzero"` // where each row is saved by itself

	// PastClocks counts the clocks of slots' spans before their present ones.
	PastClocks int64 `json:"past_clocks,omitempty"`

	// Contained is how many updates the rows had when the job was complete, once it is
	// done: who held them may go then.
	Contained int64 `json:"contained,omitempty"`

	// Failed says why the job can not go on, in one line; "" while it can.
	Failed string `json:"failed,omitempty"`
}

// Place is a server's number or a worker's slot, and the process that has it.
type Place struct {
	Process     string              `json:"process"` // "": nobody
	PID         int                 `json:"pid"`
	Addr        string              `json:"addr,omitempty"`
	Incarnation perdure.Incarnation `json:"incarnation"`
	Zone        string              `json:"zone,omitempty"` // of a server: the failure domain that it is in
	// a server that is to end, once others have what it holds
	Draining bool `json:"draining,omitempty"`
	Left     bool `json:"left,omitempty"` // a server's place that nobody is awaited for any more
	// a slot that was given up, and takes part again when a process comes for it
	Suspended bool `json:"suspended,omitempty"`
	Guest     bool `json:"guest,omitempty"`   // a slot that was made for a process that came by itself
	AtCuts    bool `json:"at_cuts,omitempty"` // a slot whose process saves what it must keep for cuts only
	// Unkept, of a slot where workers keep their updates until they are in a checkpoint:
	// of the clocks below it there may be updates that no process keeps any more.
	Unkept perdure.Clock `json:"unkept,omitempty"`
	// Made, of a slot: of the clocks below it some shard may have updates that its former
	// processes made.
	Made perdure.Clock `json:"made,omitempty"`
	gaps.Slot
	Any bool `json:"any,omitempty"` // it asked for any place: nobody starts its next process in this one
}

// Kind says whether a place is a server's or a worker's.
type Kind string

// The kinds of places.
const (
	Server Kind = "server"
	Worker Kind = "worker"
)

// Begin returns the facts of a job that nobody has joined yet, at clock cut of
// the given generation: 0 and 1 for a fresh one, else a checkpoint's.
func Begin(job perdure.JobSpec, generation perdure.Generation, cut perdure.Clock, tables []perdure.TableSpec) Facts {
	f := Facts{
		Job:     job,
		Servers: make([]Place, job.Servers),
		Slots:   make([]Place, job.Slots),
		Ledger:  gaps.Ledger{ShardLost: make([]int64, job.Shards)},
		View: perdure.View{
			Revision: 1, Generation: generation, Cut: cut, Durable: cut, End: job.Clocks,
			Tables: tables,
			Shards: make([]perdure.ShardView, job.Shards),
			Slots:  make([]perdure.SlotView, job.Slots),
		},
	}
	for i := range f.View.Shards {
		f.View.Shards[i].Server = -1
	}
	if recovery.RoundsOf(job.Recovery).Any() {
		f.Running = running.New(job.Shards)
	}
	return f
}

// Clone returns a copy that later changes of the facts leave as it is.
func (f *Facts) Clone() Facts {
	g := *f
	g.Servers, g.Slots, g.Ledger = slices.Clone(f.Servers), slices.Clone(f.Slots), f.Ledger.Clone()
	g.View = f.View.Clone()
	return g
}

// coming is the revision of the view that the present changes will be in.
func (f *Facts) coming() uint64 { return f.View.Revision + 1 }

// holder makes a server's present process a holder of what it has nothing of yet.
func (f *Facts) holder(server int) perdure.Holder {
	p := &f.Servers[server]
	return perdure.Holder{Server: server, Incarnation: p.Incarnation, Addr: p.Addr, Since: f.coming()}
}

// draining returns a member of a shard's chain that wants to leave, -1 if there is
// none.
func (f *Facts) draining(sv *perdure.ShardView) int {
	for i := range sv.Replicas() {
		if server := sv.Replica(i).Server; f.Servers[server].Draining {
			return server
		}
	}
	return -1
}

// departed reports whether there is such a slot, and it has left the job.
func (f *Facts) departed(slot int) bool {
	slots := f.View.Slots
	return slot >= 0 && slot < len(slots) && slots[slot].Left
}

// abandoned reports whether a slot's process is gone, all shards agree on what it had
// done, and the others may go on without the rest.
func (f *Facts) abandoned(slot int) bool {
	p, sl := &f.Slots[slot], &f.View.Slots[slot]
	return !f.twoStep() && p.Process == "" && p.Incarnation > 0 && sl.Settled && !sl.Left
}

// placed reports whether the shards have been given out.
func (f *Facts) placed() bool { return f.View.Shards[0].Server >= 0 }

func (f *Facts) twoStep() bool { return f.Job.TwoStep(f.View.Tables) }

// repeats reports whether what a dead process had done is done again with the same
// result: all that is read is a function of the clock. What has been read of that, and
// then was lost with all shards that had it, nobody has to take back.
func (f *Facts) repeats() bool {
	return f.twoStep() && !slices.ContainsFunc(f.View.Tables,
		func(t perdure.TableSpec) bool { return !t.Consistency.TwoStep() })
}

// closes reports whether the last cut is to be named: it was not yet, or there will be no
// checkpoint of it.
func (f *Facts) closes() bool {
	last := f.Closing
	return last != nil && (!last.Named || f.View.Durable < last.Cut)
}

// cutFrom returns the first clock from the given one on of which there can be a cut, after
// those that there were. The job's end is one.
func (f *Facts) cutFrom(at perdure.Clock) perdure.Clock {
	at = max(at, f.View.Named+1)
	if end := f.View.End; end > 0 {
		return min(at, end)
	}
	return at
}

// over reports whether nothing follows from anything any more.
func (f *Facts) over() bool { return f.View.Done || f.Failed != "" }

// saved returns the clock below which all updates of a slot are in a checkpoint.
func (f *Facts) saved(slot int) perdure.Clock {
	return recovery.SavedUpTo(&f.View, recovery.EveryShard, perdure.Slot(slot))
}
