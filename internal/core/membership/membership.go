// Package membership implements the coordinator's decisions as a pure state machine: which server holds which shard,
// which process speaks for which slot, and what happens to the job when a process dies.
//
// [Core] takes observations: a process connected, sent its status or left, or time passed. It returns a [Ready]: a job
// record that must be durable BEFORE anything is sent, and then the messages to send. A Core compares the state that
// the record prescribes with the state that it observed last, and takes the next step towards it. Repeated observations
// are therefore harmless, and so is losing all of them when the coordinator restarts.
//
// Invariants:
//   - A view's revision grows with every change of the job record.
//   - A slot's process speaks only after all shards have fenced its predecessors and carried out the decision about
//     their last clock (Settled).
//   - Under two-step clocks a decision is based on the counts of all shards, all of them fenced, so a clock is ticked
//     on every shard or on none.
//   - A shard is given to a new process only in a higher epoch; a rollback has a higher generation, recorded together
//     with its cut.
//
// A Core is not safe for concurrent use.
package membership

import (
	"cmp"
	"fmt"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/failuredetector"
	"github.com/perdure/perdure/internal/core/mutation"
	"github.com/perdure/perdure/internal/core/placement"
	"github.com/perdure/perdure/internal/core/protocol"
	"github.com/perdure/perdure/internal/core/recovery"
)

// Event is a message for users.
type Event struct {
	// placed, detected, suspected, dropped, rollback, lost, restored, serving, joined, moved,
	// draining, drained, trouble, copying, cut, checkpoint, interval, end, complete, failed
	Kind   string
	Target string // "server:0"
	Text   string
	Output string // the last output lines of a program, if they help explain the event
	// Vacated reports, of detected, that a worker left its slot without a failure.
	Vacated bool
}

// GaveUpSlot is the argument how of ProcessDied for a worker that leaves its slot without a failure. To the job it is
// dead, so that another process gets the slot immediately.
const GaveUpSlot = "gave up its slot"

// Kill names a process that must be dead before it can be replaced.
type Kill struct {
	Kind    Kind
	Index   int
	Process string
	PID     int
	// Unmanaged is set if no supervisor of this job started the process. A process with the same PID on the
	// supervisor's machine is then an unrelated one.
	Unmanaged bool
}

// Inquiry asks the supervisor of a silent process whether it is running, or waiting for a CPU, before it is given up.
type Inquiry struct {
	Kind   Kind
	Index  int
	PID    int
	Number int64 // the answer repeats it
}

// Publish is a checkpoint for which every shard has written its part.
type Publish struct {
	Generation perdure.Generation
	Cut        perdure.Clock
	Clocks     protocol.SlotClocks // those of the slots if it is a cut by slot
	Segments   []protocol.Segment  // by shard; nil for a running checkpoint
	Epochs     []perdure.Epoch     // by shard
	// Running, if not nil, is the running checkpoint to publish instead. Cut is then the clock that all slots have
	// reached.
	Running *RunningCheckpoint
	Last    bool // it contains all rows of all shards, because the job is about to end
}

// Ready lists what the caller must do, in this order: save Record, then send the view or its delta, then everything
// else.
type Ready struct {
	// Record points to the core's own job record and is valid until the next call of any method; use Clone to keep it.
	// Nil: unchanged.
	Record *JobRecord
	// Delta holds the changes of the view since the last Delta, for servers. WorkerDelta holds those since the last
	// WorkerDelta, for workers and observers. Nil: no change that concerns them.
	Delta, WorkerDelta *protocol.ViewDelta
	Publish            *Publish
	Kills              []Kill
	Inquiries          []Inquiry
	Events             []Event
}

// Core is the state machine; see the package comment. Its parts share the job record, the unrecorded observations
// (job), the only way to change either (record), and the work queue. The parts do not call one another; a part returns
// whatever another part must do.
type Core struct {
	record *JobRecord
	job    *jobState
	rec    *recorder
	queue  *dirtySet

	chains         chains
	bases          bases
	slotRecovery   slotRecovery
	slotMembership slotMembership
	cuts           cuts
	reports        reports
	rounds         rounds
	partitions     failuredetector.Partitions

	deadlocks deadlocks

	finalUpdates int64  // the number of updates in the rows when the job was last complete
	paused       cursor // over the slots, during a pause
	finished     cursor // over the slots, at the job's end
	applied      cursor // over the shards, at the job's end
}

// usualTick is the length of a tick, in seconds, unless SetTickSeconds sets another.
const usualTick = 0.1

// New returns a core for a job record. A process that is silent for about patience ticks is suspected to be frozen or
// cut off: see package failuredetector. weak is for negative controls in tests.
func New(facts JobRecord, patience int64, mutations mutation.Set) *Core {
	f, strategy := &facts, recovery.Of(facts.Job.Recovery)
	n := len(f.View.Shards)
	j := &jobState{
		record:     f,
		strategy:   strategy,
		traits:     recovery.TraitsOf(&facts.Job),
		slots:      make([]observed, len(f.Slots)),
		detector:   failuredetector.NewDetector(patience),
		replicas:   placement.NewReplicaMap(n),
		dropped:    map[perdure.ShardID]bool{},
		recovering: map[Kind]*numberSet{Server: {}, Worker: {}},
		publishing: -1,
		pausedAt:   f.View.Revision,
		mutations:  mutations,
		seconds:    usualTick,
	}
	a := newDirtySet(n)
	r := &recorder{record: f, job: j, queue: a, deltas: newDeltaTracker(&f.View)}
	c := &Core{
		record: f, job: j, rec: r, queue: a,
		chains: chains{record: f, job: j, rec: r, queue: a},
		bases:  bases{f, j, r, a, make([]cursor, n)}, slotRecovery: slotRecovery{record: f, job: j, rec: r, queue: a},
		slotMembership: slotMembership{record: f, job: j, rec: r, queue: a}, reports: reports{
			record: f, job: j,
			rec: r,
		},
		rounds: rounds{record: f, job: j, rec: r},
		cuts:   cuts{record: f, job: j, rec: r, queue: a, timer: recovery.NewTimer(usualTick)},
	}
	for i := range f.Servers {
		r.addServer(f.Servers[i].Zone)
	}
	for s := range f.View.Shards {
		r.updateReplicas(s)
		a.Changed(s, &f.View.Shards[s])
	}
	for i := range j.slots {
		a.CutRequesters.Add(i)
		j.clocks.Move(-1, j.slotClock(i))
		a.ChangedSlot(i, &f.View.Slots[i])
	}
	r.refresh()
	return c
}

func target(k Kind, index int) string { return fmt.Sprintf("%s:%d", k, index) }

// Record returns the current job record. Callers must not change it.
func (c *Core) Record() *JobRecord { return c.record }

// Ready returns the pending work, each item once, and starts to collect afresh.
func (c *Core) Ready() Ready { return c.rec.ready() }

// ViewSent records that a worker or an observer was sent the whole view.
func (c *Core) ViewSent() { c.rec.deltas.ViewSent() }

// SetTickSeconds sets the length of a tick in seconds. The default is 0.1.
func (c *Core) SetTickSeconds(s float64) {
	c.job.seconds = s
	c.cuts.timer.SetTick(s)
}

// SetGiveUpTicks sets after how many ticks the job stops waiting for a replacement process; 0: never. A slot without a
// process is then suspended, unless the job uses two-step clocks. A dead server's shards are taken over by other
// servers, as if it were never replaced.
func (c *Core) SetGiveUpTicks(slot, server int64) {
	c.slotMembership.grace, c.chains.grace = slot, server
}

// SetSupervised sets whether a supervisor is connected, which can answer inquiries.
func (c *Core) SetSupervised(is bool) { c.job.supervised = is }

// RecordAnswer takes a supervisor's answer to an inquiry: whether the process is running or waiting for the CPU.
func (c *Core) RecordAnswer(q Inquiry, runs bool) {
	if q.Kind != Server && q.Kind != Worker || q.Index < 0 || q.Index >= c.job.size(q.Kind) || c.record.IsOver() {
		return
	}
	if p, o := c.job.member(q.Kind, q.Index); p.PID == q.PID && p.Process != "" {
		o.liveness.RecordAnswer(q.Number, runs)
		c.checkSilence()
		c.reconcile()
	}
}

// ProcessDied records that the process of a slot or server index is certainly dead.
func (c *Core) ProcessDied(k Kind, index int, pid int, how string) {
	if k != Server && k != Worker || index < 0 || index >= c.job.size(k) {
		return
	}
	p, _ := c.job.member(k, index)
	if p.Process == "" || p.PID != pid {
		return // a later process already holds it
	}
	c.rec.recordDeath(k, index, how)
	if k == Worker {
		c.vacate(index)
	}
	c.reconcile()
}

// Disconnected records that the connection to a process broke. It may reconnect, unless lockedOut says why it cannot.
func (c *Core) Disconnected(k Kind, index int, process, lockedOut string) {
	if index < 0 || index >= c.job.size(k) {
		return
	}
	if p, o := c.job.member(k, index); p.Process == process {
		o.connected, o.lockedOut = false, lockedOut
		c.job.detector.RecordDisconnected(&o.liveness)
		if k == Server {
			c.queue.Unchecked.Add(index)
		}
		if k == Server && p.AnyIndex && o.liveness.IsSuspect() { // no process will ask for this index by number
			c.rec.recordDeath(k, index, o.lockedOut)
			o.deathAssumed = true
		}
	}
	c.reconcile()
}

// vacate fences all incarnations of a slot so far. The recovery action for the slot is decided later.
func (c *Core) vacate(slot int) {
	p, sl := &c.record.Slots[slot], &c.record.View.Slots[slot]
	spoke := p.Process != "" && sl.Settled
	set(c.rec, &p.Process, "")
	set(c.rec, &p.PID, 0)
	if sl.Left {
		return // it will not be replaced
	}
	set(c.rec, &p.Incarnation, p.Incarnation+1)
	c.queue.MarkAwaitingSource()
	c.rec.changeSlot(slot, protocol.SlotView{Incarnation: p.Incarnation, Interval: sl.Interval})
	if spoke {
		if why := c.cuts.workerDied(slot); why != "" {
			c.rollBack(why)
		}
	}
}

// AddTable creates a table, or attaches to an existing one with the same name and properties. Only AddTable decides on
// which shard a whole table lies.
func (c *Core) AddTable(spec perdure.TableSpec) error {
	spec = spec.Requested()
	for _, t := range c.record.View.Tables {
		if t.Name == spec.Name {
			if t.Requested() != spec {
				return fmt.Errorf("%w: table %s exists with different properties", perdure.ErrRefused, spec.Name)
			}
			return nil
		}
	}
	if err := cmp.Or(spec.Validate(c.record.Job.Shards), c.record.Job.ValidateTable(spec)); err != nil {
		return fmt.Errorf("%w: %w", perdure.ErrRefused, err)
	}
	for i := range c.job.slots {
		if w := c.job.slots[i].worker; w != nil && w.Clock > c.record.View.Slots[i].From {
			return fmt.Errorf("%w: table %s: tables must be created before the first clock ends", perdure.ErrRefused,
				spec.Name)
		}
	}
	job := &c.record.Job
	spec.Shard = placement.PlaceTable(&spec, c.record.View.Tables, job.Shards, job.Servers)
	c.rec.changeTables(append(c.record.View.Tables, spec))
	return nil
}

// Drop treats shards as lost, as if their servers had died, although they are alive.
func (c *Core) Drop(shards []perdure.ShardID) {
	for _, s := range shards {
		if int(s) < len(c.record.View.Shards) {
			c.job.dropped[s] = true
		}
	}
	for s := range c.job.dropped {
		c.queue.TouchShard(int(s))
	}
	if len(c.job.dropped) > 0 {
		c.reports.pending = true
		c.rec.event("detected", "shards", "%d shards are treated as lost", len(c.job.dropped))
	}
	c.reconcile()
}

// Published records whether a checkpoint could be made durable. It reports whether the checkpoint counts. If a rollback
// has overtaken it, it does not count, and no older checkpoint may be deleted because of it. Rollbacks use no running
// checkpoint but the last one, so no other counts.
func (c *Core) Published(p *Publish, ok bool) bool {
	v, r := &c.record.View, &c.record.Running
	if ok && p.Running != nil { // saved with the next change, because a save for each manifest costs too much
		r.Published = max(r.Published, p.Running.Number)
	}
	if p.Generation != v.Generation {
		return false
	}
	c.job.publishing = -1
	c.queue.ShardsDirty = c.queue.ShardsDirty || len(c.queue.LostShards.All()) > 0 // orphans may have waited for it
	counts := ok && p.Cut > v.Durable && (p.Running == nil || p.Last)
	if counts {
		c.cuts.published(p)
	}
	c.reconcile()
	return counts
}
