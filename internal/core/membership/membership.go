// Package membership decides, purely, who holds which shard, who speaks for
// which slot, and what happens to the job when a process dies.
//
// [Core] takes observations (a process came, said how it is, went; time passed)
// and gives a [Ready]: facts to make durable BEFORE anything is sent, then what
// to tell whom. It compares what the facts say should be with what was observed
// last and takes the next step towards it, so it does not matter how often it
// is told the same, or that it forgets all observations when its process dies.
//
// Invariants:
//   - a view's revision grows with every change of the facts;
//   - a slot's process speaks only when all shards have refused its predecessors
//     and carried out what was decided about their last clock (Settled);
//   - under two-step clocks a decision is taken on the counts of all shards, all
//     fenced, so a clock is ticked on every shard or on none;
//   - a shard is given to a new process only in a higher epoch; a roll-back has a
//     higher generation, recorded together with its cut.
//
// A Core is not safe for concurrent use.
package membership

import (
	"cmp"
	"fmt"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/failuredetector"
	"github.com/perdure/perdure/internal/core/placement"
	"github.com/perdure/perdure/internal/core/recovery"
	"github.com/perdure/perdure/internal/core/weaken"
	"github.com/perdure/perdure/internal/core/words"
)

// Event is something worth telling people.
type Event struct {
	// placed, detected, suspected, dropped, rollback, lost, restored, serving, joined, moved,
	// draining, drained, trouble, cut, checkpoint, interval, end, complete, failed
	Kind   string
	Target string // "server:0"
	Text   string
	Said   string // the last lines of a program, where they are news
}

// Kill names a process that must not live on before it is replaced.
type Kill struct {
	Kind    Kind
	Index   int
	Process string
	PID     int
	// Guest says that nobody here has started it: a process of this machine that has the
	// same number is another one.
	Guest bool
}

// Inquiry asks the supervisor of a silent process whether the process wants to run, before it is given up.
type Inquiry struct {
	Kind   Kind
	Index  int
	PID    int
	Number int64 // which the answer repeats
}

// Publish is a cut for which every shard has written its segment.
type Publish struct {
	Generation perdure.Generation
	Cut        perdure.Clock
	Segments   []words.Segment // by shard; nil of a running checkpoint
	Epochs     []perdure.Epoch // by shard
	// Running, if it is not nil, is the running checkpoint that is to be published instead,
	// of which Cut is the clock that all have come to.
	Running *RunningCheckpoint
	Last    bool // it has all rows of all shards, since the job is to end
}

// Ready is what a Core wants done, in this order: save Facts, then send the view, or
// what changed of it, and everything else.
type Ready struct {
	// Facts are the core's own, of this moment: who needs them after the next call of
	// any method takes a Clone. Nil: unchanged.
	Facts *Facts
	// Delta is what changed of the view since the last Delta, for servers; WorkerDelta,
	// since the last WorkerDelta, for workers and observers. Nil: nothing that they act
	// on.
	Delta, WorkerDelta *words.ViewDelta
	Publish            *Publish
	Kills              []Kill
	Inquiries          []Inquiry
	Events             []Event
}

// Core is the state machine. See the package comment. Its parts share the facts, what is
// known beside (job), the way to change them (record) and what is to be looked at (agenda);
// none of them calls another. What one finds that is for another to do it returns.
type Core struct {
	facts  *Facts
	job    *job
	rec    *record
	agenda *dirtySet

	chains  chains
	bases   bases
	fates   fates
	roster  roster
	cuts    cuts
	reports reports
	rounds  rounds
	rifts   failuredetector.Partitions

	deadlocks deadlocks

	contained int64  // how many updates the rows had when the job was complete last
	paused    cursor // over the slots, in a pause
	finished  cursor // over the slots, at the job's end
	applied   cursor // likewise over the shards
}

// usualTick is how long a tick is, in seconds, unless TickSeconds says otherwise.
const usualTick = 0.1

// New makes a core from recorded facts. A process that is silent for about patience ticks is
// suspected to be frozen or cut off: see package failuredetector. weak is for negative controls.
func New(facts Facts, patience int64, weak weaken.Set) *Core {
	f, strategy := &facts, recovery.Of(facts.Job.Recovery)
	n := len(f.View.Shards)
	j := &job{
		facts: f, strategy: strategy, traits: strategy.Traits(), slots: make([]observed, len(f.Slots)),
		watch: failuredetector.NewDetector(patience), spread: placement.NewSpread(n),
		dropped: map[perdure.ShardID]bool{},
		healing: map[Kind]*numberSet{Server: {}, Worker: {}}, publishing: -1, pausedAt: f.View.Revision, weak: weak,
		seconds: usualTick,
	}
	a := newDirtySet(n)
	r := &record{facts: f, job: j, agenda: a, teller: newDeltaTracker(&f.View)}
	c := &Core{
		facts: f, job: j, rec: r, agenda: a,
		chains: chains{facts: f, job: j, rec: r, agenda: a},
		bases:  bases{f, j, r, a, make([]cursor, n)}, fates: fates{facts: f, job: j, rec: r, agenda: a},
		roster: roster{facts: f, job: j, rec: r, agenda: a}, reports: reports{facts: f, job: j, rec: r},
		rounds: rounds{facts: f, job: j, rec: r},
		cuts:   cuts{facts: f, job: j, rec: r, agenda: a, timer: newCheckpointTimer(usualTick)},
	}
	for i := range f.Servers {
		r.addServer(f.Servers[i].Zone)
	}
	for s := range f.View.Shards {
		r.spreadShard(s)
		a.Changed(s, &f.View.Shards[s])
	}
	for i := range j.slots {
		a.Calling.Add(i)
		j.clocks.Move(-1, j.counted(i))
		a.ChangedSlot(i, &f.View.Slots[i])
	}
	r.refresh()
	return c
}

func target(k Kind, index int) string { return fmt.Sprintf("%s:%d", k, index) }

// Facts returns the present facts. Do not change them.
func (c *Core) Facts() *Facts { return c.facts }

// Ready returns what to do, once, and begins collecting anew.
func (c *Core) Ready() Ready { return c.rec.ready() }

// Shown says that a worker or an observer was told the whole view.
func (c *Core) Shown() { c.rec.teller.Shown() }

// TickSeconds says how long a tick is, in seconds; 0.1 where it is not said.
func (c *Core) TickSeconds(s float64) {
	c.job.seconds = s
	c.cuts.timer.SetTick(s)
}

// GiveUpAfter says after how many ticks nobody is awaited any more; 0: never. A slot that nobody speaks for is
// suspended, where clocks are not ticked. From a server that has died the others take over what it had, as if its next
// process were not to come.
func (c *Core) GiveUpAfter(slot, server int64) { c.roster.grace, c.chains.grace = slot, server }

// Supervised says whether a supervisor is there, which answers inquiries.
func (c *Core) Supervised(is bool) { c.job.supervised = is }

// Answers takes a supervisor's answer to an inquiry: whether the process runs, or waits for the processor.
func (c *Core) Answers(q Inquiry, runs bool) {
	if q.Kind != Server && q.Kind != Worker || q.Index < 0 || q.Index >= c.job.size(q.Kind) || c.facts.Over() {
		return
	}
	if p, o := c.job.place(q.Kind, q.Index); p.PID == q.PID && p.Process != "" {
		o.ear.Answers(q.Number, runs)
		c.judge()
		c.reconcile()
	}
}

// Gone says that a place's process is certainly dead.
func (c *Core) Gone(k Kind, index int, pid int, how string) {
	if k != Server && k != Worker || index < 0 || index >= c.job.size(k) {
		return
	}
	p, _ := c.job.place(k, index)
	if p.Process == "" || p.PID != pid {
		return // a later process has the place already
	}
	c.rec.noticed(k, index, how)
	if k == Worker {
		c.vacate(index)
	}
	c.reconcile()
}

// Disconnected says that the connection to a place's process broke. It may be
// alive and come back.
func (c *Core) Disconnected(k Kind, index int, process string) {
	if index < 0 || index >= c.job.size(k) {
		return
	}
	if p, o := c.job.place(k, index); p.Process == process {
		o.connected = false
		c.job.watch.Breaks(&o.ear)
		if k == Server {
			c.agenda.Unjudged.Add(index)
		}
		if k == Server && p.Any && o.ear.Suspect() { // nobody will ask for its place by number
			c.rec.noticed(k, index, "it did not come back")
			o.assumed = true
		}
	}
	c.reconcile()
}

// vacate fences a slot's incarnations so far; its fate is to be decided.
func (c *Core) vacate(slot int) {
	p, sl := &c.facts.Slots[slot], &c.facts.View.Slots[slot]
	spoke := p.Process != "" && sl.Settled
	set(c.rec, &p.Process, "")
	set(c.rec, &p.PID, 0)
	if sl.Left {
		return // nobody comes after it
	}
	set(c.rec, &p.Incarnation, p.Incarnation+1)
	c.rec.changeSlot(slot, words.SlotView{Incarnation: p.Incarnation, Span: sl.Span})
	if lacks := p.AtCuts && !c.job.complete && !c.facts.View.Done; lacks {
		set(c.rec, &p.AtCuts, false) // its next process says it anew
		c.rollBack(fmt.Sprintf("what worker:%d was to keep is saved for checkpoints only", slot))
	} else if spoke {
		if why := c.cuts.outlives(slot); why != "" {
			c.rollBack(why)
		}
	}
}

// AddTable creates a table, or attaches to an equal one of that name. Where a whole table is, is
// decided here and nowhere else.
func (c *Core) AddTable(spec perdure.TableSpec) error {
	spec = spec.Asked()
	for _, t := range c.facts.View.Tables {
		if t.Name == spec.Name {
			if t.Asked() != spec {
				return fmt.Errorf("%w: table %s exists already with other properties", perdure.ErrRefused, spec.Name)
			}
			return nil
		}
	}
	if err := cmp.Or(spec.Validate(c.facts.Job.Shards), c.facts.Job.Recovery.Suits(spec)); err != nil {
		return fmt.Errorf("%w: %w", perdure.ErrRefused, err)
	}
	for i := range c.job.slots {
		if w := c.job.slots[i].worker; w != nil && w.Clock > c.facts.View.Slots[i].From {
			return fmt.Errorf("%w: table %s: tables are created before the first clock ends", perdure.ErrRefused,
				spec.Name)
		}
	}
	job := &c.facts.Job
	spec.Shard = placement.Place(&spec, c.facts.View.Tables, job.Shards, job.Servers)
	c.rec.changeTables(append(c.facts.View.Tables, spec))
	return nil
}

// Drop declares shards lost, as if their servers had died, though they live.
func (c *Core) Drop(shards []perdure.ShardID) {
	for _, s := range shards {
		if int(s) < len(c.facts.View.Shards) {
			c.job.dropped[s] = true
		}
	}
	for s := range c.job.dropped {
		c.agenda.TouchShard(int(s))
	}
	if len(c.job.dropped) > 0 {
		c.reports.owed = true
		c.rec.event("detected", "shards", "%d shards are dropped", len(c.job.dropped))
	}
	c.reconcile()
}

// Published says that a checkpoint is durable, or could not be made so. It
// reports whether the checkpoint counts: one that a roll-back overtook does not,
// and nothing older may be deleted because of it.
func (c *Core) Published(generation perdure.Generation, cut perdure.Clock, ok bool) bool {
	v := &c.facts.View
	if generation != v.Generation {
		return false
	}
	c.job.publishing = -1
	c.agenda.Stirred = c.agenda.Stirred || len(c.agenda.Orphans.All()) > 0 // who waited for it
	counts := ok && cut > v.Durable
	if counts {
		c.cuts.published(cut)
	}
	c.reconcile()
	return counts
}
