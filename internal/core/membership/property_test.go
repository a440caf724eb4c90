package membership

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/failuredetector"
	"github.com/perdure/perdure/internal/core/protocol"
	"github.com/perdure/perdure/internal/core/recovery"
)

// storm is a random history of a whole job. It is plain data, generated and shrunk by rapid.
type storm struct {
	Job     perdure.JobSpec
	Zones   int
	Sharing *sharing // programs have shared state
	Careful bool     // no more servers die at the same time than the job tolerates
	Earlier earlier
	Deeds   []deed
}

// earlier describes the run that a job resumes; the zero value: none.
type earlier struct {
	Cut     perdure.Clock
	Slots   []protocol.Interval
	Workers int   // number of workers in the resumed job; 0: unchanged
	Past    int64 // clocks of former membership intervals
}

// earliers draws a run to resume, for a job of some slots. The first slot participates throughout.
func earliers(slots int) *rapid.Generator[earlier] {
	return rapid.Custom(func(t *rapid.T) (e earlier) {
		if e.Cut = perdure.Clock(rapid.IntRange(0, 4).Draw(t, "cut")); e.Cut == 0 {
			return e
		}
		e.Slots = make([]protocol.Interval, slots, slots+2)
		for range rapid.IntRange(0, 2).Draw(t, "joined") {
			e.Slots = append(e.Slots, protocol.Interval{From: perdure.Clock(rapid.IntRange(1, 6).Draw(t, "from"))})
		}
		for i := range e.Slots[1:] {
			if s := &e.Slots[1+i]; rapid.Bool().Draw(t, "leaves") {
				s.Until = s.From + perdure.Clock(rapid.IntRange(1, 4).Draw(t, "clocks"))
			}
		}
		e.Workers, e.Past = rapid.IntRange(0, 3).Draw(t, "workers"), rapid.Int64Range(0, 4).Draw(t, "past")
		return e
	})
}

// deed is one event; A and B choose among the possibilities.
type deed struct {
	Kind string
	A, B int
}

// deedWeights are the relative frequencies of the events: one in eight is a failure.
var deedWeights = map[string]int{
	"work": 20, "send": 20, "follow": 16, "report": 16, "start": 8, "rejoin": 4, "answer": 4, "refuse": 1,
	"kill": 3, "tick": 3, "restart": 1, "lose": 1, "drop": 1, "end": 1, "ghost": 2,
	"flow": 12, "drain": 1, "more": 1, "scale": 6, "close": 1,
}

func storms() *rapid.Generator[storm] { return stormsOf(allStrategies, deedWeights) }

// allStrategies are the recovery strategies of storms.
var allStrategies = []perdure.Recovery{
	{Kind: perdure.RecoverNone},
	{Kind: perdure.RecoverCheckpoint, Every: 2},
	{Kind: perdure.RecoverResend, Every: 2},
	{Kind: perdure.RecoverResend, Every: 5},
	{Kind: perdure.RecoverResend, Every: 100},
	{Kind: perdure.RecoverResend, Auto: true},
	{Kind: perdure.RecoverResend, Every: 2, Partial: true},
	{Kind: perdure.RecoverResend, Every: 100, Partial: true},
	{Kind: perdure.RecoverCheckpoint, Auto: true},
	{Kind: perdure.RecoverChain, Replicas: 2},
	{Kind: perdure.RecoverChain, Replicas: 3},
	{Kind: perdure.RecoverChain, Replicas: 2, Async: true},
	{Kind: perdure.RecoverChain, Replicas: 2, Every: 2, Checkpoints: true},
}

// partial are the strategies under which updates without a copy are only counted.
var partial = []perdure.Recovery{
	{Kind: perdure.RecoverResend, Every: 2, Partial: true},
	{Kind: perdure.RecoverResend, Every: 5, Partial: true},
	{Kind: perdure.RecoverResend, Every: 100, Partial: true},
	{Kind: perdure.RecoverResend, Auto: true, Partial: true},
}

func stormsOf(strategies []perdure.Recovery, weights map[string]int) *rapid.Generator[storm] {
	var kinds []string
	for _, k := range slices.Sorted(maps.Keys(weights)) {
		kinds = append(kinds, slices.Repeat([]string{k}, weights[k])...)
	}
	deeds := rapid.Custom(func(t *rapid.T) deed {
		return deed{
			rapid.SampledFrom(kinds).Draw(t, "kind"), rapid.IntRange(0, 99).Draw(t, "a"),
			rapid.IntRange(0, 99).Draw(t, "b"),
		}
	})
	return rapid.Custom(func(t *rapid.T) storm {
		model := rapid.SampledFrom([]perdure.Consistency{
			{Kind: perdure.BSP},
			{Kind: perdure.SSP, Staleness: 2},
		}).Draw(t, "model")
		strategy := rapid.SampledFrom(strategies).Draw(t, "recovery")
		servers := rapid.IntRange(traitsOf(strategy).Copies, 4).Draw(t, "servers")
		suspend := int64(0)
		if !model.TwoStep() && traitsOf(strategy).RestartsWith == recovery.Everything {
			suspend = rapid.SampledFrom([]int64{0, 200, 600}).Draw(t, "suspend")
		}
		late := rapid.SampledFrom([]int64{0, 0, 100, 500}).Draw(t, "takeover")
		alone := rapid.IntRange(0, 3).Draw(t, "noreplace") == 0
		if alone {
			late = 0
		}
		slots := rapid.IntRange(1, 3).Draw(t, "slots")
		if model.Kind == perdure.SSP && slots > 1 && suspend == 0 {
			model = perdure.Consistency{Kind: perdure.ASP} // not drawn, so that earlier seeds keep their meaning
		}
		begins := earlier{}
		if !recovery.Of(strategy).Traits().EarlyAck { // its bases are replayed from the beginning here
			begins = earliers(slots).Draw(t, "earlier")
		}
		return storm{
			Earlier: begins,
			Zones:   rapid.SampledFrom([]int{1, 1, 2, 3}).Draw(t, "zones"),
			Careful: rapid.IntRange(0, 3).Draw(t, "careful") > 0,
			Job: perdure.JobSpec{
				Slots: slots, Servers: servers,
				Shards:    rapid.IntRange(servers, 5).Draw(t, "shards"),
				NoReplace: alone, TakeOverMs: late,
				Clocks:      perdure.Clock(rapid.SampledFrom([]int{0, 0, 9}).Draw(t, "clocks")),
				Consistency: model, Recovery: strategy, SuspendMs: suspend,
			},
			Deeds: rapid.SliceOfN(deeds, 80, 400).Draw(t, "deeds"),
		}
	})
}

// run executes a storm, then lets all processes be well, and returns the first violation.
func (s storm) run() error {
	c := newCluster(s.Job, 4)
	c.zones, c.careful = s.Zones, s.Careful && recovery.Of(s.Job.Recovery).Traits().Copies > 1
	c.sharing = s.Sharing
	c.sparing = len(s.Deeds)%2 == 1
	if len(s.Deeds)%3 > 0 {
		c.bytes = []int64{50 << 20, 10 << 20, 100 << 20, 0}
	}
	if s.Earlier.Cut > 0 {
		c.goOn(&s.Earlier)
	}
	c.runHealthy(1) // a job that has started
	for i, d := range s.Deeds {
		if c.do(d); c.wrong != nil {
			return fmt.Errorf("deed %d %v: %w", i, d, c.wrong)
		}
		if failed := c.saved.Failed; failed != "" {
			if c.careful {
				return fmt.Errorf("deed %d %v: %s", i, d, failed)
			}
			return nil
		}
	}
	return c.checkProgress()
}

// goOn starts a job that resumes another one.
func (c *cluster) goOn(e *earlier) {
	slots := e.Slots
	if e.Workers > 0 {
		var err error
		if slots, err = RescaledIntervals(slots, e.Workers, e.Cut); err != nil {
			c.fail("cannot resume with %d workers: %v", e.Workers, err)
			return
		}
	}
	c.saved = NewJobRecord(c.job, 1, e.Cut, nil)
	c.saved.Resume(slots, nil, e.Past)
	c.before = uint64(e.Past)
	for len(c.workers) < len(slots) {
		c.workers = append(c.workers, &fakeWorker{})
	}
	for _, interval := range slots {
		c.before += uint64(interval.Clocks(e.Cut))
	}
	c.begin()
}

// pick chooses a server index or slot.
func (c *cluster) pick(n int) (Kind, int) {
	if n %= len(c.servers) + len(c.workers); n >= len(c.servers) {
		return Worker, n - len(c.servers)
	}
	return Server, n
}

func (c *cluster) do(d deed) {
	k, index := c.pick(d.A)
	slot, shard := d.A%len(c.workers), d.B%c.job.Shards
	switch d.Kind {
	case "round":
		c.round()
	case "die":
		c.kill(Worker, slot, "gone")
	case "work":
		c.work(slot)
	case "send":
		c.send(slot, shard)
	case "follow":
		c.follow(k, index)
	case "report":
		c.report(k, index)
	case "start":
		c.start(k, index)
	case "rejoin":
		if k == Server {
			c.process(k, index).silent = false // it thaws
		}
		if p := c.process(k, index); p.up && !p.connected {
			c.join(k, index)
		}
	case "answer", "refuse":
		c.answer(d.Kind == "answer")
	case "flow":
		if s := c.servers[d.A%len(c.servers)]; s.up && len(s.view.Shards) > 0 {
			c.flow(&s.view, shard)
			c.copy(&s.view, shard)
		}
	case "drain":
		if s := c.servers[d.A%len(c.servers)]; s.up && !s.silent && c.spare(d.A%len(c.servers), -1) {
			s.draining, s.notice = true, []int64{0, 1, 900, 3000}[d.B%4]
		}
	case "more":
		if len(c.servers) < 6 && c.core.record.Placed() {
			c.more()
		}
	case "kill":
		if k == Server && !c.spare(index, -1) {
			return
		}
		c.kill(k, index, []string{"gone", "disconnect", "silent"}[d.B%3])
	case "tick":
		c.patient()
		c.core.Tick()
		c.flush()
	case "ghost":
		c.ghost(k, index)
	case "restart":
		c.restart()
	case "lose":
		c.losing = true
	case "drop":
		c.drop(shard)
	case "scale":
		c.scale(d)
	case "close":
		c.core.RequestFinalCheckpoint()
		c.flush()
	case "end":
		if w := c.workers[slot]; w.granted && w.up {
			w.ending, w.paused = true, w.ending && w.paused
			c.asksForEnd(w)
		}
	}
}

// drop treats a shard as lost.
func (c *cluster) drop(shard int) {
	if c.spare(-1, shard) {
		c.excused[shard] = !c.careful
		c.core.Drop([]perdure.ShardID{perdure.ShardID(shard)})
		c.flush()
	}
}

// scale requests a change of members.
func (c *cluster) scale(d deed) {
	if recovery.Of(c.job.Recovery).Traits().EarlyAck {
		return // its bases are replayed from the beginning here, for all slots
	}
	f := c.core.Record()
	ch, err := f.Scaled(1+d.A%5, 0)
	if d.B%3 == 0 {
		ch, err = Change{Leave: []perdure.Slot{perdure.Slot(d.A % len(f.Slots))}}, nil
	}
	if d.B%4 == 0 && len(ch.Leave)+ch.Add > 0 {
		ch.At = c.core.MinClock() + perdure.Clock(1+d.B%7)
	}
	if err != nil || len(f.Slots)+ch.Add > mostSlots {
		return
	}
	_ = c.core.Scale(ch) // may be rejected
	c.flush()
}

// spare reports whether a careful job can lose a server, or a shard its head: fewer than N members of a chain are then
// missing, and a complete one is left.
func (c *cluster) spare(server, shard int) bool {
	if !c.careful {
		return true
	}
	v := &c.saved.View
	for i := range v.Shards {
		left, away := 0, 0
		for j, h := range v.Shards[i].Members() {
			s := c.servers[h.Server]
			switch {
			case !c.lives(h) || s.silent || s.draining || h.Server == server || i == shard && j == 0:
				away++
			default:
				left++
			}
		}
		if left == 0 || away >= recovery.Of(c.job.Recovery).Traits().Copies {
			return false
		}
	}
	return true
}

// patient sends signs of life of all processes in a careful job, because a suspect is killed.
func (c *cluster) patient() {
	if !c.careful {
		return
	}
	for i := range c.servers {
		if p := c.process(Server, i); p.up && !p.silent && !p.connected {
			c.join(Server, i)
		}
		c.report(Server, i)
	}
}

// runHealthy lets every process run, report and work for some rounds.
func (c *cluster) runHealthy(rounds int) {
	c.losing = false
	for range rounds {
		c.each(func(k Kind, index int, _ *fakeProcess) {
			if k == Server {
				c.process(k, index).silent = false
			}
			if k == Worker || !c.saved.Servers[index].Left || !c.job.NoReplace && c.deserted() {
				c.start(k, index)
			}
			if p := c.process(k, index); p.up && !p.silent && !p.connected {
				c.join(k, index)
			}
		})
		c.round()
		c.answer(true)
		c.core.Tick()
		c.flush()
	}
}

// round lets every running process follow, report and work once.
func (c *cluster) round() {
	c.each(func(k Kind, index int, _ *fakeProcess) {
		c.follow(k, index)
		c.report(k, index)
	})
	for i := range c.workers {
		for range 2 {
			for shard := range c.job.Shards {
				c.send(i, shard)
			}
			c.work(i)
		}
	}
}

// deserted reports whether no server is left except those that have been released.
func (c *cluster) deserted() bool {
	for i, s := range c.servers {
		if s.up && !c.saved.Servers[i].Left {
			return false
		}
	}
	return true
}

// checkProgress checks that with all processes up and honest the job is served, makes progress and, if it has an end,
// completes.
func (c *cluster) checkProgress() error {
	for _, s := range c.servers {
		s.draining = s.draining && c.core.record.Placed()
	}
	noticed := func() { // it may have been silent from the beginning
		if slices.ContainsFunc(c.workers, func(w *fakeWorker) bool { return w.silent }) {
			c.runHealthy(int(failuredetector.MaxStartingFactor * c.patience))
		}
	}
	noticed()
	c.runHealthy(30)
	if !c.careful && c.wrong == nil && (c.saved.Failed != "" || c.awaits()) {
		return nil
	}
	if c.wrong == nil && !c.core.Serving() {
		c.fail("it does not serve")
	}
	c.checkBalance()
	c.checkLoss()
	goal := c.core.MinClock() + 3
	if end := c.saved.View.End; end > 0 {
		goal = min(goal, end)
	}
	c.runHealthy(20)
	if c.core.MinClock() < goal { // the core waits for a worker only once it is no longer early
		noticed()
		c.runHealthy(20)
	}
	if c.wrong == nil && c.core.MinClock() < goal {
		c.fail("it is stuck at clock %d, goal %d", c.core.MinClock(), goal)
	}
	for i := range c.workers {
		if cond := c.core.MemberStatus(Worker, i); cond.State != "alive" && cond.State != "left" && c.wrong == nil &&
			!c.core.job.isEarly(i) {
			c.fail("worker %d is %s", i, cond.State)
		}
	}
	if c.wrong == nil && c.saved.Final != nil && !c.core.FinalCheckpointDone() &&
		(c.saved.View.End == 0 || max(c.saved.Final.Cut, c.saved.View.Durable) < c.saved.View.End) {
		c.fail("its last checkpoint, %+v, is missing; at clock %d, durable %d", c.saved.Final, c.core.MinClock(),
			c.saved.View.Durable)
	}
	if c.saved.View.End > 0 {
		c.runHealthy(20)
		if c.wrong == nil && !c.core.Complete() {
			c.fail("it is not completed at clock %d, end %d, durable %d", c.core.MinClock(), c.saved.View.End,
				c.saved.View.Durable)
		}
	}
	if c.wrong != nil {
		return fmt.Errorf("%w\n%s%s", c.wrong, c.describe(), c.told.String()[max(0, c.told.Len()-1500):])
	}
	return nil
}

// awaits reports whether the last holder of some shard's rows is dead and no process can report that. The job then
// waits for it, because the rows exist nowhere else.
func (c *cluster) awaits() bool {
	for i := range c.saved.View.Shards {
		chain := c.saved.View.Shards[i].Members()
		if c.core.job.irreplaceable() && !slices.ContainsFunc(chain, c.lives) &&
			slices.ContainsFunc(chain, func(h protocol.Holder) bool {
				return c.saved.Servers[h.Server].Left && c.core.job.holderState(&h) == memberSilent
			}) {
			return true
		}
	}
	return false
}

// checkBalance checks that all chains are as long as possible and in as many zones as possible, and that the servers
// have equal shares if there are no zones.
func (c *cluster) checkBalance() {
	var open []int
	zones := map[string]bool{}
	for i := range c.servers {
		if c.core.job.eligible(i) {
			open = append(open, i)
			zones[c.saved.Servers[i].Zone] = true
		}
	}
	held := map[int]int{}
	for i := range c.saved.View.Shards {
		sv := &c.saved.View.Shards[i]
		chain, in := sv.Members(), map[string]bool{}
		want := min(recovery.Of(c.job.Recovery).Traits().Copies, max(1, len(open)))
		if len(chain) != want || sv.Joining != nil {
			c.fail("shard %d has %d replicas, want %d of %d servers", i, len(chain), want, len(open))
		}
		for _, h := range chain {
			held[h.Server]++
			in[c.saved.Servers[h.Server].Zone] = true
			if len(open) > 0 && !c.core.job.eligible(h.Server) {
				c.fail("shard %d is still on server %d", i, h.Server)
			}
		}
		if !recovery.Of(c.job.Recovery).Traits().EarlyAck && len(in) != min(len(chain), max(1, len(zones))) {
			c.fail("shard %d is in %d zones of %d", i, len(in), len(zones))
		}
	}
	for _, x := range open {
		for _, y := range open {
			if c.zones == 1 && !recovery.Of(c.job.Recovery).Traits().EarlyAck && !c.core.Complete() &&
				held[x] > held[y]+1 {
				c.fail("server %d holds %d replicas, server %d holds %d", x, held[x], y, held[y])
			}
		}
	}
}

// checkLoss checks the number of lost updates against the rows, and, where nothing may be lost, the acknowledged
// updates against the applied ones.
func (c *cluster) checkLoss() {
	for i := range c.saved.View.Shards {
		sv := &c.saved.View.Shards[i]
		sh := c.replica(&c.saved.View, i, sv.Holder)
		if !sh.serves() {
			c.fail("shard %d is not served", i)
			continue
		}
		traits := recovery.Of(c.job.Recovery).Traits()
		if traits.MayLoseUpdates() || !traits.SavesCuts() { // otherwise rows that roll back to a cut do not report it
			missing := c.saved.PastClocks - int64(sh.seq)
			for slot, n := range sh.in.Applied() {
				missing += int64(c.saved.View.Slots[slot].Clocks(n))
				for _, u := range sh.in.Pending(perdure.Slot(slot)) {
					if u.Lost {
						missing++ // held back by a cut
					}
				}
			}
			if missing != c.saved.ShardLost[i] && !(c.job.SuspendMs > 0 && missing < c.saved.ShardLost[i]) {
				c.fail("shard %d lacks %d updates, %d are counted", i, missing, c.saved.ShardLost[i])
			}
		}
		if traits.MayLoseUpdates() {
			continue
		}
		for slot, w := range c.workers {
			if got := sh.in.Counts(perdure.Slot(slot)).Applied; w.up && w.view.Generation == sh.generation &&
				got < w.acked[i] {
				c.fail("shard %d has %d clocks of slot %d, which has %d acknowledged", i, got, slot, w.acked[i])
			}
		}
	}
}

// TestStorms checks that, whatever dies, is late or is forgotten, every view follows correctly from the previous one,
// and that the job makes progress once all processes are well.
func TestStorms(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		if err := storms().Draw(t, "storm").run(); err != nil {
			t.Fatal(err)
		}
	})
}

// TestPartialStorms checks that partial strategies never roll back, and count each update that a shard lacks once.
func TestPartialStorms(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		if err := stormsOf(partial, deedWeights).Draw(t, "storm").run(); err != nil {
			t.Fatal(err)
		}
	})
}

// TestDrainedIsNobody checks that, when the last server dies, a drained one that has not ended yet does not count as a
// server, and others join.
func TestDrainedIsNobody(t *testing.T) {
	c := newCluster(perdure.JobSpec{
		Slots: 1, Servers: 1, Shards: 1,
		Consistency: perdure.Consistency{Kind: perdure.BSP},
		Recovery:    perdure.Recovery{Kind: perdure.RecoverCheckpoint, Every: 2},
	}, 4)
	c.runHealthy(2)
	c.more()
	c.servers[0].draining = true
	c.runHealthy(5)
	if !c.saved.Servers[0].Left || !c.servers[0].up {
		t.Fatalf("server 0 is not drained: %+v", c.saved.Servers[0])
	}
	c.kill(Server, 1, "gone")
	if err := c.checkProgress(); err != nil {
		t.Fatal(err)
	}
}

// TestLastNewcomerIsAwaited checks that the job waits for a silent unmanaged server that may hold the last rows,
// although no supervisor will report its death.
func TestLastNewcomerIsAwaited(t *testing.T) {
	c := newCluster(perdure.JobSpec{
		Slots: 1, Servers: 2, Shards: 1,
		Consistency: perdure.Consistency{Kind: perdure.BSP}, Recovery: chain2,
	}, 4)
	c.runHealthy(2)
	c.more()
	c.servers[0].draining = true
	c.runHealthy(5)
	c.kill(Server, 1, "gone")
	c.kill(Server, 2, "disconnect")
	if err := c.checkProgress(); err != nil {
		t.Fatal(err)
	}
	if c.core.Serving() || c.saved.Failed != "" || !c.awaits() {
		t.Fatalf("serving %v, failed %q", c.core.Serving(), c.saved.Failed)
	}
}

// TestTornClockRollsBack checks that a clock that was ticked on one shard and is not staged on another causes a
// rollback. Honest servers never report that, because a server that lost its staged updates has died itself: this is
// the last line of defence.
func TestTornClockRollsBack(t *testing.T) {
	c := newCluster(perdure.JobSpec{
		Slots: 1, Servers: 1, Shards: 2,
		Consistency: perdure.Consistency{Kind: perdure.BSP},
		Recovery:    perdure.Recovery{Kind: perdure.RecoverCheckpoint, Every: 10},
	}, 4)
	c.runHealthy(2)
	c.kill(Worker, 0, "gone")
	fence := func(staged, ticked perdure.Clock) []protocol.Fence {
		return []protocol.Fence{{Incarnation: 2, Counts: protocol.Counts{Staged: staged, Ticked: ticked, Applied: 4}}}
	}
	c.core.ServerStatus(0, c.servers[0].name, protocol.ServerStatus{Shards: []protocol.ShardStatus{
		{Shard: 0, Generation: 1, Epoch: 1, Ready: true, Fences: fence(5, 5)},
		{Shard: 1, Generation: 1, Epoch: 1, Ready: true, Fences: fence(4, 4)},
	}})
	v := c.core.Record().View
	if v.Generation != 2 || !v.Slots[0].Decided || v.Slots[0].Start != 0 || v.Slots[0].Settled {
		t.Fatalf("%+v", v)
	}
}
