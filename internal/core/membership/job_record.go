package membership

import (
	"slices"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/protocol"
	"github.com/perdure/perdure/internal/core/recovery"
)

// JobRecord is the job record: everything that must survive a restart of the coordinator. Its methods answer questions
// that need only the record. A change must be durable before anything acts on it. JobRecord is not safe for concurrent
// use.
type JobRecord struct {
	Job          perdure.JobSpec `json:"job"`
	View         protocol.View   `json:"view"`
	Servers      []Member        `json:"servers"`
	Slots        []Member        `json:"slots"`
	ClocksRedone int64           `json:"clocks_redone"` // slot-clocks done, completely or in part, and then done again
	lostUpdates

	EndRequested bool `json:"ending,omitempty"` // the slots pause so that the job's end can be named
	// EndTentative is set if this end will be tentative.
	EndTentative bool `json:"trying,omitempty"`
	// MinEnd is the highest clock at which a slot requested this end. The end is at or after it, even if the slot's
	// process and its updates are lost before all slots have reported their clocks.
	MinEnd perdure.Clock `json:"reached,omitempty"`

	Change      *Change `json:"change,omitempty"` // the slots pause so that this change's clock can be named
	KnownRoster uint64  `json:"told,omitempty"`   // the View.Roster that all shards have received

	CutRequested bool             `json:"cutting,omitempty"`  // the slots pause so that a cut can be named
	KnownCut     perdure.Clock    `json:"cut_told,omitempty"` // the View.Named that all shards have received
	Final        *FinalCheckpoint `json:"closing,omitempty"`  // the job is ending, and a last checkpoint is wanted

	Saving protocol.Saving `json:"saving,omitzero"` // if the interval between checkpoints is chosen automatically

	Running RunningCheckpoint `json:"running,omitzero"` // if each row is saved separately

	// PastClocks counts the clocks of former membership intervals of the slots.
	PastClocks int64 `json:"past_clocks,omitempty"`
	// EarlierClocks counts the clocks of the runs that this one resumes, which its initial rows contain.
	EarlierClocks int64 `json:"earlier_clocks,omitempty"`

	// FinalUpdates is the number of updates in the rows when the job was complete, set once the job is done. From then
	// on, the servers that hold the rows may end.
	FinalUpdates int64 `json:"contained,omitempty"`

	// Failed says in one line why the job cannot continue; "" while it can.
	Failed string `json:"failed,omitempty"`
}

// Member is a server index or a worker slot, together with the process that holds it.
type Member struct {
	Process     string              `json:"process"` // "": none
	PID         int                 `json:"pid"`
	Addr        string              `json:"addr,omitempty"`
	Incarnation perdure.Incarnation `json:"incarnation"`
	Zone        string              `json:"zone,omitempty"`     // of a server: its failure domain
	Draining    bool                `json:"draining,omitempty"` // a server that ends once others hold its replicas
	// Drained is set for a server index: the newest incarnation that has handed over all its replicas, and so may end.
	Drained perdure.Incarnation `json:"drained,omitempty"`
	Left    bool                `json:"left,omitempty"` // a server index that no longer waits for a process
	// a slot that was given up, and participates again when a process asks for it
	Suspended bool `json:"suspended,omitempty"`
	Unmanaged bool `json:"guest,omitempty"`   // a slot that was created for an unmanaged process
	AtCuts    bool `json:"at_cuts,omitempty"` // a slot whose process saves its state only at cuts
	// SavesOwn is set for a slot whose process saves its own state with each update, and all of it only at cuts. Its
	// next process needs the shared state of another process.
	SavesOwn bool `json:"saves_own,omitempty"`
	// UnretainedBelow is set for a slot if workers keep updates until a checkpoint contains them. The slot may have
	// updates of clocks below UnretainedBelow that no process keeps any more.
	UnretainedBelow perdure.Clock `json:"unkept,omitempty"`
	// FormerBelow is set for a slot: shards may have updates of clocks below it that former processes of the slot made.
	FormerBelow perdure.Clock `json:"made,omitempty"`
	slotGaps
	AnyIndex bool `json:"any,omitempty"` // it asked for any index, so no supervisor restarts it here
}

// Kind distinguishes server indices from worker slots.
type Kind string

// The two kinds.
const (
	Server Kind = "server"
	Worker Kind = "worker"
)

// NewJobRecord returns the record of a job without processes, at clock cut of the given generation: 0 and 1 for a new
// job, otherwise those of a checkpoint.
func NewJobRecord(job perdure.JobSpec, generation perdure.Generation, cut perdure.Clock,
	tables []perdure.TableSpec,
) JobRecord {
	f := JobRecord{
		Job:         job,
		Servers:     make([]Member, job.Servers),
		Slots:       make([]Member, job.Slots),
		lostUpdates: lostUpdates{ShardLost: make([]int64, job.Shards)},
		View: protocol.View{
			Revision: 1, Generation: generation, Cut: cut, Durable: cut, End: job.Clocks,
			Tables: tables,
			Shards: make([]protocol.ShardView, job.Shards),
			Slots:  make([]protocol.SlotView, job.Slots),
		},
	}
	for i := range f.View.Shards {
		f.View.Shards[i].Server = -1
	}
	if recovery.RoundsOf(job.Recovery).Any() {
		f.Running = NewRunningCheckpoint(job.Shards)
	}
	return f
}

// Clone returns a copy that does not change with f.
func (f *JobRecord) Clone() JobRecord {
	g := *f
	g.Servers, g.Slots, g.lostUpdates = slices.Clone(f.Servers), slices.Clone(f.Slots), f.lostUpdates.Clone()
	g.View = f.View.Clone()
	return g
}

// NextRevision returns the revision of the view that will contain the current changes.
func (f *JobRecord) NextRevision() uint64 { return f.View.Revision + 1 }

// Holder returns the server's current process as a holder of a replica that it starts to receive now.
func (f *JobRecord) Holder(server int) protocol.Holder {
	p := &f.Servers[server]
	return protocol.Holder{Server: server, Incarnation: p.Incarnation, Addr: p.Addr, Since: f.NextRevision()}
}

// Draining returns the index of a server that is draining and holds a replica of the shard with view sv; -1: none.
func (f *JobRecord) Draining(sv *protocol.ShardView) int {
	for i := range sv.Replicas() {
		if server := sv.Replica(i).Server; f.Servers[server].Draining {
			return server
		}
	}
	return -1
}

// Departed reports whether a slot exists and has left the job.
func (f *JobRecord) Departed(slot int) bool {
	slots := f.View.Slots
	return slot >= 0 && slot < len(slots) && slots[slot].Left
}

// Abandoned reports whether a slot has lost its process, all shards agree on what that process had done, and the other
// slots may continue without the rest.
func (f *JobRecord) Abandoned(slot int) bool {
	p, sl := &f.Slots[slot], &f.View.Slots[slot]
	return !f.TwoStep() && p.Process == "" && p.Incarnation > 0 && sl.Settled && !sl.Left
}

// Placed reports whether the shards have been assigned.
func (f *JobRecord) Placed() bool { return f.View.Shards[0].Server >= 0 }

// TwoStep reports whether clocks are two-step clocks: all slots wait for each other.
func (f *JobRecord) TwoStep() bool { return f.Job.TwoStep(f.View.Tables) }

// SavesAtCuts reports whether the program of a slot, or of any, saves its state only in the clocks that end at a cut:
// its process has said so, or the job has a transient table.
func (f *JobRecord) SavesAtCuts(slot int) bool {
	says := func(p Member) bool { return p.AtCuts }
	return slices.ContainsFunc(f.View.Tables, func(t perdure.TableSpec) bool { return t.Transient }) ||
		slot == AnySlot && slices.ContainsFunc(f.Slots, says) || slot != AnySlot && says(f.Slots[slot])
}

const AnySlot = -1 // an argument of SavesAtCuts

// IsRepeatable reports whether a replacement process repeats a dead process's work with the same result, because
// everything it reads is a function of the clock. If a read update is then lost with every shard that had it, no reader
// has to undo anything.
func (f *JobRecord) IsRepeatable() bool {
	return f.TwoStep() && !slices.ContainsFunc(f.View.Tables,
		func(t perdure.TableSpec) bool { return !t.Consistency.TwoStep() })
}

// AwaitsFinal reports whether a last checkpoint is wanted and is not durable yet.
func (f *JobRecord) AwaitsFinal() bool {
	last := f.Final
	return last != nil && (!last.Named || f.View.Durable < last.Cut)
}

// CutFrom returns the first clock, not before at, for which a cut can be named after all earlier cuts. It is at most
// the job's end, which is a cut itself.
func (f *JobRecord) CutFrom(at perdure.Clock) perdure.Clock {
	at = max(at, f.View.Named+1)
	if end := f.End(); end > 0 {
		return min(at, end)
	}
	return at
}

// End returns the clock at which the job ends, unless a later decision lowers it: a tentative end does not count. 0:
// the job has no end.
func (f *JobRecord) End() perdure.Clock {
	if f.View.Tentative {
		return f.Job.Clocks
	}
	return f.View.End
}

// IsOver reports whether the job is done or has failed, so that no further decision is needed.
func (f *JobRecord) IsOver() bool { return f.View.Done || f.Failed != "" }

// Saved returns the clock below which a checkpoint contains all updates of a slot.
func (f *JobRecord) Saved(slot int) perdure.Clock {
	return recovery.SavedUpTo(&f.View, recovery.EveryShard, perdure.Slot(slot))
}

// IsSaved reports whether a checkpoint contains everything below a clock.
func (f *JobRecord) IsSaved(end perdure.Clock) bool {
	v := &f.View
	if v.DurableClocks == nil {
		return v.Durable >= end
	}
	for i := range v.Slots {
		if sl := &v.Slots[i]; !sl.Left && sl.Clamp(v.Saved(perdure.Slot(i))) < sl.Clamp(end) {
			return false
		}
	}
	return true
}

// FinalCheckpoint describes the last checkpoint of a job that ends early.
type FinalCheckpoint struct {
	Named bool          `json:"named"` // the cut has been named
	Cut   perdure.Clock `json:"cut"`   // its clock
}

// Scaled returns the change that is needed for the given number of slots to participate.
func (f *JobRecord) Scaled(workers int, at perdure.Clock) (Change, error) {
	return scaledTo(f.View.Slots, workers, at)
}

// Apply applies a change whose clock is known, and returns the slots that have joined.
func (f *JobRecord) Apply(ch Change, at perdure.Clock) (joined []int, err error) {
	v := &f.View
	before := slices.Clone(v.Slots)
	reusable := perdure.MaxClock
	if f.SavesAtCuts(AnySlot) {
		reusable = v.Durable - 1 // the state that a slot saved for its last clock may be needed by others in a rollback
	}
	next, joined, past, err := ch.Apply(v.Slots, at, reusable)
	if next == nil {
		return nil, err
	}
	v.Slots, f.PastClocks = next, f.PastClocks+past
	f.Slots = append(f.Slots, make([]Member, len(next)-len(f.Slots))...)
	for _, i := range joined {
		p := Member{
			Incarnation: next[i].Incarnation, Unmanaged: ch.Unmanaged,
			UnretainedBelow: f.Slots[i].UnretainedBelow,
		}
		partial := recovery.TraitsOf(&f.Job).Partial
		if i < len(before) && before[i].Until > v.Saved(perdure.Slot(i)) && partial {
			p.Former = append(slices.Clone(f.Slots[i].Former), before[i].Interval)
		}
		f.Slots[i] = p
	}
	v.Roster++
	if err == nil && f.SavesAtCuts(AnySlot) {
		err = checkCovered(v.Intervals(), at, true)
	}
	return joined, err
}

// Plan makes the given number of slots participate from a clock on, in a job that has not started.
func (f *JobRecord) Plan(workers int, at perdure.Clock) error {
	v := &f.View
	ch, err := plannedChange(v, workers, at)
	if err == nil && (ch.Add > 0 || len(ch.Leave) > 0) {
		_, err = f.Apply(ch, at)
	}
	f.KnownRoster = v.Roster // no process can connect to a shard before the shard knows
	return err
}

// Resume starts with the slots that a checkpoint was saved with, and with their clocks if it is a cut by slot. past
// counts the clocks of earlier membership intervals.
func (f *JobRecord) Resume(saved []protocol.Interval, clocks protocol.SlotClocks, past int64) {
	v := &f.View
	v.CutClocks, v.DurableClocks = clocks, clocks
	if len(saved) >= len(v.Slots) { // otherwise no slot had joined or left
		v.Slots, f.Slots = resumedSlots(saved, v), make([]Member, len(saved))
		v.Roster, f.KnownRoster, f.PastClocks = 1, 1, past
	}
	f.EarlierClocks = f.PastClocks
	for i := range v.Slots {
		f.EarlierClocks += int64(v.Slots[i].Clocks(clocks.Of(perdure.Slot(i), v.Cut)))
	}
}

// SlotClocks returns the total number of clocks, below end, in which slots participate.
func (f *JobRecord) SlotClocks(end perdure.Clock) int64 {
	return f.PastClocks + slotClocks(f.View.Slots, end)
}
