package bench

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/protocol"
	"github.com/perdure/perdure/internal/core/recovery"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/supervisor"
	"github.com/perdure/perdure/internal/run/localrun"
	"github.com/perdure/perdure/internal/run/settings"
	"github.com/perdure/perdure/internal/run/workload"
	"github.com/perdure/perdure/internal/run/workload/logreg"
)

// The benchmark of recovery measures the cost of recovery strategies: the speed of training and of pushes compared with
// none, how long a failure interrupts readers and workers, the cost of a checkpoint during training, and how fast a
// server reads the update log back. Jobs consist of real processes. This process is their parent and, for measurements
// that need to observe each clock, also runs their workers.

// RecoveryOptions are the flags of perdure bench recovery. Empty lists have defaults.
type RecoveryOptions struct {
	Recovery    []string `help:"@strategies_recovery" placeholder:"STRATEGY" sep:"none"`
	Fault       []string `help:"@strategies_fault" placeholder:"KIND"`
	Measure     []string `help:"@strategies_measure" placeholder:"WHAT"`
	Rounds      int      `help:"@strategies_rounds (default ${default})." default:"10" placeholder:"N"`
	MB          int      `name:"mb" help:"@strategies_mb (default ${default})." default:"0" placeholder:"N"`
	Snapshot    bool     `help:"@strategies_snapshot"`
	Servers     int      `help:"Servers (default ${default})." default:"3" placeholder:"N"`
	Workers     int      `help:"Workers (default ${default})." default:"2" placeholder:"N"`
	Shards      int      `help:"@strategies_shards (default ${default})." default:"6" placeholder:"N"`
	Consistency string   `help:"@strategies_consistency (default ${default})." default:"bsp" placeholder:"MODEL"`
	Workload    string   `help:"@strategies_workload (default ${default})." default:"softmax" placeholder:"NAME"`
	Batch       int      `help:"@strategies_batch (default ${default})." default:"512" placeholder:"N"`
	Clocks      int64    `help:"@strategies_clocks (default ${default})." default:"300" placeholder:"N"`
	Seed        uint64   `help:"@strategies_seed (default ${default})." default:"1" placeholder:"N"`
	JSON        string   `name:"json" help:"Also write all results to a file." placeholder:"FILE" type:"path"`

	Version      string `kong:"-"` // of Perdure, for the header
	ServersGiven bool   `kong:"-"` // the user chose Servers
}

// Possible choices; all are measured by default, except those in onDemand.
var (
	allRecoveries = []string{
		"none", "checkpoint:20", "resend:20", "chain:2", "chain:3", "stateless", "scar:20,1/8,priority",
	}
	allMeasures = []string{"train", "push", "faults", "save", "rows", "replay"}
	onDemand    = []string{"save", "rows", "replay"} // these take minutes and need disk space
	allFailures = []failure{
		{
			name: "kill:head", kind: supervisor.FaultKill, copies: 2,
			of: func(s *protocol.ShardView) protocol.Holder { return s.Holder },
		},
		{
			name: "kill:middle", kind: supervisor.FaultKill, copies: 3,
			of: func(s *protocol.ShardView) protocol.Holder { return s.Replica(1) },
		},
		{name: "kill:tail", kind: supervisor.FaultKill, copies: 2, of: (*protocol.ShardView).Tail},
		{name: "kill:server", kind: supervisor.FaultKill},
		{name: "freeze:server", kind: supervisor.FaultFreeze},
		{name: "cut:server", kind: supervisor.FaultCut},
		{name: "kill:coordinator", kind: supervisor.FaultKill, role: wire.RoleCoordinator},
		{name: "kill:log", kind: supervisor.FaultKill, role: supervisor.RoleLog},
		{name: "term:server", kind: supervisor.FaultTerm},
	}
)

// failure is a kind of failure.
type failure struct {
	name   string
	kind   supervisor.FaultKind
	role   wire.Role // a role with a single process; "": a server
	copies int       // minimum number of replicas per chain
	// of returns the replica that fails; nil: any server.
	of func(*protocol.ShardView) protocol.Holder
}

// applies reports whether a strategy has the process that fails.
func (f *failure) applies(r perdure.Recovery) bool {
	return recovery.Of(r).Traits().Copies >= f.copies &&
		(f.role != supervisor.RoleLog || recovery.Of(r).Traits().UsesLog())
}

// needs describes the requirement of a failure, for messages.
func (f *failure) needs() string {
	if f.role == supervisor.RoleLog {
		return "an update log; add --recovery stateless"
	}
	return fmt.Sprintf("a chain of %d replicas; add --recovery chain:%d", f.copies, f.copies)
}

// victim chooses the process that fails. draw(n) returns a number in [0, n). affected are the shards that have that
// replica.
func (f *failure) victim(
	v *protocol.View, servers int, draw func(n int) int,
) (t supervisor.Target, affected []perdure.ShardID) {
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

// recoveryPlan holds the parsed choices.
type recoveryPlan struct {
	strategies []perdure.Recovery
	faults     []failure
	measures   map[string]bool
}

// RunRecovery runs the benchmark, prints each line as soon as it is measured, and writes the results. It shows its
// progress on terminal unless that is nil.
func RunRecovery(ctx context.Context, out, terminal io.Writer, o RecoveryOptions) error {
	plan, err := o.plan()
	if err != nil {
		return err
	}
	dir, err := prepare(o.JSON)
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir) // leftovers are in the system's temporary directory
	run := &recoveryRun{RecoveryOptions: o, recoveryPlan: plan, out: out, dir: dir, terminal: terminal}
	run.results.ratios = map[perdure.Recovery][]sample{}
	fmt.Fprint(out, run.header())
	for _, step := range []struct {
		name string
		do   func(context.Context) error
	}{
		{"train", run.trainRatios},
		{"push", run.pushRatios},
		{"faults", run.allFaults},
		{"save", run.allSaves},
		{"rows", run.allRowSaves},
		{"replay", run.allReplays},
	} {
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
	if compares := plan.measures["train"] || plan.measures["push"]; compares && !plan.measures["faults"] {
		for _, strategy := range plan.strategies { // one line for each
			res := run.blank(strategy)
			run.results.lines = append(run.results.lines, &res)
		}
	}
	return writeResults(o.JSON, run.results.lines)
}

// plan parses and checks the flags.
func (b *RecoveryOptions) plan() (p recoveryPlan, err error) {
	err = checkCounts(map[string]int64{
		"rounds": int64(b.Rounds), "clocks": b.Clocks, "examples in a batch": int64(b.Batch),
	})
	if err != nil {
		return p, err
	}
	if b.MB < 0 || b.MB > maxMB {
		return p, perdure.Usagef("invalid --mb %d; choose 0 to %d", b.MB, maxMB)
	}
	if info, err := workload.Find(b.Workload); err != nil {
		return p, err
	} else if info.Batch == 0 {
		return p, perdure.Usagef("--workload %s has no batches; choose another", b.Workload)
	}
	measures, err1 := choose("measure", b.Measure, allMeasures, itself)
	faults, err2 := choose("fault", b.Fault, allFailures, func(f failure) string { return f.name })
	if err := cmp.Or(err1, err2); err != nil {
		return p, err
	}
	p.measures = map[string]bool{}
	for _, m := range measures {
		p.measures[m] = len(b.Measure) > 0 || !slices.Contains(onDemand, m)
	}
	given, compares := b.Recovery, p.measures["train"] || p.measures["push"] || p.measures["faults"]
	switch {
	case len(given) > 0 && !compares:
		return p, perdure.Usagef("--recovery %s: --measure %s does not compare strategies; remove --recovery, or "+
			"also measure train, push or faults", given[0], strings.Join(b.Measure, ","))
	case len(given) > 0:
	case compares:
		given = allRecoveries
	case p.measures["save"] || p.measures["rows"]:
		given = []string{string(perdure.RecoverNone)} // any strategy, to check the other flags
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
				return p, perdure.Usagef("--fault %s needs %s", f.name, f.needs())
			}
		}
	}
	return p, nil
}

// maxMB keeps jobs within the memory of real machines.
const maxMB = 100_000

// shape returns the shape of a job to measure.
func (b *RecoveryOptions) shape(recovery string) settings.Shape {
	return settings.Shape{
		Workers: b.Workers, Servers: b.Servers, Shards: b.Shards, Consistency: b.Consistency, Recovery: recovery,
		Clocks: endlessClocks, Seed: b.Seed,
	}
}

// recoveryRun is one run of the benchmark.
type recoveryRun struct {
	RecoveryOptions
	recoveryPlan
	out      io.Writer
	terminal io.Writer // nil: show no progress
	dir      string
	jobs     int
	results  recoveryResults
}

// recoveryResults holds the results so far.
type recoveryResults struct {
	ratios map[perdure.Recovery][]sample // speeds relative to none
	lines  []*RecoveryResult
}

// line returns a line of the results without figures.
func (r *recoveryRun) line(recovery string, servers, workers, mb int) RecoveryResult {
	return RecoveryResult{
		Recovery: recovery, Rounds: r.Rounds, Servers: servers, Workers: workers, Shards: r.Shards, MB: mb,
	}
}

// repeat measures the rounds of a line of the results. It prints and stores the line.
func (r *recoveryRun) repeat(
	res RecoveryResult, what string, format func(*RecoveryResult) string, round func(i int) (sample, error),
) error {
	for i := range r.Rounds {
		r.progress("%s: round %d of %d", what, i+1, r.Rounds)
		s, err := round(i)
		if err != nil {
			return err
		}
		res.samples = append(res.samples, s)
	}
	r.progress("")
	fmt.Fprintln(r.out, format(&res))
	r.results.lines = append(r.results.lines, &res)
	return nil
}

// header describes the measurement and the machine.
func (r *recoveryRun) header() string {
	var s strings.Builder
	fmt.Fprintln(&s, machineLine(r.Version))
	if maps.Equal(r.measures, map[string]bool{"replay": true}) {
		return s.String() // replay uses a different job
	}
	model := "softmax"
	if r.MB > 0 {
		model += fmt.Sprintf(" and a table of %d MB", r.MB)
	}
	fmt.Fprintf(&s, "%d servers, %d workers, %d shards, %s, %d rounds; faults hit a job that trains %s\n",
		r.Servers, r.Workers,
		r.Shards, r.Consistency, r.Rounds, model)
	return s.String()
}

// progress shows the current step on the terminal. "" clears the line.
func (r *recoveryRun) progress(format string, args ...any) {
	if r.terminal != nil {
		fmt.Fprintf(r.terminal, "\r\x1b[K"+format, args...)
	}
}

// settings returns the settings of a job that trains a small model.
func (r *recoveryRun) settings(recovery perdure.Recovery) (settings.Run, error) {
	job, err := r.shape(recovery.String()).Job(logreg.SoftmaxName)
	if err != nil {
		return settings.Run{}, err
	}
	s := settings.Run{
		Version: r.Version, Job: job, Reach: settings.Reach{Listen: localrun.AnyPort}, CacheMB: settings.DefaultCacheMB,
		RetainMB: settings.DefaultRetainMB, Checkpoints: settings.Checkpoints{Keep: 1},
		Params: workload.Params{
			Seed: job.Seed, Slots: job.Slots, Batch: shortBatch,
			Rule: perdure.Rule{Kind: perdure.RuleSGD, Rate: logreg.SoftmaxRate},
		},
	}
	return s, s.Check()
}

// shortBatch makes clocks so short that the time between two shows when training stalls.
const shortBatch = 8
