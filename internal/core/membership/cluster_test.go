package membership

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/mutation"
	"github.com/perdure/perdure/internal/core/protocol"
	"github.com/perdure/perdure/internal/core/recovery"
)

// cluster is a whole job around a Core, without network or time: servers whose shards are real intakes, workers that
// send and tick as real ones do, and a registry with the saved job record. Processes report honestly, but possibly
// late, based on an old view, or never. It checks the invariants of every saved view.
type cluster struct {
	core     *Core
	job      perdure.JobSpec
	patience int64
	saved    JobRecord // the registry
	document Document
	servers  []*fakeServer
	workers  []*fakeWorker
	started  int                   // processes started so far; numbers them
	underway []Publish             // not completed yet
	saves    map[savedShard]uint64 // number of updates in each saved shard
	before   uint64                // number of updates in the checkpoint that the job resumes from
	losing   bool                  // the coordinator dies before it saves the next job record

	founded uint64   // the revision that placed the shards or started the generation
	atCuts  bool     // workers save their state only at cuts
	sharing *sharing // workers have shared state and save copies for replacement processes; nil: they do not
	zones   int      // servers are in zone index mod zones
	// saveSeconds is how long each shard's part of a checkpoint took.
	saveSeconds float64
	careful     bool         // no more servers die at the same time than the job tolerates
	sparing     bool         // servers report their counts less often
	bytes       []int64      // size of the shards' rows, in turn; empty: unknown
	mutations   mutation.Set // negative controls
	excused     map[int]bool // shards that were dropped by order

	forServers, forWorkers audience // the deltas sent so far

	frozen JobRecord // a copy of the registry, which must not change
	ghosts []ghost

	epochs map[shardEpoch]holder // who held a shard in an epoch
	told   strings.Builder       // events and other output, for scripts
	wrong  error                 // the first violation
}

// ghost is the last message of a process.
type ghost struct {
	kind   Kind
	index  int
	name   string
	server protocol.ServerStatus
	worker protocol.WorkerStatus
}

type shardEpoch struct {
	shard int
	epoch perdure.Epoch
}

type holder struct {
	server      int
	incarnation perdure.Incarnation
}

type fakeProcess struct {
	name        string
	pid         int
	up          bool // it runs
	silent      bool // it or its machine runs, but nothing from it arrives
	connected   bool
	incarnation perdure.Incarnation // assigned at admission
	view        protocol.View       // the view that it acts on
}

type fakeServer struct {
	fakeProcess
	said     protocol.ServerDeltaEncoder // for its connection
	draining bool
	notice   int64 // in milliseconds; 0: none
	hold     protocol.LockHold
	shards   map[int]*fakeShard
}

type fakeWorker struct {
	fakeProcess
	granted bool
	first   perdure.Clock   // first clock that this process did
	clock   perdure.Clock   // clock that it works on
	sent    perdure.Clock   // it has made the updates of clocks < sent
	ticked  perdure.Clock   // it has decided to tick clocks < ticked
	acked   []perdure.Clock // by shard: acknowledged as applied
	ending  bool            // it has requested the job's end, and waits for the answer
	paused  bool            // a pause has started since its request
	sharedState
}

func newCluster(job perdure.JobSpec, patience int64) *cluster {
	c := &cluster{
		job: job, patience: patience, zones: 1, excused: map[int]bool{},
		saves: map[savedShard]uint64{}, epochs: map[shardEpoch]holder{},
		servers: make([]*fakeServer, job.Servers), workers: make([]*fakeWorker, job.Slots),
	}
	for i := range c.servers {
		c.servers[i] = &fakeServer{}
	}
	for i := range c.workers {
		c.workers[i] = &fakeWorker{}
	}
	c.saved = NewJobRecord(job, 1, 0, nil)
	c.begin()
	return c
}

// begin starts a coordinator from the registry.
func (c *cluster) begin() {
	c.core = New(c.saved.Clone(), c.patience, c.mutations)
	c.core.SetGiveUpTicks(c.job.SuspendMs/100, c.job.TakeOverMs/100)
	c.forServers, c.forWorkers = newAudience(&c.saved.View), newAudience(&c.saved.View)
	c.core.ViewSent()
}

func (c *cluster) fail(format string, args ...any) {
	if c.wrong == nil {
		c.wrong = fmt.Errorf(format, args...)
	}
}

// process returns the process of a server index or slot.
func (c *cluster) process(k Kind, index int) *fakeProcess {
	if k == Server {
		return &c.servers[index].fakeProcess
	}
	return &c.workers[index].fakeProcess
}

// each visits all server indices and slots.
func (c *cluster) each(f func(k Kind, index int, p *fakeProcess)) {
	for i := range c.servers {
		f(Server, i, c.process(Server, i))
	}
	for i := range c.workers {
		f(Worker, i, c.process(Worker, i))
	}
}

// flush carries out the core's pending work in order. It returns false if the coordinator died before it saved
// anything.
func (c *cluster) flush() bool {
	if c.losing {
		c.restart()
		return false
	}
	c.checkTouched()
	c.checkKept()
	r := c.core.Ready()
	if r.Record != nil {
		if c.frozen.View.Revision > 0 && !reflect.DeepEqual(c.saved, c.frozen) {
			c.fail("the saved facts were changed")
		}
		c.check(&c.saved, r.Record)
		c.checkDocument(r.Record)
		saved := r.Record.Clone()
		c.forServers.hear(c, &c.saved.View, &saved.View, r.Delta)
		c.forWorkers.hear(c, &c.saved.View, &saved.View, r.WorkerDelta)
		c.saved, c.frozen = saved, r.Record.Clone()
		for len(c.workers) < len(c.saved.Slots) {
			c.workers = append(c.workers, &fakeWorker{})
		}
		c.checkHeard()
		for i := range c.frozen.View.Shards {
			c.frozen.View.Shards[i].Followers = slices.Clone(c.frozen.View.Shards[i].Followers)
		}
		c.grant()
	}
	for _, e := range r.Events {
		fmt.Fprintf(&c.told, "%s: %s\n", e.Kind, e.Text)
	}
	if r.Publish != nil {
		fmt.Fprintf(&c.told, "publish: cut %d of generation %d\n", r.Publish.Cut, r.Publish.Generation)
		c.checkPublish(r.Publish)
		c.underway = append(c.underway, *r.Publish)
	}
	for _, q := range r.Inquiries {
		fmt.Fprintf(&c.told, "ask: %s:%d of pid %d\n", q.Kind, q.Index, q.PID)
	}
	for _, k := range r.Kills {
		fmt.Fprintf(&c.told, "kill: %s:%d\n", k.Kind, k.Index)
		if p := c.process(k.Kind, k.Index); p.pid == k.PID {
			*p = fakeProcess{}
		}
		c.core.ProcessDied(k.Kind, k.Index, k.PID, "killed")
	}
	if len(r.Kills) > 0 {
		return c.flush()
	}
	c.checkComplete()
	return true
}

// haunt remembers the last message of a process. ghost repeats the messages of processes that have been replaced.
func (c *cluster) haunt(g ghost) {
	c.ghosts = slices.DeleteFunc(c.ghosts, func(old ghost) bool { return old.name == g.name })
	c.ghosts = append(c.ghosts, g)
}

func (c *cluster) ghost(k Kind, index int) {
	for _, g := range c.ghosts {
		switch place, _ := c.core.job.member(k, index); {
		case g.kind != k || g.index != index || g.name == place.Process:
		case k == Server:
			c.core.ServerStatus(index, g.name, g.server)
		default:
			c.core.HandleWorkerStatus(index, g.name, g.worker)
		}
	}
	c.flush()
}

// restart starts a new coordinator from the registry.
func (c *cluster) restart() {
	c.losing = false
	c.underway = nil
	c.begin()
	c.each(func(_ Kind, _ int, p *fakeProcess) { p.connected = false })
}

// start starts a process for a server index or slot, unless one is running.
func (c *cluster) start(k Kind, index int) {
	if c.process(k, index).up {
		return
	}
	if k == Server && c.saved.Servers[index].AnyIndex {
		c.more() // no process asks for this index by number
		return
	}
	c.started++
	p := fakeProcess{name: fmt.Sprintf("p%d", c.started), pid: c.started, up: true}
	if k == Server {
		c.servers[index] = &fakeServer{fakeProcess: p, shards: map[int]*fakeShard{}}
	} else {
		c.workers[index] = &fakeWorker{fakeProcess: p, acked: make([]perdure.Clock, c.job.Shards)}
	}
	c.join(k, index)
}

// join connects a process to the coordinator, if possible.
func (c *cluster) join(k Kind, index int) (perdure.Incarnation, Admission) {
	p := c.process(k, index)
	// As in the shell, a process is rejected if a newer one holds its index.
	place := c.core.Record().Slots
	if k == Server {
		place = c.core.Record().Servers
	}
	if p.incarnation > 0 && p.incarnation < place[index].Incarnation {
		*p = fakeProcess{}
		return 0, Refused
	}
	got, incarnation, admission := c.core.Join(k, index, c.newcomer(k, index, p))
	if got != index && admission == Granted { // a newcomer has its index, and it got another one
		moved := *p
		*p = fakeProcess{}
		moved.connected, moved.incarnation = true, incarnation
		c.settleIn(got, moved)
		return incarnation, admission
	}
	if !c.flush() || admission != Granted && admission != Wait {
		return incarnation, admission
	}
	p.connected = true
	if k == Server {
		c.servers[index].said = protocol.ServerDeltaEncoder{}
		p.incarnation = incarnation
	}
	c.grant()
	return incarnation, admission
}

func (c *cluster) newcomer(k Kind, index int, p *fakeProcess) Applicant {
	n := Applicant{Process: p.name, Addr: "at-" + p.name, PID: p.pid}
	n.AtCuts = k == Worker && (c.atCuts || c.sharing != nil)
	if k == Server && c.zones > 1 {
		n.Zone = string(rune('a' + index%c.zones))
	}
	return n
}

// more starts a server that asks for any index, and adds an index if necessary.
func (c *cluster) more() Admission {
	c.started++
	p := fakeProcess{name: fmt.Sprintf("p%d", c.started), pid: c.started, up: true}
	index, incarnation, admission := c.core.Join(Server, -1, c.newcomer(Server, len(c.servers), &p))
	if admission != Granted {
		c.flush()
		return admission
	}
	p.connected, p.incarnation = true, incarnation
	c.settleIn(index, p)
	return admission
}

// settleIn stores a server's process at the index that the core granted.
func (c *cluster) settleIn(index int, p fakeProcess) {
	if index == len(c.servers) {
		c.servers = append(c.servers, nil)
	}
	c.servers[index] = &fakeServer{fakeProcess: p, shards: map[int]*fakeShard{}}
	if !c.flush() && index == len(c.saved.Servers) {
		c.servers = c.servers[:index] // no process knows it any more
	}
}

// grant admits the workers that waited for their slots to be settled.
func (c *cluster) grant() {
	for i, w := range c.workers {
		sl := c.saved.View.Slots[i]
		if !w.up || !w.connected || w.granted || c.saved.Slots[i].Process != w.name || !sl.Settled {
			continue
		}
		w.granted, w.incarnation, w.view = true, sl.Incarnation, c.saved.View
		c.core.ViewSent()
		w.first, w.clock, w.sent, w.ticked = sl.Start, sl.Start, sl.Start, sl.Start
		c.sharing.received(w, perdure.Slot(i))
	}
}

// kill ends a process. how says how the core notices.
func (c *cluster) kill(k Kind, index int, how string) {
	p := c.process(k, index)
	if !p.up {
		return
	}
	name, pid, connected := p.name, p.pid, p.connected
	switch how {
	case "gone": // its supervisor reports it
		*p = fakeProcess{}
		c.core.ProcessDied(k, index, pid, "exited")
	case "disconnect": // its connection breaks, and nothing else
		*p = fakeProcess{}
		if connected {
			c.core.Disconnected(k, index, name, "")
		}
	case "silent": // it is no longer heard from
		if p.silent = true; !connected {
			*p = fakeProcess{} // it was never heard from
		}
	}
	c.flush()
}

// follow makes a process act on the newest view.
func (c *cluster) follow(k Kind, index int) {
	p := c.process(k, index)
	if !p.up || p.silent || !p.connected || k == Worker && !c.workers[index].granted {
		return
	}
	if k == Server {
		p.view = c.forServers.view
		c.followServer(index)
		return
	}
	w := c.workers[index]
	if c.saved.View.Slots[index].Incarnation > w.incarnation {
		*w = fakeWorker{} // its slot was reassigned: it is rejected
		return
	}
	v := c.forWorkers.view
	if v.Revision <= w.view.Revision {
		return // it has received the whole view since
	}
	if v.Generation > w.view.Generation {
		start := v.StartClock(perdure.Slot(index))
		w.first, w.clock, w.sent, w.ticked = start, start, start, start
		w.acked = make([]perdure.Clock, c.job.Shards)
		w.ending = false // it will reach that clock again
		w.sharedState = sharedState{}
	}
	w.paused = w.ending && (w.paused || v.Pause)
	w.view = v
	c.sharing.received(w, perdure.Slot(index))
}

func (c *cluster) followServer(index int) {
	s := c.servers[index]
	for i := range s.view.Shards {
		sv := &s.view.Shards[i]
		mine := func(h protocol.Holder) bool { return h.Server == index && h.Incarnation == s.incarnation }
		held := false
		for j := range sv.Replicas() {
			if h := sv.Replica(j); mine(h) {
				c.followShard(s, &s.view, i, h, j == 0, false)
				held = true
			}
		}
		if j := sv.Joining; j != nil && mine(*j) {
			c.followShard(s, &s.view, i, *j, false, true)
			held = true
		}
		if !held {
			delete(s.shards, i)
			continue
		}
		c.flow(&s.view, i)
		c.copy(&s.view, i)
	}
}

// report sends the status of a process, based on the view that it has.
func (c *cluster) report(k Kind, index int) {
	p := c.process(k, index)
	if !p.up || p.silent || !p.connected {
		return
	}
	if k == Worker {
		if w := c.workers[index]; w.granted {
			st := c.workerStatus(w, perdure.Slot(index))
			c.haunt(ghost{kind: k, index: index, name: p.name, worker: st})
			c.core.HandleWorkerStatus(index, p.name, st)
			c.flush()
		}
		return
	}
	s := c.servers[index]
	st := protocol.ServerStatus{Revision: s.view.Revision, Draining: s.draining, NoticeMs: s.notice, Hold: s.hold}
	for i := range c.job.Shards {
		sh := s.shards[i]
		if sh == nil {
			continue
		}
		st.Shards = append(st.Shards, c.status(s, i, sh))
	}
	c.haunt(ghost{kind: k, index: index, name: p.name, server: st})
	c.core.sendStatus(index, p.name, &s.said, &st, !c.sparing || c.core.job.tick%4 == 0)
	c.flush()
}

// mostKept is the number of clocks whose updates a worker keeps before it requests a cut.
const mostKept = 6

func (c *cluster) workerStatus(w *fakeWorker, slot perdure.Slot) protocol.WorkerStatus {
	st := protocol.WorkerStatus{Revision: w.view.Revision, Generation: w.view.Generation, Clock: w.clock}
	c.sharing.report(w, slot, &st)
	least := slices.Min(w.acked)
	end := w.view.EndClock(slot)
	st.Finished = end > 0 && w.clock >= end && least >= end
	st.NeedsCut = recovery.Of(c.job.Recovery).Traits().RetainsUpdates() &&
		w.clock-max(w.first, w.view.Durable) > mostKept
	for i, sv := range w.view.Shards {
		if sv.Lost && sv.Base == nil {
			st.Acked = append(st.Acked, protocol.AckedClock{
				Shard: perdure.ShardID(i), Epoch: sv.Epoch,
				Applied: w.acked[i],
			})
		}
	}
	return st
}

// shard returns the replica that a worker reaches as the head of a shard, or nil.
func (c *cluster) shard(w *fakeWorker, i int) *fakeShard {
	sv := &w.view.Shards[i]
	if sv.Server < 0 {
		return nil
	}
	if sh := c.replica(&w.view, i, sv.Holder); sh.serves() && sh.all != nil {
		return sh
	}
	return nil
}

// work takes a worker's next step, if possible: to make the updates of its clock, or, under two-step clocks, to tick
// them.
func (c *cluster) work(index int) {
	w := c.workers[index]
	if !w.up || !w.granted || w.silent {
		return
	}
	c.sharing.save(w, perdure.Slot(index))
	if end := w.view.EndClock(perdure.Slot(index)); end > 0 && w.clock >= end || w.view.Pause {
		return
	}
	if c.asksForEnd(w) {
		return
	}
	if w.sent == w.clock {
		if !c.sharing.mark(c, w, perdure.Slot(index)) {
			return
		}
		w.sent++
		if !c.job.Consistency.TwoStep() {
			w.clock++
		}
		return
	}
	for i := range c.job.Shards {
		if sh := c.shard(w, i); sh == nil || index >= len(sh.in.Applied()) ||
			sh.in.Counts(perdure.Slot(index)).Staged <= w.clock {
			return
		}
	}
	w.clock++
	w.ticked = w.clock
}

// asksForEnd repeats a worker's request for the job's end, as Client.EndJob does, until its view has an end, or the
// planned one remains after a pause. It reports whether the worker waits for that.
func (c *cluster) asksForEnd(w *fakeWorker) bool {
	stays := w.paused && !w.view.Pause && !c.job.Consistency.TwoStep()
	if end := w.view.End; end > 0 && (end <= w.clock || end != c.job.Clocks || stays) {
		w.ending = false
	}
	if w.ending {
		c.core.EndAfter(w.clock, false)
		c.flush()
	}
	return w.ending
}

// send sends a shard all updates and ticks of a worker that it lacks.
func (c *cluster) send(index, shard int) {
	w, slot := c.workers[index], perdure.Slot(index)
	if !w.up || !w.granted || w.silent {
		return
	}
	sh := c.shard(w, shard)
	if sh == nil {
		return
	}
	if sv := &w.view.Shards[shard]; sv.Lost && sv.Base == nil {
		return // it does not answer yet
	}
	if s := c.servers[w.view.Shards[shard].Server]; s.view.Shards[shard].Yields &&
		s.view.Shards[shard].Epoch == sh.epoch {
		c.flow(&s.view, shard) // it accepts nothing more
		return
	}
	has := sh.all
	if sh.fed == len(sh.log) {
		has = sh.in // which stops at cuts
	}
	staged, kept := has.Counts(slot).Staged, max(w.first, w.acked[shard])
	if recovery.Of(c.job.Recovery).Traits().RetainsUpdates() {
		kept = max(w.first, w.view.Durable)
	}
	if staged < kept {
		return // the worker has discarded updates that the shard lacks
	}
	if _, told := sh.told[slot]; !told {
		sh.told[slot] = w.clock
	}
	for clock := staged; clock < w.sent; clock++ {
		if sh.all.Incarnation(slot) > w.incarnation {
			return // fenced
		}
		sh.append(entry{kind: "part", slot: slot, incarnation: w.incarnation, clock: clock, ticked: clock < w.ticked})
	}
	for clock := has.Counts(slot).Ticked; clock < w.ticked; clock++ {
		sh.append(entry{kind: "tick", slot: slot, incarnation: w.incarnation, clock: clock})
	}
	c.flow(&w.view, shard)
	if c.ready(sh, &w.view.Shards[shard]) {
		w.acked[shard] = sh.in.Counts(slot).Applied
	}
}

// answer completes the oldest pending publication.
func (c *cluster) answer(ok bool) {
	if len(c.underway) == 0 {
		return
	}
	p := c.underway[0]
	c.underway = c.underway[1:]
	current, newer := p.Generation == c.core.Record().View.Generation, p.Cut > c.core.Record().View.Durable
	for shard, g := range p.Segments {
		c.saves[savedShard{p.Generation, shard, p.Cut}] = g.Seq
	}
	if got, want := c.core.Published(&p, ok), ok && current && newer; got != want {
		c.fail("publication of cut %d of generation %d counts: %v, want %v", p.Cut, p.Generation, got, want)
	}
	c.flush()
}
