package main

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/alecthomas/kong"
	"golang.org/x/term"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/recovery"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/supervisor"
	"github.com/perdure/perdure/internal/run/localrun"
	"github.com/perdure/perdure/internal/run/settings"
	"github.com/perdure/perdure/internal/run/share"
	"github.com/perdure/perdure/workload"
	"github.com/perdure/perdure/workload/softmax"
)

// benchRecoveryCmd measures what recovery strategies cost while nothing fails, and
// what a failure costs under them.
type benchRecoveryCmd struct {
	Recovery    []string `help:"Recovery strategy; may be given again (default none, checkpoint:20, resend:20, chain:2, chain:3, stateless)." placeholder:"STRATEGY" sep:"none"`
	Fault       []string `help:"What fails: kill-head, kill-middle or kill-tail, of a chain; kill-server, freeze (for good), cut (off the network, for good) or drain (SIGTERM), of any server; kill-coordinator; kill-log, of stateless (default all that the strategy has)." placeholder:"KIND"`
	Measure     []string `help:"What to measure: train (speed of training, of that under none), push (speed of pushes of 4 MiB, likewise), faults, save (a checkpoint of --mb, or 500, MB while training goes on, and while it does not; no --recovery), replay (how fast --mb, or 500, MB of updates are read from the log again when a server of stateless is killed; one server and one worker unless --servers says otherwise; no --recovery) (default train, push and faults)." placeholder:"WHAT"`
	Rounds      int      `help:"Rounds of each measurement (default ${default})." default:"10" placeholder:"N"`
	MB          int      `name:"mb" help:"faults: a model of so many MB, beside softmax's small one (default ${default})." default:"0" placeholder:"N"`
	Snapshot    bool     `help:"faults: also how fast a server that joins a chain copies its shards, and how fast they are read meanwhile; it takes --mb to be worth something."`
	Servers     int      `help:"Servers (default ${default})." default:"3" placeholder:"N"`
	Workers     int      `help:"Workers (default ${default})." default:"2" placeholder:"N"`
	Shards      int      `help:"Parts that every table is split into (default ${default})." default:"6" placeholder:"N"`
	Consistency string   `help:"Model of all tables; pushes are measured under asp (default ${default})." default:"bsp" placeholder:"MODEL"`
	Workload    string   `help:"train: what is trained, a workload with batches (default ${default})." default:"softmax" placeholder:"NAME"`
	Batch       int      `help:"train: examples per worker and clock (default ${default})." default:"512" placeholder:"N"`
	Clocks      int64    `help:"train: clocks of each job (default ${default})." default:"300" placeholder:"N"`
	Seed        uint64   `help:"Seed of which servers fail (default ${default})." default:"1" placeholder:"N"`
	JSON        string   `name:"json" help:"Write all results to a file too." placeholder:"FILE" type:"path"`

	given map[string]bool // flags
}

// What can be chosen, and is measured where nothing is chosen.
var (
	benchRecoveries = []string{"none", "checkpoint:20", "resend:20", "chain:2", "chain:3", "stateless"}
	benchMeasures   = []string{"train", "push", "faults", "save", "replay"}
	benchOnDemand   = []string{"save", "replay"} // these take minutes, and a disk
	benchFaults     = []benchFault{
		{name: "kill-head", kind: supervisor.FaultKill, copies: 2, of: func(s *perdure.ShardView) perdure.Holder { return s.Holder }},
		{name: "kill-middle", kind: supervisor.FaultKill, copies: 3, of: func(s *perdure.ShardView) perdure.Holder { return s.Replica(1) }},
		{name: "kill-tail", kind: supervisor.FaultKill, copies: 2, of: (*perdure.ShardView).Tail},
		{name: "kill-server", kind: supervisor.FaultKill},
		{name: "freeze", kind: supervisor.FaultFreeze},
		{name: "cut", kind: supervisor.FaultCut},
		{name: "kill-coordinator", kind: supervisor.FaultKill, role: wire.RoleCoordinator},
		{name: "kill-log", kind: supervisor.FaultKill, role: supervisor.RoleLog},
		{name: "drain", kind: supervisor.FaultTerm},
	}
)

// benchFault is one kind of failure.
type benchFault struct {
	name   string
	kind   supervisor.FaultKind
	role   wire.Role // of which there is one process; "": a server
	copies int       // it takes a chain of so many replicas
	// of names the replica that fails; nil: any server, in whatever chains.
	of func(*perdure.ShardView) perdure.Holder
}

// applies reports whether a strategy has what fails.
func (f *benchFault) applies(r perdure.Recovery) bool {
	return recovery.Of(r).Traits().Copies >= f.copies && (f.role != supervisor.RoleLog || recovery.Of(r).Traits().Logged())
}

// needs says what it takes, for people.
func (f *benchFault) needs() string {
	if f.role == supervisor.RoleLog {
		return "an update log; add --recovery stateless"
	}
	return fmt.Sprintf("a chain of %d replicas; add --recovery chain:%d", f.copies, f.copies)
}

// victim chooses whom the fault hits: of draws of [0, n) it makes one. affected
// are the shards that have that replica.
func (f *benchFault) victim(v *perdure.View, servers int, draw func(n int) int) (t supervisor.Target, affected []perdure.ShardID) {
	if t.Role = f.role; f.role != "" {
		for s := range v.Shards {
			affected = append(affected, perdure.ShardID(s))
		}
		return t, affected
	}
	t.Role, t.Index = wire.RoleServer, draw(servers)
	if f.of != nil {
		t.Index = f.of(&v.Shards[draw(len(v.Shards))]).Server
	}
	for s := range v.Shards {
		sv := &v.Shards[s]
		hit := f.of != nil && f.of(sv).Server == t.Index
		for i := 0; f.of == nil && i < sv.Replicas(); i++ {
			hit = hit || sv.Replica(i).Server == t.Index
		}
		if hit {
			affected = append(affected, perdure.ShardID(s))
		}
	}
	return t, affected
}

// recoveryPlan is what the flags ask for.
type recoveryPlan struct {
	strategies []perdure.Recovery
	faults     []benchFault
	measures   map[string]bool
}

func (b *benchRecoveryCmd) Run(ctx context.Context, k *kong.Context) error {
	share.Garbage(1) // as worker processes do
	b.given = given(k)
	plan, err := b.plan()
	if err != nil {
		return err
	}
	if err := checkWritable(b.JSON); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "perdure-bench-")
	if err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	defer os.RemoveAll(dir) // what the system leaves of it is in its temporary folder
	run := &recoveryRun{benchRecoveryCmd: b, recoveryPlan: plan, dir: dir, terminal: term.IsTerminal(int(os.Stderr.Fd()))}
	fmt.Fprint(stdout, run.header())
	for _, step := range []struct {
		name string
		do   func(context.Context) error
	}{{"train", run.trainRatios}, {"push", run.pushRatios}, {"faults", run.allFaults}, {"save", run.allSaves}, {"replay", run.allReplays}} {
		if !plan.measures[step.name] {
			continue
		}
		err := step.do(ctx)
		run.progress("")
		if err != nil && ctx.Err() != nil {
			return localrun.ErrInterrupted
		}
		if err != nil {
			return err
		}
	}
	return writeResults(b.JSON, run.results())
}

// plan reads the flags, or says what is wrong with them.
func (b *benchRecoveryCmd) plan() (p recoveryPlan, err error) {
	for what, n := range map[string]int64{"rounds": int64(b.Rounds), "clocks": b.Clocks, "examples in a batch": int64(b.Batch)} {
		if n < 1 || n > 1_000_000 {
			return p, fmt.Errorf("%w: %d %s; choose 1 to 1000000", perdure.ErrUsage, n, what)
		}
	}
	if b.MB < 0 || b.MB > mostBenchMB {
		return p, fmt.Errorf("%w: --mb %d; choose 0 to %d", perdure.ErrUsage, b.MB, mostBenchMB)
	}
	if info, err := workload.Find(b.Workload); err != nil {
		return p, err
	} else if info.Batch == 0 {
		return p, fmt.Errorf("%w: --workload %s has no batches; choose another", perdure.ErrUsage, b.Workload)
	}
	measures, err1 := choices("measure", b.Measure, benchMeasures, itself)
	faults, err2 := choices("fault", b.Fault, benchFaults, func(f benchFault) string { return f.name })
	if err := cmp.Or(err1, err2); err != nil {
		return p, err
	}
	p.measures = map[string]bool{}
	for _, m := range measures {
		p.measures[m] = len(b.Measure) > 0 || !slices.Contains(benchOnDemand, m)
	}
	given, compares := b.Recovery, p.measures["train"] || p.measures["push"] || p.measures["faults"]
	switch {
	case len(given) > 0 && !compares:
		return p, fmt.Errorf("%w: --recovery %s: --measure %s is of one strategy alone; leave out --recovery, or measure train, push or faults too", perdure.ErrUsage, given[0], strings.Join(b.Measure, ","))
	case len(given) > 0:
	case compares:
		given = benchRecoveries
	case p.measures["save"]:
		given = []string{string(perdure.RecoverNone)} // to look at the other flags with
	}
	for _, text := range given {
		job, err := b.shape(text).Job("bench")
		if err != nil {
			return p, err
		}
		if !slices.Contains(p.strategies, job.Recovery) {
			p.strategies = append(p.strategies, job.Recovery)
		}
	}
	if p.measures["replay"] {
		if err := b.checkReplay(os.TempDir()); err != nil {
			return p, err
		}
	}
	p.faults = faults
	if len(b.Fault) > 0 && p.measures["faults"] {
		for _, f := range faults {
			if !slices.ContainsFunc(p.strategies, f.applies) {
				return p, fmt.Errorf("%w: --fault %s needs %s", perdure.ErrUsage, f.name, f.needs())
			}
		}
	}
	return p, nil
}

// mostBenchMB keeps a job on the machines there are.
const mostBenchMB = 100_000

// shape is a job like those that are measured.
func (b *benchRecoveryCmd) shape(recovery string) settings.Shape {
	return settings.Shape{
		Workers: b.Workers, Servers: b.Servers, Shards: b.Shards, Consistency: b.Consistency, Recovery: recovery,
		Clocks: endlessClocks, Seed: b.Seed,
	}
}

// recoveryRun is one run of the bench.
type recoveryRun struct {
	*benchRecoveryCmd
	recoveryPlan
	dir      string
	jobs     int
	terminal bool
	train    map[perdure.Recovery]spread // of the speed under none
	push     map[perdure.Recovery]spread
	faulty   []recoveryResult
	saves    []recoveryResult
	replays  []recoveryResult
}

// header says what is measured, on what.
func (r *recoveryRun) header() string {
	var s strings.Builder
	fmt.Fprintln(&s, machineLine())
	if maps.Equal(r.measures, map[string]bool{"replay": true}) {
		return s.String() // whose job is another one
	}
	model := "softmax"
	if r.MB > 0 {
		model += fmt.Sprintf(" and a table of %d MB", r.MB)
	}
	fmt.Fprintf(&s, "%d servers, %d workers, %d shards, %s, %d rounds; what fails trains %s\n", r.Servers, r.Workers, r.Shards, r.Consistency, r.Rounds, model)
	return s.String()
}

// progress shows on a terminal what is going on; "": nothing any more.
func (r *recoveryRun) progress(format string, args ...any) {
	if r.terminal {
		fmt.Fprintf(os.Stderr, "\r\x1b[K"+format, args...)
	}
}

// settings are those of a job that trains a small model.
func (r *recoveryRun) settings(recovery perdure.Recovery) (settings.Run, error) {
	job, err := r.shape(recovery.String()).Job(softmax.Name)
	if err != nil {
		return settings.Run{}, err
	}
	s := settings.Run{
		Version: version, Job: job, Listen: localrun.AnyPort, CacheMB: settings.DefaultCacheMB, RetainMB: settings.DefaultRetainMB,
		Params: workload.Params{
			Seed: job.Seed, Slots: job.Slots, Batch: benchRecoveryBatch,
			Rule: perdure.Rule{Kind: perdure.RuleSGD, Rate: softmax.DefaultRate},
		},
	}
	return s, s.Check()
}

// benchRecoveryBatch makes clocks so short that the gap between two says when
// training stands still.
const benchRecoveryBatch = 8
