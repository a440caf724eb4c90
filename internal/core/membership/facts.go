package membership

import (
	"slices"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/recovery"
	"github.com/perdure/perdure/internal/core/words"
)

// Facts are what the coordinator records because it must survive the coordinator. Their methods answer questions that
// need nothing but the record. Whoever changes a record must not let anybody act on the change before it is durable.
// Nothing here is safe for concurrent use.

// Facts are what must survive the coordinator.
type Facts struct {
	Job          perdure.JobSpec `json:"job"`
	View         words.View      `json:"view"`
	Servers      []Place         `json:"servers"`
	Slots        []Place         `json:"slots"`
	ClocksRedone int64           `json:"clocks_redone"` // slot-clocks done, wholly or in part, and then done again
	lostUpdates

	Ending bool `json:"ending,omitempty"` // the slots pause so that the job's end can be named
	// Trying says that this end will be tentative.
	Trying bool `json:"trying,omitempty"`
	// Reached is the highest clock at which a slot requested this end. The end is at or after it, even if the slot's
	// process and its updates are lost before all slots have reported their clocks.
	Reached perdure.Clock `json:"reached,omitempty"`

	Change *Change `json:"change,omitempty"` // they pause so that its clock can be
	Told   uint64  `json:"told,omitempty"`   // the View.Roster that all shards have heard of

	Cutting bool          `json:"cutting,omitempty"`  // the slots pause so that a cut can be named
	CutTold perdure.Clock `json:"cut_told,omitempty"` // the View.Named that all shards have heard of
	Closing *Closing      `json:"closing,omitempty"`  // the job is to end, and a last checkpoint is wanted

	Saving words.Saving `json:"saving,omitzero"` // where the interval between checkpoints is chosen

	Running RunningCheckpoint `json:"running,omitzero"` // where each row is saved by itself

	// PastClocks counts the clocks of slots' spans before their present ones.
	PastClocks int64 `json:"past_clocks,omitempty"`
	// EarlierClocks counts all that were done in runs that this one goes on from: its rows begin with those.
	EarlierClocks int64 `json:"earlier_clocks,omitempty"`

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
	// Drained, of a server's place, is the newest incarnation of which others have taken over all that it held.
	Drained perdure.Incarnation `json:"drained,omitempty"`
	Left    bool                `json:"left,omitempty"` // a server's place that nobody is awaited for any more
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
	slotGaps
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
		Job:         job,
		Servers:     make([]Place, job.Servers),
		Slots:       make([]Place, job.Slots),
		lostUpdates: lostUpdates{ShardLost: make([]int64, job.Shards)},
		View: words.View{
			Revision: 1, Generation: generation, Cut: cut, Durable: cut, End: job.Clocks,
			Tables: tables,
			Shards: make([]words.ShardView, job.Shards),
			Slots:  make([]words.SlotView, job.Slots),
		},
	}
	for i := range f.View.Shards {
		f.View.Shards[i].Server = -1
	}
	if recovery.RoundsOf(job.Recovery).Any() {
		f.Running = NewRunning(job.Shards)
	}
	return f
}

// Clone returns a copy that later changes of the facts leave as it is.
func (f *Facts) Clone() Facts {
	g := *f
	g.Servers, g.Slots, g.lostUpdates = slices.Clone(f.Servers), slices.Clone(f.Slots), f.lostUpdates.Clone()
	g.View = f.View.Clone()
	return g
}

// Coming is the revision of the view that the present changes will be in.
func (f *Facts) Coming() uint64 { return f.View.Revision + 1 }

// Holder makes a server's present process a holder of what it has nothing of yet.
func (f *Facts) Holder(server int) words.Holder {
	p := &f.Servers[server]
	return words.Holder{Server: server, Incarnation: p.Incarnation, Addr: p.Addr, Since: f.Coming()}
}

// Draining returns a member of a shard's chain that wants to leave, -1 if there is
// none.
func (f *Facts) Draining(sv *words.ShardView) int {
	for i := range sv.Replicas() {
		if server := sv.Replica(i).Server; f.Servers[server].Draining {
			return server
		}
	}
	return -1
}

// Departed reports whether there is such a slot, and it has left the job.
func (f *Facts) Departed(slot int) bool {
	slots := f.View.Slots
	return slot >= 0 && slot < len(slots) && slots[slot].Left
}

// Abandoned reports whether a slot's process is gone, all shards agree on what it had
// done, and the others may go on without the rest.
func (f *Facts) Abandoned(slot int) bool {
	p, sl := &f.Slots[slot], &f.View.Slots[slot]
	return !f.TwoStep() && p.Process == "" && p.Incarnation > 0 && sl.Settled && !sl.Left
}

// Placed reports whether the shards have been given out.
func (f *Facts) Placed() bool { return f.View.Shards[0].Server >= 0 }

// TwoStep reports whether clocks are staged on all shards before they are ticked.
func (f *Facts) TwoStep() bool { return f.Job.TwoStep(f.View.Tables) }

// Repeats reports whether what a dead process had done is done again with the same
// result: all that is read is a function of the clock. What has been read of that, and
// then was lost with all shards that had it, nobody has to take back.
func (f *Facts) Repeats() bool {
	return f.TwoStep() && !slices.ContainsFunc(f.View.Tables,
		func(t perdure.TableSpec) bool { return !t.Consistency.TwoStep() })
}

// Closes reports whether the last cut is to be named: it was not yet, or there will be no
// checkpoint of it.
func (f *Facts) Closes() bool {
	last := f.Closing
	return last != nil && (!last.Named || f.View.Durable < last.Cut)
}

// CutFrom returns the first clock from the given one on of which there can be a cut, after
// those that there were. The job's end is one.
func (f *Facts) CutFrom(at perdure.Clock) perdure.Clock {
	at = max(at, f.View.Named+1)
	if end := f.End(); end > 0 {
		return min(at, end)
	}
	return at
}

// End returns the clock at which the job ends, unless a later decision lowers it: a tentative end does not count. 0:
// it has no end.
func (f *Facts) End() perdure.Clock {
	if f.View.Tentative {
		return f.Job.Clocks
	}
	return f.View.End
}

// Over reports whether nothing follows from anything any more.
func (f *Facts) Over() bool { return f.View.Done || f.Failed != "" }

// Saved returns the clock below which all updates of a slot are in a checkpoint.
func (f *Facts) Saved(slot int) perdure.Clock {
	return recovery.SavedUpTo(&f.View, recovery.EveryShard, perdure.Slot(slot))
}

// Closing is what is known of the last checkpoint of a job that is to end early.
type Closing struct {
	Named bool          `json:"named"` // it is named
	Cut   perdure.Clock `json:"cut"`   // of which clock
}

// scaledTo returns what has to change for a number of slots to take part.
func (f *Facts) Scaled(workers int, at perdure.Clock) (Change, error) {
	return scaledTo(f.View.Slots, workers, at)
}

// Apply takes a change over, of which the clock is known, and returns the slots that have joined.
func (f *Facts) Apply(ch Change, at perdure.Clock) (joined []int, err error) {
	v := &f.View
	before := slices.Clone(v.Slots)
	next, joined, past, err := ch.Apply(v.Slots, at)
	if next == nil {
		return nil, err
	}
	v.Slots, f.PastClocks = next, f.PastClocks+past
	f.Slots = append(f.Slots, make([]Place, len(next)-len(f.Slots))...)
	for _, i := range joined {
		p := Place{Incarnation: next[i].Incarnation, Guest: ch.Guest, Unkept: f.Slots[i].Unkept}
		if i < len(before) && before[i].Until > v.Durable && recovery.Of(f.Job.Recovery).Traits().Partial {
			p.Former = append(slices.Clone(f.Slots[i].Former), before[i].Span)
		}
		f.Slots[i] = p
	}
	v.Roster++
	return joined, err
}

// Plan lets n slots take part from a clock on, in a job that has not begun.
func (f *Facts) Plan(workers int, at perdure.Clock) error {
	v := &f.View
	ch, err := plannedChange(v, workers, at)
	if err == nil && (ch.Add > 0 || len(ch.Leave) > 0) {
		_, err = f.Apply(ch, at)
	}
	f.Told = v.Roster // nobody can come to a shard before it knows
	return err
}

// Resume begins with the slots that a checkpoint was saved with. past counts the clocks of spans before these.
func (f *Facts) Resume(saved []words.Span, past int64) {
	v := &f.View
	if len(saved) >= len(v.Slots) { // else nobody had joined or left
		v.Slots, f.Slots = resumedSlots(saved, v.Cut), make([]Place, len(saved))
		v.Roster, f.Told, f.PastClocks = 1, 1, past
	}
	f.EarlierClocks = f.SlotClocks(v.Cut)
}

// SlotClocks returns how many clocks all slots together take part in until clock end.
func (f *Facts) SlotClocks(end perdure.Clock) int64 {
	return f.PastClocks + slotClocks(f.View.Slots, end)
}
