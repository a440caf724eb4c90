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
	"fmt"
	"slices"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/placement"
	"github.com/perdure/perdure/internal/core/recovery"
	"github.com/perdure/perdure/internal/core/saver"
	"github.com/perdure/perdure/internal/core/silence"
)

// Facts are what must survive the coordinator.
type Facts struct {
	Job          perdure.JobSpec `json:"job"`
	View         perdure.View    `json:"view"`
	Servers      []Place         `json:"servers"`
	Slots        []Place         `json:"slots"`
	UpdatesLost  int64           `json:"updates_lost"`  // whose effect is in no row any more
	ClocksRedone int64           `json:"clocks_redone"` // slot-clocks done, wholly or in part, and then done again
	ShardLost    []int64         `json:"shard_lost"`    // by shard: updates counted in UpdatesLost so far

	Ending bool    `json:"ending,omitempty"` // the slots pause so that the job's end can be named
	Change *Change `json:"change,omitempty"` // they pause so that its clock can be
	Told   uint64  `json:"told,omitempty"`   // the View.Roster that all shards have heard of

	Cutting bool          `json:"cutting,omitempty"`  // the slots pause so that a cut can be named
	CutTold perdure.Clock `json:"cut_told,omitempty"` // the View.Named that all shards have heard of
	Closing *Closing      `json:"closing,omitempty"`  // the job is to end, and a last checkpoint is wanted

	Saving perdure.Saving `json:"saving,omitzero"` // where the interval between checkpoints is chosen

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
	Zone        string              `json:"zone,omitempty"`      // of a server: the failure domain that it is in
	Draining    bool                `json:"draining,omitempty"`  // a server that is to end, once others have what it holds
	Left        bool                `json:"left,omitempty"`      // a server's place that nobody is awaited for any more
	Suspended   bool                `json:"suspended,omitempty"` // a slot that was given up, and takes part again when a process comes for it
	Guest       bool                `json:"guest,omitempty"`     // a slot that was made for a process that came by itself
	AtCuts      bool                `json:"at_cuts,omitempty"`   // a slot whose process saves what it must keep for cuts only
	// Unkept, of a slot where workers keep their updates until they are in a checkpoint:
	// of the clocks below it there may be updates that no process keeps any more.
	Unkept perdure.Clock `json:"unkept,omitempty"`
	// Made, of a slot: of the clocks below it some shard may have updates that its former
	// processes made.
	Made perdure.Clock `json:"made,omitempty"`
	Any  bool          `json:"any,omitempty"` // it asked for any place: nobody starts its next process in this one
}

// Kind says whether a place is a server's or a worker's.
type Kind string

// The kinds of places.
const (
	Server Kind = "server"
	Worker Kind = "worker"
)

// Event is something worth telling people.
type Event struct {
	Kind   string // placed, detected, suspected, dropped, rollback, lost, restored, serving, joined, moved, draining, drained, trouble, cut, checkpoint, interval, end, complete, failed
	Target string // "server:0"
	Text   string
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

// Publish is a cut for which every shard has written its segment.
type Publish struct {
	Generation perdure.Generation
	Cut        perdure.Clock
	Segments   []perdure.Segment // by shard
	Epochs     []perdure.Epoch   // by shard
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
	Delta, WorkerDelta *perdure.ViewDelta
	Publish            *Publish
	Kills              []Kill
	Events             []Event
}

// observed is what is known of a place's process without being recorded.
type observed struct {
	connected bool
	gone      bool  // it is dead
	assumed   bool  // that is not certain: its connection broke, and it did not come back
	back      int64 // when, having been a suspect, it was heard again; 0: it was since, too
	ear       silence.Ear
	server    *perdure.ServerWord
	worker    *perdure.WorkerStatus
	lastClock perdure.Clock // of the slot, by whatever incarnation
	fenced    cursor        // of the slot: over the shards' fences
	highest   cursor        // likewise
}

// Core is the state machine. See the package comment.
type Core struct {
	facts      Facts
	strategy   recovery.Strategy
	traits     recovery.Traits
	dirty      bool
	tick       int64
	watch      silence.Watch
	judged     []silence.Subject // memory of subjects
	grace      int64             // ticks after which a slot is suspended that nobody speaks for; 0: never
	servers    []observed
	slots      []observed
	publishing perdure.Clock // cut being published; -1: none
	complete   bool
	contained  int64                    // how many updates the rows had when the job was complete last
	lost       map[perdure.ShardID]bool // dropped on purpose, not given anew yet
	pausedAt   uint64                   // the first revision that asks for a pause
	durableAt  uint64                   // the first revision with the newest cut, as far as this core knows
	weakened   bool                     // see Weaken
	dropped    bool                     // a "serving" event is due once the dropped shards serve

	timer saver.Timer // where the interval between checkpoints is chosen

	out      Ready
	logWaits logWaits

	course     course // of the view that was told last
	forServers news
	forWorkers news
	vacant     int  // slots
	expectant  bool // of those some workers or observers know

	layout  []placement.Server // by server
	stirred bool               // something happened that may matter to the shards that are due
	uneven  bool               // servers may hold unequal numbers of replicas
	index
}

// usualTick is how long a tick is, in seconds, unless TickSeconds says otherwise.
const usualTick = 0.1

// New makes a core from recorded facts. A process that is silent for about
// patience ticks is suspected to be frozen or cut off: see package silence.
func New(facts Facts, patience int64) *Core {
	strategy := recovery.Of(facts.Job.Recovery)
	c := &Core{
		facts: facts, strategy: strategy, traits: strategy.Traits(), watch: silence.NewWatch(patience), publishing: -1, pausedAt: facts.View.Revision,
		slots: make([]observed, len(facts.Slots)),
		lost:  map[perdure.ShardID]bool{}, stirred: true, uneven: true, timer: saver.NewTimer(usualTick),
		index: index{
			away: map[int]struct{}{}, healing: map[Kind]*set{Server: {}, Worker: {}}, clocks: tally{count: map[perdure.Clock]int{}},
			fencing: make([]set, len(facts.View.Shards)), based: make([]cursor, len(facts.View.Shards)),
		},
	}
	c.course = courseOf(&facts.View)
	c.forServers.since, c.forWorkers.since = facts.View.Revision, facts.View.Revision
	for i := range facts.View.Slots {
		if vacant(&facts.View.Slots[i]) {
			c.vacant++
		}
	}
	for i := range facts.Servers {
		c.addServer(facts.Servers[i].Zone)
	}
	for s := range facts.View.Shards {
		c.hold(s, 1)
		c.look(s)
		c.noteBase(s)
		c.noteMending(s)
		c.noteZones(s)
	}
	for i := range c.slots {
		c.calling.add(i)
		c.clocks.move(-1, c.counted(i))
		c.await(i)
		c.noteEnd(i)
	}
	c.refresh()
	return c
}

// addServer notes what is known of one more server's place.
func (c *Core) addServer(zone string) {
	c.unjudged.add(len(c.servers))
	c.leaving.add(len(c.servers))
	c.servers = append(c.servers, observed{})
	c.layout = append(c.layout, placement.Server{Zone: zone})
	c.zoned = c.zoned || zone != c.layout[0].Zone
	c.loads.add(0, 1)
	c.held = append(c.held, map[int]struct{}{})
}

// settleIn notes the zone that a server is in.
func (c *Core) settleIn(server int, zone string) {
	if c.layout[server].Zone == zone {
		return
	}
	c.layout[server].Zone = zone
	c.zoned = true // or was
	for s := range c.held[server] {
		c.noteZones(s)
	}
}

// Begin returns the facts of a job that nobody has joined yet, at clock cut of
// the given generation: 0 and 1 for a fresh one, else a checkpoint's.
func Begin(job perdure.JobSpec, generation perdure.Generation, cut perdure.Clock, tables []perdure.TableSpec) Facts {
	f := Facts{
		Job:       job,
		Servers:   make([]Place, job.Servers),
		Slots:     make([]Place, job.Slots),
		ShardLost: make([]int64, job.Shards),
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
	return f
}

// Facts returns the present facts. Do not change them.
func (c *Core) Facts() *Facts { return &c.facts }

// Ready returns what to do, once, and begins collecting anew.
func (c *Core) Ready() Ready {
	r := c.out
	c.out = Ready{}
	if c.dirty {
		c.dirty = false
		c.facts.View.Revision++
		r.Facts = &c.facts
		c.tell(&r)
	}
	return r
}

// Clone returns a copy that later changes of the facts leave as it is.
func (f *Facts) Clone() Facts {
	g := *f
	g.Servers, g.Slots, g.ShardLost = slices.Clone(f.Servers), slices.Clone(f.Slots), slices.Clone(f.ShardLost)
	g.View = f.View.Clone()
	return g
}

func (c *Core) event(kind, target, format string, args ...any) {
	c.out.Events = append(c.out.Events, Event{Kind: kind, Target: target, Text: fmt.Sprintf(format, args...)})
}

func (c *Core) place(k Kind, index int) (*Place, *observed) {
	if k == Server {
		return &c.facts.Servers[index], &c.servers[index]
	}
	return &c.facts.Slots[index], &c.slots[index]
}

func (c *Core) size(k Kind) int {
	if k == Server {
		return len(c.servers)
	}
	return len(c.slots)
}

func target(k Kind, index int) string { return fmt.Sprintf("%s:%d", k, index) }

// noticed records that a process is dead.
func (c *Core) noticed(k Kind, index int, how string) {
	p, o := c.place(k, index)
	o.assumed = false
	if k == Server {
		c.lookAt(index)
	}
	if o.gone {
		return
	}
	o.gone, o.connected = true, false
	if told := p.Left && p.Draining; c.facts.View.Done || k == Server && told || k == Worker && c.facts.View.Slots[index].Left {
		return // it was told that it may end
	}
	c.healing[k].add(index)
	c.event("detected", target(k, index), "%s is dead: %s", target(k, index), how)
	if k == Server && !p.Left && (c.facts.Job.NoReplace || p.Draining || p.Any) {
		p.Left, c.dirty = true, true
	}
}

// Gone says that a place's process is certainly dead.
func (c *Core) Gone(k Kind, index int, pid int, how string) {
	if k != Server && k != Worker || index < 0 || index >= c.size(k) {
		return
	}
	p, _ := c.place(k, index)
	if p.Process == "" || p.PID != pid {
		return // a later process has the place already
	}
	c.noticed(k, index, how)
	if k == Worker {
		c.vacate(index)
	}
	c.reconcile()
}

// Disconnected says that the connection to a place's process broke. It may be
// alive and come back.
func (c *Core) Disconnected(k Kind, index int, process string) {
	if index < 0 || index >= c.size(k) {
		return
	}
	if p, o := c.place(k, index); p.Process == process {
		o.connected = false
		c.watch.Breaks(&o.ear)
		if k == Server {
			c.unjudged.add(index)
		}
		if k == Server && p.Any && o.ear.Suspect() { // nobody will ask for its place by number
			c.noticed(k, index, "it did not come back")
			o.assumed = true
		}
	}
	c.reconcile()
}

// AddTable creates a table, or attaches to an equal one of that name.
func (c *Core) AddTable(spec perdure.TableSpec) error {
	for _, t := range c.facts.View.Tables {
		if t.Name == spec.Name {
			if t != spec {
				return fmt.Errorf("%w: table %s exists already with other properties", perdure.ErrRefused, spec.Name)
			}
			return nil
		}
	}
	if err := spec.Validate(c.facts.Job.Shards); err != nil {
		return fmt.Errorf("%w: %w", perdure.ErrRefused, err)
	}
	for i := range c.slots {
		if w := c.slots[i].worker; w != nil && w.Clock > c.facts.View.Slots[i].From {
			return fmt.Errorf("%w: table %s: tables are created before the first clock ends", perdure.ErrRefused, spec.Name)
		}
	}
	c.changeTables(append(c.facts.View.Tables, spec))
	return nil
}

// EndAfter ends the job at the earliest clock that every slot can still meet,
// as asked by a slot that is at clock at. Under two-step clocks that is this
// clock itself, whatever the others are doing: none of its updates can be
// applied before the asking slot has ticked it. Else the slots pause, and say
// where they stand: see decidePause.
func (c *Core) EndAfter(at perdure.Clock) {
	v := &c.facts.View
	at = max(at, 1)
	if c.facts.Ending || v.End != 0 && v.End <= at {
		return
	}
	c.dirty = true
	if c.twoStep() {
		c.endAt(at)
		return
	}
	c.facts.Ending = true
	c.reconcile()
}

func (c *Core) endAt(clock perdure.Clock) {
	c.facts.View.End = clock
	c.event("end", "", "the goal is reached; the job ends at clock %d", clock)
}

// Finish says that what the job left behind is safe: everybody may go.
func (c *Core) Finish() {
	if !c.facts.View.Done {
		c.facts.View.Done, c.facts.Contained, c.dirty = true, c.contained, true
	}
}

// Complete reports whether every slot has finished its last clock and every
// update is applied (and, where checkpoints are kept, saved). What is done was: a core
// that has not seen it knows it from the facts.
func (c *Core) Complete() bool { return c.complete || c.facts.View.Done }
