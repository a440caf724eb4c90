package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/protocol"
	"github.com/perdure/perdure/internal/core/recovery"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/control"
	"github.com/perdure/perdure/internal/proc/supervisor"
	"github.com/perdure/perdure/internal/run/localrun"
	"github.com/perdure/perdure/internal/run/locate"
	"github.com/perdure/perdure/internal/run/rundir"
	"github.com/perdure/perdure/internal/run/settings"
	"github.com/perdure/perdure/internal/run/terminal"
)

var (
	stormRuns = flag.Int("storm.runs", 2,
		"jobs that each storm test runs through random faults under each strategy; 1 with -short")
	stormSeed       = flag.Uint64("storm.seed", 1, "seed of the first storm; 0: from the time, like make storm")
	stormFaults     = flag.Int("storm.faults", 3, "faults of each storm")
	stormStrategies = flag.String("storm.strategies",
		"checkpoint:10;checkpoint:20,async;resend:20;resend:20,partial;resend:auto;chain:2;chain:3;"+
			"chain:2,checkpoint:20;stateless",
		"recovery strategies, separated by semicolons")
	stormLossy = flag.String("storm.lossy", "scar:20,1/8,used;none",
		"like -storm.strategies, for strategies that may reset rows")
	stormMs = flag.Int("storm.ms", 10,
		"min milliseconds of a clock, times the replicas of a chain: a storm's faults must strike while the "+
			"job works, and wait until a chain can tolerate them")
)

// TestReferenceModels: three jobs have had these models since the first version that could run them. A model that
// changes without an intended reason means that updates are applied in another order or lost. Floating-point sums
// differ between architectures.
func TestReferenceModels(t *testing.T) {
	t.Parallel()
	if runtime.GOARCH != "amd64" {
		t.Skip("the reference models are for amd64")
	}
	all := t.TempDir() // other tests train on a part of the embedded images
	must(t, writePictures(all, 1))
	for _, c := range []struct {
		name, model string
		more        []string
		failures    int
	}{
		{"sgd", "b7279f9df2dc0e64f3217344a6cfd1fea573e9dad4b0aa4e1addb8126098bdb2", nil, 0},
		{"adam, killed", "1805304754435f645a9bdda63a1ba39da6a4ef1f40ccf18076b0c06665862de2", []string{
			"--rule", "adam", "--fault", "kill:server:0@clock:60", "--fault", "kill:worker:2@clock:150",
		}, 2},
		{"adam, sparse", "c2e28797042500ba23d00c66026ee5649e801c9817c6da66f859761dbb191ec1", []string{
			"--rule", "adam", "--sparse",
		}, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s, dir := trained(t, append([]string{
				"train", "--quiet", "--consistency", "bsp", "--seed", "7", "--clocks", "200",
				"--recovery", "checkpoint:20", "--data", all,
			}, c.more...)...)
			sameModel(t, s, c.model, dir)
			checkFailures(t, s, c.failures)
		})
	}
}

// TestSameModel: under bsp a job is a function of its seed. The model is the same for any number of servers and shards
// and whichever processes are killed.
func TestSameModel(t *testing.T) {
	t.Parallel()
	cases := []struct {
		name     string
		more     []string
		failures int
		kind     []string
	}{
		{"again", nil, 0, nil},
		{"other servers and shards", []string{"--servers", "3", "--shards", "11"}, 0, nil},
		{"killed", []string{
			"--fault", "kill:server:0@clock:15", "--fault", "kill:server:1@clock:30+200ms",
			"--fault", "kill:worker:2@clock:40", "--fault", "kill:coordinator@clock:50",
		}, 4, nil},
		{"all servers killed at once", []string{"--fault", "kill:server:*@clock:25"}, 2, nil},
		{"all workers killed at once", []string{"--fault", "kill:worker:*@clock:25"}, 3, nil},
		{"half of the shards dropped", []string{"--fault", "kill:shards:0.5@clock:25"}, 1, nil},
		{"server and coordinator killed at once", []string{
			"--fault", "kill:server:1@clock:33", "--fault",
			"kill:coordinator@clock:33",
		}, 2, nil},
		{"read from a log, all killed", []string{
			"--recovery", "stateless", "--fault", "kill:log@clock:15", "--fault", "kill:server:0@clock:25", "--fault",
			"kill:worker:1@clock:30",
			"--fault", "kill:log@clock:40", "--fault", "kill:coordinator@clock:45",
		}, 5, nil},
		{"state beside sparse rows, killed", []string{
			"--servers", "3", "--shards", "11", "--fault",
			"kill:server:2@clock:25", "--fault", "kill:worker:1@clock:40",
		}, 2, []string{"--rule", "adam", "--sparse"}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			want := one(t, c.kind...)
			s, dir := trained(t, small(append(c.kind[:len(c.kind):len(c.kind)], c.more...)...)...)
			sameModel(t, s, want, dir)
			checkFailures(t, s, c.failures)
		})
	}
}

// checkFailures checks that all failures were detected and recovered from.
func checkFailures(t *testing.T, s rundir.Summary, want int) {
	t.Helper()
	if len(s.Failures) != want {
		t.Errorf("%d failures in the summary, want %d: %+v", len(s.Failures), want, s.Failures)
	}
	for _, f := range s.Failures {
		if f.DetectedAfterMs == nil || f.ServingAgainAfterMs == nil {
			t.Errorf("%s of %s: the summary lacks the time of its detection or recovery: %+v", f.Kind, f.Target, f)
		}
	}
}

// stormSeeds returns the seed of a test's first storm, and the strategies.
func stormSeeds(t *testing.T) (seed uint64, strategies []perdure.Recovery) {
	t.Helper()
	for _, text := range strings.Split(*stormStrategies, ";") {
		r, err := perdure.ParseRecovery(text)
		must(t, err)
		strategies = append(strategies, r)
	}
	seed = cmp.Or(*stormSeed, uint64(time.Now().UnixNano())%1e9)
	t.Logf("first storm: -storm.seed=%d (make storm STORM_SEED=%d)", seed, seed)
	return seed, strategies
}

// replay returns how to repeat one storm.
func replay(seed uint64, strategy perdure.Recovery, faults []strike) string {
	var texts []string
	for _, f := range faults {
		texts = append(texts, f.String())
	}
	return fmt.Sprintf("replay with -storm.runs=1 -storm.seed=%d -storm.strategies='%s' -storm.faults=%d "+
		"-storm.ms=%d: %s",
		seed, strategy, len(faults), *stormMs, strings.Join(texts, " "))
}

// The size of the jobs in storms.
const (
	stormServers = 3
	stormWorkers = 4
	stormClocks  = 100
)

// stormJobs returns the number of jobs under each strategy.
func stormJobs() uint64 {
	if testing.Short() {
		return uint64(min(*stormRuns, 1)) // make storm uses other seeds
	}
	return uint64(*stormRuns)
}

// TestStorm runs jobs of each kind in turn through random faults. Every job ends with the model of an undisturbed one
// where its strategy promises it.
func TestStorm(t *testing.T) {
	t.Parallel()
	kindStorms(t, "storm.strategies", *stormStrategies)
}

// TestStormLossy: the same under strategies that may reset rows. A job ends, and all values of its model are finite.
func TestStormLossy(t *testing.T) {
	t.Parallel()
	kindStorms(t, "storm.lossy", *stormLossy)
}

// kindStorms runs jobs through storms, under the strategies of the named flag.
func kindStorms(t *testing.T, name, strategies string) {
	t.Helper()
	seed, _ := stormSeeds(t)
	for text := range strings.SplitSeq(strategies, ";") {
		strategy, err := perdure.ParseRecovery(text)
		must(t, err)
		for i := range stormJobs() {
			t.Run(fmt.Sprintf("%s/seed=%d", strategy, seed+i), func(t *testing.T) {
				t.Parallel() // they mostly wait
				kind := stormKindOf(seed+i, strategy)
				faults := drawStorm(seed+i, strategy, stormServers, stormWorkers, kind.clocks)
				again := strings.Replace(replay(seed+i, strategy, faults), "-storm.strategies", "-"+name, 1)
				t.Logf("%s; %s", kind.name, again)
				kind.stormThrough(t, strategy, (&storm{faults: faults, strategy: strategy}).rage)
			})
		}
	}
}

// eachStorm draws storms for jobs with the given number of clocks, under the strategies of the named flag.
func eachStorm(
	t *testing.T, name, strategies string, servers, workers, clocks int, one func(t *testing.T, seed uint64, s *storm),
) {
	t.Helper()
	seed, _ := stormSeeds(t)
	for text := range strings.SplitSeq(strategies, ";") {
		strategy, err := perdure.ParseRecovery(text)
		must(t, err)
		for i := range stormJobs() {
			t.Run(fmt.Sprintf("%s/seed=%d", strategy, seed+i), func(t *testing.T) {
				t.Parallel() // they mostly wait
				faults := drawStorm(seed+i, strategy, servers, workers, clocks)
				t.Log(strings.Replace(replay(seed+i, strategy, faults), "-storm.strategies", "-"+name, 1))
				one(t, seed+i, &storm{faults: faults, strategy: strategy})
			})
		}
	}
}

// runIn runs a training job as a child of this process. It passes the job to began as soon as it has started.
func runIn(ctx context.Context, s settings.Run, dir string, began func(*localrun.Run)) (sum rundir.Summary, err error) {
	r, err := localrun.Start(ctx, localrun.Options{Settings: s, Folder: dir, Workers: true, View: terminal.NopView{}})
	if err != nil {
		return sum, err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	began(r)
	return r.Wait(ctx, ctx)
}

// stormLook is how often a storm checks whether its next fault is due.
const stormLook = 10 * time.Millisecond

// strike is one fault of a storm, due at a clock.
type strike struct {
	supervisor.Fault
	clock perdure.Clock
}

func (s strike) String() string {
	f := s.Fault
	f.When = supervisor.When{ByClock: true, Clock: s.clock}
	return f.String()
}

// stands is how long a frozen or disconnected process stays so. The failure detector gives it up earlier.
const stands = 3 * time.Second

// drawStorm draws faults in the first two thirds of a job: kills, and processes that are frozen or disconnected for a
// while. Where chains also keep checkpoints, every other storm kills all servers once.
func drawStorm(seed uint64, strategy perdure.Recovery, servers, workers, clocks int) (faults []strike) {
	rng := rand.New(rand.NewPCG(seed, 0x5706))
	for range *stormFaults {
		var f strike
		f.Kind = []supervisor.FaultKind{
			supervisor.FaultKill, supervisor.FaultKill, supervisor.FaultFreeze,
			supervisor.FaultCut,
		}[rng.IntN(4)]
		if f.Kind != supervisor.FaultKill {
			f.For = stands
		}
		switch n := rng.IntN(10); {
		case n < 5:
			f.Target = supervisor.Target{Role: wire.RoleServer, Index: rng.IntN(servers)}
		case n < 8:
			f.Target = supervisor.Target{Role: wire.RoleWorker, Index: rng.IntN(workers)}
		default:
			// While the coordinator is down, the job's progress is unknown, and faults that are due wait. A short job
			// must not end before that.
			f.Target = supervisor.Target{Role: wire.RoleCoordinator}
			lasts := time.Duration(*stormMs*recovery.Of(strategy).Traits().Copies*stormClocks) * time.Millisecond
			f.For = min(f.For, lasts/6)
			if recovery.Of(strategy).Traits().UsesLog() && n == 9 {
				f.Target = supervisor.Target{Role: supervisor.RoleLog}
				if f.Kind == supervisor.FaultCut {
					f.Kind, f.For = supervisor.FaultKill, 0
				}
			}
		}
		f.clock = perdure.Clock(rng.IntN(clocks * 2 / 3))
		faults = append(faults, f)
	}
	if recovery.Of(strategy).Traits().Copies > 1 && recovery.Of(strategy).Traits().SavesCuts() && seed%2 == 0 &&
		len(faults) > 0 {
		all := supervisor.Fault{
			Kind:   supervisor.FaultKill,
			Target: supervisor.Target{Role: wire.RoleServer, Index: supervisor.All},
		}
		faults[rng.IntN(len(faults))].Fault = all
	}
	slices.SortStableFunc(faults, func(a, b strike) int { return cmp.Compare(a.clock, b.clock) })
	return faults
}

// storm applies a job's faults in order, each not before its clock. Where the strategy keeps several replicas and no
// checkpoints, a fault of a server waits until every shard has an intact replica on another server.
type storm struct {
	faults   []strike
	strategy perdure.Recovery
	hurt     map[protocol.Holder]time.Time // incarnations of servers that were hit, and until when; zero: permanently
}

// rage strikes a job. It fails if the job ends before a fault can strike.
func (s *storm) rage(ctx context.Context, j *localrun.Run) error {
	s.hurt = map[protocol.Holder]time.Time{}
	api := j.Control()
	tick := time.NewTicker(stormLook)
	defer tick.Stop()
	for i, f := range s.faults {
		for j.Clock() < f.clock || !s.may(ctx, api, f) {
			select {
			case <-tick.C:
			case <-ctx.Done():
				return ctx.Err()
			case <-j.Complete():
				return fmt.Errorf("the job was complete before %s, fault %d of %d, could strike; increase -storm.ms",
					f, i+1, len(s.faults))
			}
		}
		j.Job().AddFault(f.Fault)
	}
	return nil
}

// may reports whether a fault leaves an intact replica of every shard. If so, it records the target as hit.
func (s *storm) may(ctx context.Context, api *control.Client, f strike) bool {
	return f.Target.Role != wire.RoleServer || s.mayAll(ctx, api, []int{f.Target.Index}, f.For)
}

// mayAll is like may for servers that are hit together. They are frozen for the given time, or killed if it is zero.
func (s *storm) mayAll(ctx context.Context, api *control.Client, servers []int, stand time.Duration) bool {
	if recovery.Of(s.strategy).Traits().Copies < 2 || recovery.Of(s.strategy).Traits().SavesCuts() ||
		len(servers) == 0 {
		return true
	}
	status, v, err := locate.QueryState(ctx, api)
	if err != nil || len(v.Shards) == 0 || !s.spares(&v, time.Now(), servers...) {
		return false
	}
	until := time.Time{}
	if stand > 0 {
		until = time.Now().Add(stand + time.Second) // includes the time to catch up
	}
	for _, server := range servers {
		now := locate.ProcessOf(&status, supervisor.Target{Role: wire.RoleServer, Index: server})
		s.hurt[protocol.Holder{Server: server, Incarnation: now.Incarnation}] = until
	}
	return true
}

// spares reports whether every shard has an intact replica on a server other than the given ones.
func (s *storm) spares(v *protocol.View, now time.Time, servers ...int) bool {
	for i := range v.Shards {
		sound := 0
		for k := range v.Shards[i].Replicas() {
			h := v.Shards[i].Replica(k)
			until, hurt := s.hurt[protocol.Holder{Server: h.Server, Incarnation: h.Incarnation}]
			if !slices.Contains(servers, h.Server) && (!hurt || !until.IsZero() && now.After(until)) {
				sound++
			}
		}
		if sound == 0 {
			return false
		}
	}
	return true
}

// TestStormSpares: a storm never takes a shard's last intact replica.
func TestStormSpares(t *testing.T) {
	none := perdure.Recovery{Kind: perdure.RecoverNone}
	now := time.Unix(1000, 0)
	chain := func(holders ...int) (v protocol.View) { // server and incarnation as two digits
		var sv protocol.ShardView
		for i, n := range holders {
			h := protocol.Holder{Server: n / 10, Incarnation: perdure.Incarnation(n % 10), Since: 5}
			if i == 0 {
				sv.Holder = h
			} else {
				sv.Followers = append(sv.Followers, h)
			}
		}
		whole := protocol.ShardView{
			Holder:    protocol.Holder{Server: 7},
			Followers: []protocol.Holder{{Server: 8}, {Server: 9}},
		}
		v.Shards = []protocol.ShardView{whole, sv}
		return v
	}
	s := &storm{hurt: map[protocol.Holder]time.Time{
		{Server: 1, Incarnation: 1}: {}, {Server: 2, Incarnation: 1}: now.Add(time.Second),
		{Server: 2, Incarnation: 2}: now.Add(-time.Second),
	}}
	for i, c := range []struct {
		v      protocol.View
		server int
		spares bool
	}{
		{chain(1, 11), 0, false},     // the other is dead
		{chain(1, 11), 1, true},      // the dead one again
		{chain(1, 12), 0, true},      // the other's replacement
		{chain(1, 21), 0, false},     // the other is frozen
		{chain(1, 22), 0, true},      // the other was frozen
		{chain(1, 22, 31), 0, true},  // two others
		{chain(1, 11, 21), 0, false}, // both were hit
		{chain(1), 0, false},         // the only replica
		{chain(1), 3, true},          // a replica on another server
	} {
		if got := s.spares(&c.v, now, c.server); got != c.spares {
			t.Errorf("case %d: server %d may be hit: %t", i, c.server, got)
		}
	}
	for seed := range uint64(20) {
		a, b := drawStorm(seed, none, 3, 4, 200), drawStorm(seed, none, 3, 4, 200)
		if len(a) != *stormFaults || !slices.Equal(a, b) {
			t.Errorf("seed %d yields both %v and %v", seed, a, b)
		}
		for _, f := range a {
			back, err := supervisor.ParseFault(f.String())
			must(t, errors.Join(err, back.Validate(3, 4, true, 200)))
		}
	}
}

// paceEnv is the minimum number of milliseconds of a program's clock.
const paceEnv = "PERDURE_TEST_PACE"

// stormPace sets the clock time of sum jobs so that a storm of them lasts as long as the other storms.
func stormPace(strategy perdure.Recovery) string {
	return fmt.Sprintf("%s=%d", paceEnv, *stormMs*recovery.Of(strategy).Traits().Copies*stormClocks/sumsClocks)
}

// pacePrograms waits for the time in paceEnv.
func pacePrograms(ctx context.Context) error {
	ms, err := strconv.Atoi(os.Getenv(paceEnv))
	if err != nil || ms == 0 {
		return nil
	}
	select {
	case <-time.After(time.Duration(ms) * time.Millisecond):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
