package sim_test

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"os"
	"runtime/pprof"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/membership"
	"github.com/perdure/perdure/internal/core/recovery"
	"github.com/perdure/perdure/internal/data/checkpoint"
	"github.com/perdure/perdure/internal/data/disk"
	"github.com/perdure/perdure/internal/data/store"
	"github.com/perdure/perdure/internal/proc/transport"
	"github.com/perdure/perdure/internal/sim"
	"github.com/perdure/perdure/internal/testcluster"
)

const clocks = 24

// scenario is a job and its faults, as drawn from a seed.
type scenario struct {
	job   perdure.JobSpec
	kills int
	cuts  int
	fills int // number of times that the disk is full
	sync  time.Duration
	net   transport.MemoryOptions
	// Max time that a process is unavailable or two hosts are partitioned. The coordinator abandons processes that are
	// silent for longer than its patience.
	pause, cut time.Duration

	// The fields below are drawn from separate random numbers, so that old seeds keep their meaning.
	zones       int               // number of zones of the servers
	parent      bool              // a parent reports deaths and kills suspects
	pace        time.Duration     // pause between two clocks
	drains      int               // servers to drain
	notice      time.Duration     // time that these have to hand over; 0: unlimited
	joins       int               // additional servers that join
	strikes     int               // faults followed by the coordinator's death a few milliseconds later
	pairs       int               // simultaneous deaths of two servers
	routs       int               // simultaneous deaths of all servers
	freezes     int               // processes to freeze for a while
	plan        []sim.Planned     // planned changes of the number of workers
	whole       bool              // tables are whole and dense
	goal        perdure.Clock     // clock from which programs request the job's end; 0: never
	misses      perdure.Clock     // number of clocks, out of every four, whose model misses the goal
	skips       bool              // some updates cover several clocks
	ends        bool              // the run is ended before the job is done
	resumes     resumes           // what happens after all its processes have ended
	ebbs        bool              // there is a table with late rows and eviction
	means       bool              // there is a table that combines updates by their mean
	learners    *sim.LearnerFault // there is a table of weights that slots change while their clock ends
	rounding    sim.Rounding      // of the learners' changes and weights
	scales      int               // changes of the number of workers requested while the job runs
	lossless    bool              // no row may be lost, although the strategy permits it
	follow      bool              // checkpoints contain only changed rows
	retain      int64             // max bytes of updates that a worker keeps until a checkpoint; 0: unlimited
	onlyServers bool              // only servers and the coordinator die: no rollback, unless a silent worker is killed
	// workers that only the coordinator cannot reach, for longer than its patience
	exiles int
	// pairs of a server and another process that are partitioned for longer than the patience
	parts    int
	torn     int           // workers that die while partitioned from a server
	boths    int           // deaths of a worker and servers shortly after one another
	deaf     int           // workers that learn of a loss only after a while
	relaxed  *int          // counts reads that were relaxed
	counts   *sim.Counts   // the test's sum of events
	late     time.Duration // additional downtime of every other server
	deaths   int           // additional deaths of the coordinator
	aways    int           // outages of the update log
	slow     time.Duration // max latency of the update log per record
	snapshot int64         // bytes of the log between snapshots
	limit    int64         // max bytes of the log per shard; 0: unlimited
	stored   bool          // slot states are in the store for all seeds
	rift     bool          // two processes lose contact permanently
	window   time.Duration // time window of the faults common to all scenarios; 0: the default
}

func (s scenario) String() string {
	return fmt.Sprintf("%d workers, %d servers in %d zones, %d shards, %s, %s, a failure every %.3gs, parent %t, "+
		"replaces %t, %v between clocks; "+
		"%d kills, %d cuts, %d full disks, %d drains, %d joins, %d strikes, %d pairs, %d routs, %d freezes, %d "+
		"exiles, %d partitions, the log %d times away and slow by %v, snapshots every %d bytes of %d at most, plan "+
		"%v, %d changes, whole tables %t, rows that go %t, means %t",
		s.job.Slots, s.job.Servers, s.zones, s.job.Shards, s.job.Models(), s.job.Recovery, s.job.MTBF, s.parent,
		!s.job.NoReplace, s.pace,
		s.kills, s.cuts, s.fills, s.drains, s.joins, s.strikes, s.pairs, s.routs, s.freezes, s.exiles, s.parts,
		s.aways, s.slow, s.snapshot, s.limit, s.plan, s.scales, s.whole, s.ebbs, s.means)
}

// drawing draws a scenario from a seed, and returns the random numbers for its faults.
type drawing func(seed uint64) (scenario, *rand.Rand)

// draw draws a scenario with checkpoints.
func draw(seed uint64) (scenario, *rand.Rand) {
	s, rng := drawJob(seed)
	if more := extra(seed); more.IntN(3) == 0 {
		s.drains, s.joins = more.IntN(3), more.IntN(3)
		s.drawPace(more)
	}
	s.drawAuto(seed)
	return s, rng
}

// drawAuto uses automatic checkpoint intervals for some seeds.
func (s *scenario) drawAuto(seed uint64) {
	if seed%11 != 5 && seed%11 != 10 {
		return
	}
	more := rand.New(rand.NewPCG(seed, 11))
	s.job.Recovery.Every, s.job.Recovery.Auto = 0, true
	if s.job.MTBF = math.Pow(10, -3+4*more.Float64()); more.IntN(3) == 0 {
		s.job.MTBF = 0
	}
}

// drawJob draws the properties common to all scenarios.
func drawJob(seed uint64) (scenario, *rand.Rand) {
	rng := rand.New(rand.NewPCG(seed, 1))
	models := []string{"bsp", "ssp:0", "ssp:2", "asp", "essp:0", "essp:2", "vap:30", "vap:200"}
	model, _ := perdure.ParseConsistency(models[rng.IntN(len(models))])
	s := scenario{pause: 30 * time.Millisecond, cut: 60 * time.Millisecond, job: perdure.JobSpec{
		ID: fmt.Sprintf("seed-%d", seed), Seed: seed, Slots: 1 + rng.IntN(4), Servers: 1 + rng.IntN(3), Clocks: clocks,
		Consistency: model, Recovery: perdure.Recovery{
			Kind:  perdure.RecoverCheckpoint,
			Every: perdure.Clock(2 + rng.IntN(8)),
		},
	}}
	s.job.Shards = s.job.Servers + rng.IntN(4)
	if model.Kind == perdure.BSP && seed%2 == 0 { // not drawn, so that old seeds keep their meaning
		beside, _ := perdure.ParseConsistency([]string{"essp:1", "ssp:1", "vap:60"}[seed/2%3])
		s.job.TableConsistency = map[string]perdure.Consistency{"history": beside}
	}
	if rng.IntN(4) > 0 {
		s.kills = 1 + rng.IntN(4)
	}
	if rng.IntN(2) == 0 {
		s.net.Breaks = 0.002
	}
	if rng.IntN(2) == 0 {
		s.cuts = 1 + rng.IntN(4)
	}
	if rng.IntN(4) == 0 {
		s.fills = 1
	}
	if rng.IntN(2) == 0 {
		s.sync = time.Duration(1 + rng.Int64N(int64(10*time.Millisecond)))
	}
	return s, rng
}

// drawChain draws a scenario of replicated shards.
func drawChain(seed uint64) (scenario, *rand.Rand) {
	s, rng := drawJob(seed)
	n := 2 + rng.IntN(2)
	s.job.Recovery = perdure.Recovery{Kind: perdure.RecoverChain, Replicas: n}
	s.job.Servers = n + rng.IntN(2)
	s.job.Shards = s.job.Servers + rng.IntN(4)
	s.kills, s.fills = rng.IntN(6), 0
	if rng.IntN(4) == 0 {
		s.cut = 4 * time.Second
	}
	s.drawMore(extra(seed))
	return s, rng
}

// drawSaved draws a scenario of replicated shards with checkpoints, in which a shard's last replica may die. (If
// servers are not replaced, all of them could die.)
func drawSaved(seed uint64) (scenario, *rand.Rand) {
	s, rng := drawChain(seed)
	s.job.Recovery.Checkpoints, s.job.NoReplace = true, false
	s.joins = 0 // a joining server may take the index of one whose replacement is awaited
	more := rand.New(rand.NewPCG(seed, 7))
	s.job.Recovery.Every = perdure.Clock(1 + more.IntN(9))
	s.routs, s.pairs = more.IntN(3), s.pairs+more.IntN(3)
	if more.IntN(2) == 0 {
		s.sync = time.Duration(1 + more.Int64N(int64(20*time.Millisecond))) // long enough for deaths during a sync
	}
	s.drawAuto(seed)
	return s, rng
}

// drawResend draws a scenario in which workers resend updates. For half of the seeds only servers and the coordinator
// die. Cuts are rare, or requested because workers must retain little.
func drawResend(seed uint64) (scenario, *rand.Rand) {
	s, rng := drawJob(seed)
	more := rand.New(rand.NewPCG(seed, 9))
	s.job.Recovery = perdure.Recovery{Kind: perdure.RecoverResend, Every: perdure.Clock(1 + more.IntN(10))}
	if more.IntN(3) == 0 {
		s.job.Recovery.Every = 1000
		if more.IntN(2) == 0 {
			s.retain = 1 + more.Int64N(20_000)
		}
	}
	s.job.Servers, s.job.Shards = 1+more.IntN(4), 4+more.IntN(4)
	s.kills = 1 + more.IntN(6)
	s.onlyServers = more.IntN(2) == 0
	s.drawMore(more)
	s.pairs, s.routs, s.follow = more.IntN(3), more.IntN(2), more.IntN(2) == 0
	if s.job.NoReplace {
		s.pairs, s.routs, s.strikes, s.drains, s.freezes, s.parts, s.cuts = 0, 0, 0, 0, 0, 0, 0
		s.kills, s.parent = min(s.kills, s.job.Servers-1), true // one server is left; silent ones are waited for
	}
	s.drawAuto(seed)
	return s, rng
}

// drawLossy draws a scenario of shards that may lose updates.
func drawLossy(seed uint64) (scenario, *rand.Rand) {
	return []drawing{drawNone, drawEvery, drawEager, drawEager, drawEager}[seed%5](seed)
}

// drawNone draws a scenario without any copies of shards.
func drawNone(seed uint64) (scenario, *rand.Rand) {
	s, rng := drawChain(seed)
	s.job.Recovery, s.job.NoReplace = perdure.Recovery{Kind: perdure.RecoverNone}, false
	s.pairs = 0
	return s, rng
}

// drawScar draws a scenario that saves each row separately.
func drawScar(seed uint64) (scenario, *rand.Rand) {
	s, rng := drawNone(seed)
	more := rand.New(rand.NewPCG(seed, 10))
	r := perdure.Recovery{
		Kind: perdure.RecoverScar, Every: perdure.Clock(1 + more.IntN(8)),
		Share: []float64{1, 0.5, 1.0 / 8, 0.3}[more.IntN(4)],
		Selector: []perdure.Selector{
			perdure.SelectPriority, perdure.SelectRound, perdure.SelectRandom, perdure.SelectUsed,
		}[more.IntN(4)],
	}
	if more.IntN(4) == 0 {
		r.Every, r.Auto = 0, true
	}
	s.job.Recovery, s.pairs, s.routs, s.kills = r, more.IntN(2), more.IntN(2), s.kills+more.IntN(3)
	s.fills = more.IntN(2)
	if more.IntN(2) == 0 {
		s.sync = time.Duration(1 + more.Int64N(int64(20*time.Millisecond)))
	}
	s.drawScarMore(rand.New(rand.NewPCG(seed, 15)))
	return s, rng
}

// drawScarMore draws more faults for jobs that save each row separately. Servers are not replaced, so that others take
// over their shards. Servers hand over, and the receiver saves all rows. The coordinator dies while rounds are recorded
// and published.
func (s *scenario) drawScarMore(more *rand.Rand) {
	switch more.IntN(4) {
	case 0: // one server is left; silent ones are waited for
		s.job.NoReplace, s.job.Servers = true, 2+more.IntN(3)
		s.job.Shards = s.job.Servers + more.IntN(4)
		s.pairs, s.routs, s.strikes, s.drains, s.freezes, s.parts, s.cuts, s.joins = 0, 0, 0, 0, 0, 0, 0, 0
		s.kills, s.parent = min(s.kills, s.job.Servers-1), true
	case 1:
		s.drains, s.joins, s.kills = 1+more.IntN(3), more.IntN(3), max(s.kills, 2)
	case 2:
		s.strikes, s.deaths = s.strikes+1, 1+more.IntN(4)
	}
	if more.IntN(2) == 0 {
		s.pace = time.Duration(1+more.IntN(40)) * time.Millisecond
	}
	if s.fills += more.IntN(2); more.IntN(4) == 0 {
		s.sync = time.Duration(1 + more.Int64N(int64(60*time.Millisecond))) // as long as several clocks
	}
	if more.IntN(4) == 0 {
		s.job.Consistency, _ = perdure.ParseConsistency([]string{"asp", "essp:1", "essp:0", "ssp:1"}[more.IntN(4)])
		s.job.TableConsistency = nil
		s.job.OnOutage = perdure.OnOutage{Continue: true, Clocks: 1 + perdure.Clock(more.IntN(7))}
		s.job.OutageRows = []perdure.OutageRows{perdure.RowsFrozen, perdure.RowsApply}[more.IntN(2)]
	}
}

// drawEager draws chains whose heads do not wait for the other replicas. drawEvery draws such chains that update the
// other replicas only every few clocks.
func drawEager(seed uint64) (scenario, *rand.Rand) {
	s, rng := drawChain(seed)
	s.job.Recovery.Async = true
	return s, rng
}

func drawEvery(seed uint64) (scenario, *rand.Rand) {
	s, rng := drawChain(seed)
	s.job.Recovery.Every = perdure.Clock(1 + seed/5%6)
	return s, rng
}

// drawStateless draws a scenario of shards whose updates are logged.
func drawStateless(seed uint64) (scenario, *rand.Rand) {
	s, rng := drawJob(seed)
	s.job.Recovery = perdure.Recovery{Kind: perdure.RecoverStateless}
	more := rand.New(rand.NewPCG(seed, 9))
	s.kills, s.snapshot = s.kills+more.IntN(3), 1<<(10+more.IntN(8))
	if more.IntN(2) == 0 {
		s.aways = 1 + more.IntN(3)
	}
	if more.IntN(2) == 0 {
		s.slow = time.Duration(1 + more.Int64N(int64(5*time.Millisecond)))
	}
	if more.IntN(3) == 0 {
		s.limit = 40 << 10
	}
	if more.IntN(3) > 0 {
		s.parent, s.zones, s.routs, s.pairs = more.IntN(2) == 0, 0, more.IntN(2), more.IntN(2)
		s.drains, s.joins, s.strikes, s.freezes, s.parts = more.IntN(3), more.IntN(2), more.IntN(2), more.IntN(3),
			more.IntN(2)
		s.drawPace(more)
	}
	return s, rng
}

// extra returns random numbers for properties added later, so that old seeds keep their meaning.
func extra(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 6)) }

// drawMore draws, for two of three scenarios, faults that only replicated shards survive.
func (s *scenario) drawMore(rng *rand.Rand) {
	if rng.IntN(3) == 0 {
		return
	}
	s.parent, s.job.NoReplace, s.zones = rng.IntN(2) == 0, rng.IntN(4) == 0, rng.IntN(4)
	s.drawPace(rng)
	some := func(often int) int {
		if rng.IntN(often) > 0 {
			return 0
		}
		return 1 + rng.IntN(3)
	}
	s.drains, s.joins, s.strikes, s.freezes, s.parts = some(2), some(3), some(3), some(4), some(4)
	if s.job.Recovery.Replicas > 2 {
		s.pairs = some(2)
	}
	if rng.IntN(8) == 0 {
		s.fills = 1
	}
}

// drawPace slows some jobs down, so that more than one fault can hit them.
func (s *scenario) drawPace(rng *rand.Rand) {
	if rng.IntN(3) == 0 {
		s.pace = time.Duration(1+rng.IntN(60)) * time.Millisecond
	}
}

// slots returns the max number of slots of a job.
func (s *scenario) slots() int {
	n := len(sim.PlannedMembership(s.job, s.plan))
	if s.scales > 0 {
		n += maxJoins
	}
	return n + s.resumes.more
}

// states returns the maximum number of bytes of a slot state that is kept outside the store: 1, so that almost every
// state is in the store, or 0 for the default.
func (s *scenario) states(drawn bool, seed uint64) int {
	if s.stored || drawn && seed%3 == 1 {
		return 1
	}
	return 0
}

// history returns the scenario's checker.
func (s *scenario) history(slots int) *sim.History {
	h := sim.NewHistory(s.job, recovery.Of(s.job.Recovery).Traits().MayLoseUpdates(), slots, s.plan)
	h.Pace, h.Goal, h.Misses, h.Skips = s.pace, s.goal, s.misses, s.skips
	if s.whole {
		h.UseSingleShardTables()
	}
	if s.ebbs {
		h.AddEvictingTable()
	}
	if s.means {
		h.AddMeanTable()
	}
	if s.learners != nil {
		h.AddLearners(*s.learners, s.rounding)
	}
	return h
}

// run runs a scenario to its end in virtual time.
func run(t *testing.T, seed uint64, s scenario, rng *rand.Rand, weaken func(*sim.Options)) (err error) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		patience := 5 * time.Minute // virtual
		if weaken != nil {
			patience = time.Minute
		}
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		h := s.history(s.slots())
		o := sim.Options{
			Seed: seed, Job: s.job, NetworkOptions: s.net, Sync: s.sync, Zones: s.zones,
			Supervised: s.parent, Plan: s.plan, RetainBytes: s.retain, Incremental: s.follow,
			SnapshotBytes: s.snapshot, LogBytes: s.limit * int64(s.job.Shards),
			StateBytes: s.states(weaken == nil, seed), Notice: s.notice,
		}
		if *oneSeed != 0 {
			o.Log = slog.New(slog.NewTextHandler(os.Stderr, nil))
			o.Log.Info("SCENARIO", "seed", seed, "of", s.String())
		}
		if weaken != nil {
			weaken(&o)
		}
		f := &faults{all: ctx, s: s, h: h, o: o, seed: seed}
		f.start(rng)
		if *oneSeed != 0 {
			f.at(patience-time.Second, f.hangs)
		}
		err = f.wait()
	})
	return err
}

// start starts a cluster and plans its faults.
func (f *faults) start(rng *rand.Rand) {
	s, slots := f.s, f.s.slots()
	f.o.Program, f.o.Events = f.h.Program, f.h
	f.ctx, f.over = context.WithCancel(f.all)
	f.c, f.hosts = sim.Start(f.all, f.o), []string{"coordinator"}
	for i := range s.job.Servers {
		f.servers = append(f.servers, fmt.Sprintf("server:%d", i))
	}
	f.hosts = append(f.hosts, f.servers...)
	for i := range slots {
		if !s.onlyServers {
			f.hosts = append(f.hosts, fmt.Sprintf("worker:%d", i))
		}
	}
	if s.slow > 0 {
		delays := rand.New(rand.NewPCG(f.seed, 10))
		var mu sync.Mutex
		f.c.Log().SetDelay(func(int) time.Duration {
			mu.Lock()
			defer mu.Unlock()
			return span(delays, s.slow)
		})
	}
	f.plan(rng)
	f.planMore(extra(^f.seed))
	f.planPartialUpdates(rand.New(rand.NewPCG(f.seed, 13)))
	f.planLateLossNotices(rand.New(rand.NewPCG(f.seed, 14)))
	f.planJointDeaths(rand.New(rand.NewPCG(f.seed, 15)))
	f.planCoordinatorPartitions(rand.New(rand.NewPCG(f.seed, 12)))
	f.planMembershipChanges(rand.New(rand.NewPCG(f.seed, 7)), slots)
	f.planEnd(rand.New(rand.NewPCG(f.seed, 19)))
	f.planLastingPartition(rand.New(rand.NewPCG(f.seed, 25)))
}

// wait waits for the end of a cluster and checks it.
func (f *faults) wait() error {
	err := f.h.Result(f.c.Wait())
	f.over()
	if f.s.relaxed != nil {
		*f.s.relaxed += f.h.Relaxed()
	}
	if f.s.counts != nil {
		f.s.counts.Add(f.c.Counts())
	}
	if err != nil {
		return err
	}
	return f.judge()
}

// hangs reports the state of a job that does not end.
func (f *faults) hangs() {
	record, err := f.c.JobRecord()
	b, _ := json.MarshalIndent(record, "", "  ") // a parsed record can be encoded
	fmt.Fprintf(os.Stderr, "HANGS: %v %s\n", err, b)
	_ = pprof.Lookup("goroutine").WriteTo(os.Stderr, 1) // best effort
}

// faults injects faults into a cluster.
type faults struct {
	all, ctx       context.Context // of all resumed runs, and of this one
	over           func()
	s              scenario
	h              *sim.History
	c              *sim.Cluster
	hosts, servers []string
	stop           *sim.Stop // set if the run ends early
	o              sim.Options
	seed           uint64
}

func span(rng *rand.Rand, most time.Duration) time.Duration {
	return time.Duration(rng.Int64N(int64(most)))
}

func one(rng *rand.Rand, of []string) string { return of[rng.IntN(len(of))] }

// at calls what at a time.
func (f *faults) at(t time.Duration, what func()) {
	go func() {
		select {
		case <-time.After(t):
			what()
		case <-f.ctx.Done():
		}
	}()
}

// plan plans the faults common to all scenarios.
func (f *faults) plan(rng *rand.Rand) {
	later := func(what func()) { f.at(span(rng, cmp.Or(f.s.window, clocks*4*time.Millisecond)), what) }
	for range f.s.kills {
		host, pause := one(rng, f.hosts), span(rng, f.s.pause)
		later(func() { f.kill(pause, host) })
	}
	for range f.s.cuts {
		a, b, oneWay, d := one(rng, f.hosts), one(rng, f.hosts), rng.IntN(2) == 0, span(rng, f.s.cut)
		if a != b {
			later(func() {
				if f.spares(a) && f.spares(b) {
					f.c.Partition(a, b, oneWay, d)
				}
			})
		}
	}
	for range f.s.fills {
		d := span(rng, maxFullTime)
		later(func() { f.c.FillDisk(d) })
	}
}

// planMore plans the faults that were drawn later.
func (f *faults) planMore(rng *rand.Rand) {
	s := f.s
	window := clocks * (4*time.Millisecond + s.pace)
	later := func(what func()) { f.at(span(rng, window), what) }
	for n := range s.joins {
		name := testcluster.UnnumberedServer(n)
		later(func() { f.c.Join(name) })
		f.servers = append(f.servers, name)
	}
	for range s.aways {
		d := span(rng, time.Second)
		later(func() { f.c.LogOutage(d) })
	}
	for range s.drains {
		host, pause := one(rng, f.servers), f.away(span(rng, s.pause))
		later(func() {
			if f.spares(host) {
				f.c.Drain(host, pause)
			}
		})
	}
	for range s.strikes {
		host, pause, soon, back := one(rng, f.servers), span(rng, s.pause), span(rng, 5*time.Millisecond),
			span(rng, s.pause)
		later(func() {
			f.kill(pause, host)
			f.at(soon, func() { f.c.Kill("coordinator", back) })
		})
	}
	for range s.deaths {
		pause := span(rng, s.pause)
		later(func() { f.c.Kill("coordinator", pause) })
	}
	for range s.pairs {
		a, b, pause := one(rng, f.servers), one(rng, f.servers), span(rng, s.pause)
		later(func() { f.kill(pause, a, b) })
	}
	for range s.routs {
		pause := span(rng, s.pause)
		later(func() { f.kill(pause, f.servers...) })
	}
	for range s.freezes {
		host, d := one(rng, f.hosts), span(rng, 3*time.Second)
		later(func() {
			if f.spares(host) {
				f.c.Freeze(host, d)
			}
		})
	}
	for range s.parts {
		a, b, oneWay, d := one(rng, f.servers), one(rng, f.hosts), rng.IntN(2) == 0,
			time.Second+span(rng, 5*time.Second)
		if rng.IntN(2) == 0 {
			b = "coordinator"
		}
		if rng.IntN(2) == 0 {
			a, b = b, a // reverse a one-way cut
		}
		later(func() {
			if a != b && f.spares(a) && f.spares(b) {
				f.c.Partition(a, b, oneWay, d)
			}
		})
	}
}

// planCoordinatorPartitions plans partitions between workers and the coordinator only.
func (f *faults) planCoordinatorPartitions(rng *rand.Rand) {
	for range f.s.exiles {
		host, d := fmt.Sprintf("worker:%d", rng.IntN(f.s.job.Slots)), 1500*time.Millisecond+span(rng, 2*time.Second)
		f.at(span(rng, clocks*f.s.pace/2), func() { f.c.Partition(host, "coordinator", false, d) })
	}
}

// planLateLossNotices plans shard losses that one worker does not learn of for a while. It continues to send updates of
// the earlier generation and epoch.
func (f *faults) planLateLossNotices(rng *rand.Rand) {
	for range f.s.deaf {
		host, lost := rng.IntN(f.s.job.Slots), []string{fmt.Sprintf("worker:%d", rng.IntN(f.s.job.Slots))}
		for _, i := range rng.Perm(f.s.job.Servers)[:max(1, f.s.job.Recovery.Replicas)] {
			lost = append(lost, f.servers[i])
		}
		deaf, pause := 60*time.Millisecond+span(rng, 60*time.Millisecond), span(rng, 5*time.Millisecond)
		f.at(span(rng, clocks*(4*time.Millisecond+f.s.pace)), func() {
			f.c.Partition(fmt.Sprintf("worker:%d", host), "coordinator", false, deaf)
			f.kill(pause, lost...)
		})
	}
}

// planPartialUpdates plans deaths of workers from which one server has received less than the others.
func (f *faults) planPartialUpdates(rng *rand.Rand) {
	for range f.s.torn {
		host, server := fmt.Sprintf("worker:%d", rng.IntN(f.s.job.Slots)), one(rng, f.servers)
		deaf, pause := 2*time.Millisecond+span(rng, 10*time.Millisecond), span(rng, f.s.pause)
		f.at(span(rng, clocks*(4*time.Millisecond+f.s.pace)), func() {
			f.c.Partition(host, server, false, deaf)
			f.at(deaf, func() { f.kill(pause, host) })
		})
	}
}

// maxJoins is the max number of slots that join after the job begins.
const maxJoins = 3

// planMembershipChanges plans changes of the number of workers.
func (f *faults) planMembershipChanges(rng *rand.Rand, slots int) {
	// Except with ticks, a slot whose process has died leaves immediately. Updates that only some shards have remain
	// there, which this checker cannot judge.
	mayLeave := f.s.job.ClockMode(nil).Ticks() || f.s.kills+f.s.strikes+f.s.freezes+f.s.parts+f.s.cuts == 0
	for range f.s.scales {
		workers, leaver := 1+rng.IntN(slots), perdure.Slot(rng.IntN(slots))
		if rng.IntN(3) > 0 {
			leaver = -1
		}
		f.at(span(rng, clocks*(4*time.Millisecond+f.s.pace)), func() {
			f.c.Scale(func(record *membership.JobRecord) (membership.Change, error) {
				if leaver >= 0 && mayLeave {
					return membership.Change{Leave: []perdure.Slot{leaver}}, nil
				}
				ch, err := record.Scaled(workers, 0)
				if !mayLeave {
					ch.Leave = nil
				}
				// Numbers are reused, though not always in this run.
				if n := len(record.View.Slots) + ch.Add; err == nil && n > slots {
					ch.Add = max(0, slots-len(record.View.Slots))
				}
				return ch, err
			})
		})
	}
}

// away returns the pause before a server's replacement starts.
func (f *faults) away(pause time.Duration) time.Duration {
	if f.s.job.NoReplace {
		return sim.Never
	}
	if pause%2 == 1 {
		return pause + f.s.late
	}
	return pause
}

// kill kills hosts simultaneously if every shard keeps a replica.
func (f *faults) kill(pause time.Duration, hosts ...string) {
	if !f.spares(hosts...) {
		return
	}
	for _, host := range hosts {
		if sim.IsServer(host) {
			f.c.Kill(host, f.away(pause))
		} else {
			f.c.Kill(host, pause)
		}
	}
}

// spares reports whether every shard keeps a replica without hosts, where the strategy requires it.
func (f *faults) spares(hosts ...string) bool {
	t := recovery.Of(f.s.job.Recovery).Traits()
	if (t.RestartsWith != recovery.Everything || t.UsesLog()) && f.h.IsFinished() {
		return false // there may be no other copy of the rows to check
	}
	// No process replaces a server whose index was never held.
	if (t.RetainsUpdates() || t.SaveMode == recovery.SaveRows) && f.s.job.NoReplace {
		record, err := f.c.JobRecord()
		return err == nil && record.View.Shards[0].Server >= 0
	}
	return f.s.job.Recovery.Kind != perdure.RecoverChain || t.SavesCuts() ||
		!slices.ContainsFunc(hosts, sim.IsServer) || f.c.KeepsReplicas(hosts...)
}

// final checks the model: the last checkpoint, or the replicas at the end, which must be equal.
func final(c *sim.Cluster, h *sim.History, s scenario) error {
	job := s.job
	tables := map[string]sim.Contents{}
	add := func(seg *checkpoint.Segment) {
		for _, t := range seg.Tables {
			if tables[t.Spec.Name] == nil {
				tables[t.Spec.Name] = sim.Contents{}
			}
			tables[t.Spec.Name].Add(t.Image, t.First)
		}
	}
	record, err := c.JobRecord()
	if err != nil {
		return err
	}
	if s.onlyServers && s.freezes+s.parts == 0 && record.View.Generation > 1 {
		return &sim.Violation{Text: fmt.Sprintf("unexpected rollback to clock %d: no worker has died",
			record.View.Cut)}
	}
	if job.Clocks, err = endOf(&record, h, s); err != nil {
		return err
	}
	if !recovery.Of(job.Recovery).Traits().SavesCuts() {
		if sum := total(record.ShardLost); sum != record.UpdatesLost {
			return &sim.Violation{Text: fmt.Sprintf("%d updates are counted as lost, %d by shard", record.UpdatesLost,
				sum)}
		}
		if s.lossless && record.UpdatesLost > 0 {
			return &sim.Violation{Text: fmt.Sprintf("%d updates are lost although no process died", record.UpdatesLost)}
		}
		whole, err := sameReplicas(c.FinalSegments(), job, add)
		if err != nil {
			return err
		}
		lost, quiet := record.ShardLost, s.quiet()
		for shard := range lost {
			switch {
			case whole[perdure.ShardID(shard)]:
			case c.SinceServerDeath() < quiet && recovery.Of(job.Recovery).Traits().RestartsWith != recovery.Everything:
				lost[shard] = -1 // its holder died when the job was done
			case c.SinceServerDeath() < quiet:
				// Or a head died after reporting that it had the shard, and its successor does not serve yet: the rows
				// cannot be checked.
				return nil
			default:
				return &sim.Violation{Text: fmt.Sprintf("only %d of %d shards are whole", len(whole), job.Shards)}
			}
		}
		return h.Final(tables, lost)
	}
	if _, err := sameReplicas(c.FinalSegments(), job, func(*checkpoint.Segment) {}); err != nil {
		return err
	}
	m, err := checkpoint.Latest(store.NewDir(c.Disk(), "checkpoint"))
	if err != nil {
		return err
	}
	if !record.IsSaved(job.Clocks) || m.Clocks == nil && m.Cut != job.Clocks {
		return &sim.Violation{Text: fmt.Sprintf("the last checkpoint is of clock %d, but the job ended at %d", m.Cut,
			job.Clocks)}
	}
	for shard := range perdure.ShardID(job.Shards) {
		seg, err := checkpoint.Restore(store.NewDir(c.Disk(), "checkpoint"), m, shard, nil)
		if err != nil {
			return &sim.Violation{Text: fmt.Sprintf("the last checkpoint cannot be read: %v", err)}
		}
		add(seg)
	}
	return finalSaved(&record, h, &m, tables)
}

// endOf checks and returns the clock at which a job ended.
func endOf(record *membership.JobRecord, h *sim.History, s scenario) (perdure.Clock, error) {
	end := record.View.End
	switch {
	case record.Failed != "":
		return end, fmt.Errorf("the job has failed: %s", record.Failed)
	case s.goal == 0 && end != s.job.Clocks:
		return end, &sim.Violation{Text: fmt.Sprintf("the job ended at clock %d", end)}
	case s.goal > 0 && end < s.goal:
		return end, &sim.Violation{Text: fmt.Sprintf("the job ended at clock %d, want at least %d", end, s.goal)}
	case s.misses > end%4 && end != s.job.Clocks && !s.job.TwoStep(nil):
		return end, &sim.Violation{Text: fmt.Sprintf("the job ended at clock %d, whose model misses the goal", end)}
	case s.goal > 0:
		h.SetEnd(end)
	}
	return end, nil
}

// maxFullTime is the max time that the disk is full.
const maxFullTime = 4 * time.Second

// quiet returns how long no server may have died before the end, so that all shards are available. While the disk is
// full, the end of the job cannot be recorded.
func (s *scenario) quiet() time.Duration {
	if s.fills > 0 {
		return time.Second + maxFullTime
	}
	return time.Second
}

func total(lost []int64) (sum int64) {
	for _, n := range lost {
		sum += n
	}
	return sum
}

// sameReplicas compares the replicas of each shard that have the same applied vector and number of tables, byte by
// byte. It returns one replica of each shard that reached the end of the job. If rows may be lost, only replicas of the
// same epoch must be equal, and the last epoch counts.
func sameReplicas(ends []*checkpoint.Segment, job perdure.JobSpec,
	add func(*checkpoint.Segment),
) (whole map[perdure.ShardID]bool, err error) {
	bytesOf := map[string][]byte{}
	whole = map[perdure.ShardID]bool{}
	slices.SortStableFunc(ends, func(a, b *checkpoint.Segment) int { return cmp.Compare(b.Epoch, a.Epoch) })
	for _, seg := range ends {
		at := fmt.Sprint(seg.Shard, seg.Generation, len(seg.Tables), seg.Applied)
		if recovery.Of(job.Recovery).Traits().MayLoseUpdates() {
			at = fmt.Sprint(at, seg.Epoch)
		}
		minClock := seg.Cut
		seg.Epoch, seg.Cut = 0, 0 // replicas may not have received the last view
		file, err := segmentBytes(seg)
		if err != nil {
			return nil, err
		}
		if other, there := bytesOf[at]; there && !bytes.Equal(other, file) {
			return nil, &sim.Violation{Text: fmt.Sprintf("two replicas of shard %d differ at %v", seg.Shard,
				seg.Applied)}
		}
		bytesOf[at] = file
		if minClock == job.Clocks && !whole[seg.Shard] {
			whole[seg.Shard] = true
			add(seg)
		}
	}
	return whole, nil
}

// segmentBytes returns the segment's file format.
func segmentBytes(seg *checkpoint.Segment) ([]byte, error) {
	at := disk.NewMemory()
	ref, err := checkpoint.WriteSegment(store.NewDir(at, ""), seg)
	if err != nil {
		return nil, err
	}
	return at.ReadFile(ref.File)
}
