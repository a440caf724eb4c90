package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/alecthomas/kong"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/recovery"
	"github.com/perdure/perdure/internal/data/dataset"
	"github.com/perdure/perdure/internal/run/localrun"
	"github.com/perdure/perdure/internal/run/rundir"
	"github.com/perdure/perdure/internal/run/screen"
	"github.com/perdure/perdure/internal/run/settings"
	"github.com/perdure/perdure/workload"
	"github.com/perdure/perdure/workload/cnn"
	"github.com/perdure/perdure/workload/mf"
)

// jobFlags are what train and up have in common.
type jobFlags struct {
	Workers     int      `help:"Workers; with up, how many of your own programs (default ${default})." default:"4" placeholder:"N"`
	Servers     int      `help:"Server processes (default ${default})." default:"2" placeholder:"N"`
	Shards      int      `help:"Parts that every table is split into, over the servers (default ${default})." default:"16" placeholder:"N"`
	Consistency string   `help:"How stale a read may be: bsp (not at all), ssp:S (by S clocks), essp:S (likewise, but servers push what changed), asp (at will) or vap:V (at will, but a worker's updates that not all can see yet change no value by more than V/√(clock+1) in sum, unless it is one alone). TABLE=MODEL is for one table, and a model alone for all others, for example with mf ssp:2,items=bsp; up cannot check the names, since your programs create the tables (default ${default})." default:"bsp" placeholder:"MODEL"`
	Recovery    string   `help:"What happens when a server dies: none (its rows begin again), resend:C (its shards go back to the last checkpoint, one every C clocks, and the workers send again what came after; resend alone: resend:auto), checkpoint:C (all roll back to the last checkpoint, one every C clocks), checkpoint:C,async (likewise; training goes on while one is written, as under resend), a chain, in which each shard is kept on N servers and the others go on: chain:N (an update counts once all N have it), chain:N,checkpoint:C (likewise, and if all N die, all roll back to the last checkpoint, one every C clocks), chain:N,async (an update counts once the first has it; what it alone had is lost with it) or chain:N,every:K (likewise, and the others follow every K clocks), or stateless (updates go to a log, from which any server makes the rows again). auto for C has the job choose how often (default ${default})." default:"resend:auto" placeholder:"STRATEGY"`
	MTBF        string   `name:"mtbf" help:"With checkpoint:auto or resend:auto: the time between two failures, for example 6h, which with the time that a checkpoint takes gives how often one is made (default: an hour, which counts as one failure among those that are seen)." placeholder:"TIME"`
	OnOutage    string   `help:"What a worker does while no live server answers for a shard: wait, continue or continue:CLOCKS (read that shard's rows from its cache, beyond what the consistency model allows by up to CLOCKS clocks, 1000 where no number is given, and queue what the shard is to get; nothing is lost). continue does not go with bsp, nor with recovery none and checkpoint:C (default ${default})." default:"wait" placeholder:"POLICY"`
	OutageRows  string   `help:"With --on-outage continue: frozen (rows of a shard that is out stay as they were) or apply (what the worker itself adds to them shows) (default ${default})." default:"apply" placeholder:"HOW"`
	OutageMB    int      `name:"outage-mb" help:"With --on-outage continue: most updates that each worker queues for shards that are out, in MiB; beyond that it waits (default ${default})." default:"2048" placeholder:"N"`
	StaleScale  string   `help:"How servers weaken updates computed from old rows: none, inverse (1/(1+age), age being how many clocks all slots have done since), paper (a tenth once more than 50 updates came between) or average (only those made while the shard was out: 1/workers, so that their mean is taken; sums, as tables of the rule add are, stay whole). Nothing under bsp, where nothing is old (default average with --on-outage continue, else none)." placeholder:"HOW"`
	NoReplace   bool     `help:"Start no server anew when one dies; the others take over what it held."`
	Zone        []string `help:"The zone of server I, a failure domain such as a rack: copies of a shard are kept in different ones where possible; may be given again (default none)." placeholder:"I=NAME" sep:"none"`
	Zones       []string `help:"The zones of all servers, in turn, over and over: with a,b server 0 is in a, 1 in b, 2 in a (default none)." placeholder:"NAME"`
	Suspend     string   `name:"suspend-after" help:"Go on without a worker that no process has been there for so long; it takes part again when one comes. Not under bsp, which waits; 0s: never (default 30s, under bsp never)." placeholder:"TIME"`
	Clocks      int64    `help:"Clocks to run: iterations of every worker (default ${default}; of cnn 2000)." default:"300" placeholder:"N"`
	Seed        uint64   `help:"Seed of all that is drawn at random (default ${default})." default:"1" placeholder:"N"`
	Fault       []string `help:"A failure to go through, KIND:TARGET@WHEN[+FOR]; may be given again. KIND: kill, term, freeze, cut, slow*X, jitter*X. TARGET: server:I, worker:I (* for all), coordinator, log, shards:PART. WHEN: clock:N, or a time since the start. FOR: how long. For example 'kill:server:0@clock:100+2s' (default none)." placeholder:"FAULT" sep:"none"`
	Delay       string   `help:"Every message between the job's processes leaves so much later, drawn anew for each, for example 5ms or 5ms±2ms (default at once). Your own programs delay nothing themselves." placeholder:"TIME[±TIME]"`
	Bandwidth   string   `help:"Each of the job's processes sends at most so many bytes per second on each connection, for example 100MB; also KB, GB, KiB, MiB, GiB (default as many as it can)." placeholder:"BYTES"`
	Listen      string   `help:"Where workers reach this machine: the coordinator's address, whose host the servers use too; port 0 picks a free one (default ${default})." default:"127.0.0.1:0" placeholder:"HOST:PORT"`
	Grace       string   `help:"When the job is ended early, by Ctrl-C, SIGTERM or perdure stop: how long the last checkpoint, which is made then where the strategy keeps any, may take; 0s: none is made. Ctrl-C again ends the job at once (default ${default})." default:"10s" placeholder:"TIME"`
	Out         string   `help:"The run's folder, empty or new (default runs/NAME-TIME)." placeholder:"DIR" type:"path"`
	logFlags

	given map[string]bool // the flags on the command line
}

type trainCmd struct {
	Workload string `arg:"" optional:"" help:"What to train; see perdure workloads (default ${default})." default:"softmax"`
	jobFlags
	Until      string   `help:"End the job as soon as the test set says so: accuracy:A (0 to 1), loss:L or rmse:R, or when it has trained for so long: time:T; at the latest after --clocks (default never)." placeholder:"GOAL"`
	Rule       string   `help:"How servers apply updates: sgd, momentum, nesterov, adagrad, rowwise-adagrad, adam or ftrl, with settings behind it, for example adam,beta2=0.99,decay=0.01,clip-norm=5 (default ${default})." default:"sgd" placeholder:"RULE"`
	Sparse     bool     `help:"Keep the model in sparse tables: a row is stored from its first update on."`
	Batch      *int     `help:"Examples per worker and clock (default the workload's)." placeholder:"N"`
	LR         *float64 `name:"lr" help:"Learning rate at clock 0 (default the workload's, as fits the rule)." placeholder:"RATE"`
	Schedule   string   `help:"Learning rate over time: const, sqrt (rate/√(clock+1)) or step (default ${default})." default:"const" placeholder:"NAME"`
	StepEvery  int64    `help:"Schedule step: clocks between two reductions (default ${default})." default:"100" placeholder:"N"`
	StepFactor float64  `help:"Schedule step: what the rate is multiplied with (default ${default})." default:"0.5" placeholder:"X"`
	EvalEvery  string   `help:"Clocks between two evaluations on the test set by worker 0, or a time, for example 2s, between two by this command, which take no worker's time; 0: only at the end (default ${default})." default:"10" placeholder:"N|TIME"`
	ComputeMs  int      `help:"Let every worker's clock compute for at least so many milliseconds; what is left is slept, and takes no core (default ${default})." default:"0" placeholder:"N"`
	CacheMB    int      `name:"cache-mb" help:"Rows that each worker keeps at most, in MiB; what it does not keep it reads again (default ${default})." default:"256" placeholder:"N"`
	RetainMB   int      `name:"retain-mb" help:"With resend, updates that each worker keeps at most until they are in a checkpoint, in MiB; when half of that is used a checkpoint is made before its time (default ${default})." default:"512" placeholder:"N"`
	Data       string   `help:"Folder or file of a data set, or synthetic:F; see perdure data (default the workload's own)." placeholder:"PATH"`
	Rank       *int     `help:"mf: values in each user's and each item's row (default the workload's)." placeholder:"N"`
	L2         *float64 `name:"l2" help:"mf: weight of the rows' squares in the loss, for each rating (default the workload's)." placeholder:"X"`
	Fraction   *float64 `name:"clock-fraction" help:"mf: part of a worker's ratings that a clock goes through (default the workload's)." placeholder:"X"`
	WholeUsers bool     `help:"mf: a clock goes through all ratings of some users, in turn, not through ratings drawn at random."`
	FinalReLU  bool     `name:"final-relu" help:"cnn: a last ReLU on the scores, as the authors of the network have it."`
	Scale      []string `help:"So many workers take part from a clock on: WORKERS@clock:CLOCK, for example 4@clock:100; may be given again, with later clocks (default none)." placeholder:"SCALE" sep:"none"`
	Resume     string   `help:"Go on from the last checkpoint of that run's folder, with its settings; --clocks, --servers, --recovery, --mtbf, --until, --eval-every, --fault, --delay, --bandwidth, --listen, --grace, --out and --quiet may differ." placeholder:"DIR" type:"existingdir"`
	From       string   `help:"Run that run.json again, with its settings; --fault, --delay, --bandwidth, --listen, --grace, --out and --quiet may differ." placeholder:"FILE" type:"existingfile"`
	Quiet      bool     `help:"Print only the result." short:"q"`
}

func (t *trainCmd) Run(ctx context.Context, k *kong.Context) error {
	t.given = given(k)
	if info, err := workload.Find(t.Workload); err == nil && !t.given["clocks"] {
		t.Clocks = info.Clocks
	}
	s, err := t.settings()
	if err != nil {
		return err
	}
	if t.Out == "" {
		t.Out = filepath.Join("runs", fmt.Sprintf("%s-%s", s.Job.Workload, time.Now().Format("20060102-150405.000")))
	}
	if s.Grace, err = t.parseGrace(); err != nil {
		return err
	}
	s.Listen = t.Listen
	_, err = runJob(ctx, s, t.Out, t.Quiet)
	return err
}

// runJob runs a training job to its end and returns its summary. The first signal to end ends
// it in order, with a last checkpoint; the second at once.
func runJob(ctx context.Context, s settings.Run, out string, quiet bool) (sum rundir.Summary, err error) {
	now, cancel := untilToldTwice(ctx)
	defer cancel()
	r, err := localrun.Start(ctx, localrun.Options{
		Settings: s, Folder: out, Workers: true, View: screen.New(stdout, quiet), Warn: warn,
	})
	if err != nil {
		return sum, err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	return r.Wait(ctx, now)
}

// warn tells people something that they must know.
func warn(line string) { fmt.Fprintln(os.Stderr, "perdure:", line) }

// settings turns the flags into what the run is to be, or says what is wrong.
func (t *trainCmd) settings() (settings.Run, error) {
	switch {
	case t.From != "":
		return t.again()
	case t.Resume != "":
		return t.resumed()
	}
	info, err := workload.Find(t.Workload)
	if err != nil {
		return settings.Run{}, err
	}
	job, err := t.job(t.Workload)
	if err != nil {
		return settings.Run{}, err
	}
	zones, err := settings.ParseZones(t.Servers, t.Zones, t.Zone)
	if err != nil {
		return settings.Run{}, err
	}
	updates, err := t.log(&job)
	if err != nil {
		return settings.Run{}, err
	}
	batch := info.Batch
	if t.Batch != nil {
		batch = *t.Batch
	}
	if err := t.onlyOwn(); err != nil {
		return settings.Run{}, err
	}
	data, err := dataPath(cmp.Or(t.Data, info.Data))
	if err != nil {
		return settings.Run{}, err
	}
	rule, err := t.rule(info)
	if err != nil {
		return settings.Run{}, err
	}
	g, err := settings.ParseGoal(t.Until, t.Workload)
	if err != nil {
		return settings.Run{}, err
	}
	every, ms, err := settings.ParseEvalEvery(t.EvalEvery)
	if err != nil {
		return settings.Run{}, err
	}
	if g.Metric != "" && g.Metric != settings.OverTime && every == 0 && ms == 0 {
		return settings.Run{}, fmt.Errorf("%w: --until needs --eval-every of at least 1", perdure.ErrUsage)
	}
	s := settings.Run{
		Version: version, Job: job, Faults: t.Fault, EvalEvery: every, EvalMs: ms, Until: g, ComputeMs: t.ComputeMs, CacheMB: t.CacheMB, RetainMB: t.RetainMB,
		Zones: zones, Scale: t.Scale, Distance: t.distance(), Log: updates,
		Params: workload.Params{
			Seed: t.Seed, Slots: t.Workers, Batch: batch, Rule: rule, Sparse: t.Sparse, Data: data,
			Factors: t.factors(info), FinalReLU: t.FinalReLU,
		},
	}
	err = s.Check() // which completes them
	return s, err
}

// rule turns the flags about the update rule into one.
func (t *trainCmd) rule(info workload.Info) (perdure.Rule, error) {
	r, err := perdure.ParseRule(t.Rule)
	if err != nil {
		return r, err
	}
	r.Rate, r.Schedule = info.Rates[r.Kind], perdure.Schedule(t.Schedule)
	if t.LR != nil {
		if r.Rate = *t.LR; r.Rate == 0 {
			return r, fmt.Errorf("%w: learning rate 0; choose one above 0, or leave --lr out", perdure.ErrUsage)
		}
	}
	if r.Schedule == perdure.ScheduleStep {
		r.Every, r.Factor = perdure.Clock(t.StepEvery), t.StepFactor
	}
	return r, nil
}

// ownFlags are those that only one workload takes.
var ownFlags = []struct{ flag, workload string }{
	{"rank", mf.Name},
	{"l2", mf.Name},
	{"clock-fraction", mf.Name},
	{"whole-users", mf.Name},
	{"final-relu", cnn.Name},
}

// onlyOwn refuses flags that the workload does not take.
func (t *trainCmd) onlyOwn() error {
	for _, own := range ownFlags {
		if t.given[own.flag] && t.Workload != own.workload {
			return fmt.Errorf("%w: workload %s has no --%s; leave it out", perdure.ErrUsage, t.Workload, own.flag)
		}
	}
	return nil
}

// factors turns the flags about a matrix factorisation into its settings.
func (t *trainCmd) factors(info workload.Info) workload.Factors {
	f := info.Factors
	if t.Rank != nil {
		f.Rank = *t.Rank
	}
	if t.L2 != nil {
		f.L2 = *t.L2
	}
	if t.Fraction != nil {
		f.ClockFraction = *t.Fraction
	}
	f.WholeUsers = t.WholeUsers
	return f
}

// dataPath makes a path one that every process understands, whatever its folder.
func dataPath(path string) (string, error) {
	if path == "" || strings.HasPrefix(path, dataset.SyntheticPrefix) {
		return path, nil
	}
	return filepath.Abs(kong.ExpandPath(path))
}

// shape is the part of the flags that every job has.
func (f *jobFlags) shape() settings.Shape {
	return settings.Shape{
		Workers: f.Workers, Servers: f.Servers, Shards: f.Shards, Consistency: f.Consistency, Recovery: f.Recovery,
		Clocks: f.Clocks, Seed: f.Seed,
	}
}

// job turns the common flags into a job.
func (f *jobFlags) job(name string) (job perdure.JobSpec, err error) {
	if job, err = f.shape().Parse(name); err != nil {
		return job, err
	}
	job.NoReplace, job.StaleScale = f.NoReplace, perdure.StaleScale(f.StaleScale)
	if job.MTBF, err = f.mtbf(); err != nil {
		return job, err
	}
	if err := f.outage(&job); err != nil {
		return job, err
	}
	if job.SuspendMs, err = settings.SuspendMs(f.Suspend, job.TwoStep(nil)); err != nil {
		return job, err
	}
	if err := f.refuseIdle(&job); err != nil {
		return job, err
	}
	return job, recovery.Check(&job)
}

// outage turns the flags about outages into the job's settings.
func (f *jobFlags) outage(job *perdure.JobSpec) (err error) {
	if job.OnOutage, err = perdure.ParseOnOutage(cmp.Or(f.OnOutage, "wait")); err != nil || !job.OnOutage.Continue {
		return err
	}
	if f.OutageMB < 0 || f.OutageMB > settings.MaxOutageMB || f.OutageMB == 0 && f.given["outage-mb"] {
		return fmt.Errorf("%w: --outage-mb %d; choose 1 to %d MiB", perdure.ErrUsage, f.OutageMB, settings.MaxOutageMB)
	}
	job.OutageRows, job.OutageBytes = perdure.OutageRows(f.OutageRows), int64(f.OutageMB)<<20
	job.StaleScale = cmp.Or(job.StaleScale, perdure.ScaleAverage)
	return nil
}

func (f *jobFlags) distance() settings.Distance {
	return settings.Distance{Delay: f.Delay, Bandwidth: f.Bandwidth}
}

// takeDistance lets the flags that were given replace those of an earlier run.
func (f *jobFlags) takeDistance(s *settings.Run) {
	if f.given["delay"] {
		s.Delay = f.Delay
	}
	if f.given["bandwidth"] {
		s.Bandwidth = f.Bandwidth
	}
}

// onlyTaken refuses flags that would be ignored beside --resume or --from.
func (t *trainCmd) onlyTaken(with string) error {
	if err := t.jobFlags.onlyTaken("train", with); err != nil {
		return err
	}
	if len(t.given) > 0 && t.Workload != "softmax" {
		return fmt.Errorf("%w: leave the workload out with %s, which takes that run's", perdure.ErrUsage, with)
	}
	return nil
}

// again makes the settings of a run that repeats another.
func (t *trainCmd) again() (settings.Run, error) {
	if err := t.onlyTaken("--from"); err != nil {
		return settings.Run{}, err
	}
	return t.repeat(t.From, false)
}

// resumed makes the settings of a run that goes on from another's checkpoint.
func (t *trainCmd) resumed() (settings.Run, error) {
	if err := t.onlyTaken("--resume"); err != nil {
		return settings.Run{}, err
	}
	return t.goOn(t.Resume, false, func(s *settings.Run) (err error) {
		if t.given["eval-every"] {
			if s.EvalEvery, s.EvalMs, err = settings.ParseEvalEvery(t.EvalEvery); err != nil {
				return err
			}
		}
		if t.given["until"] {
			s.Until, err = settings.ParseGoal(t.Until, s.Job.Workload)
		}
		return err
	})
}
