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
	Workers     int      `help:"@job_workers (default ${default})." default:"4" placeholder:"N"`
	Servers     int      `help:"Server processes (default ${default})." default:"2" placeholder:"N"`
	Shards      int      `help:"@job_shards (default ${default})." default:"16" placeholder:"N"`
	Consistency string   `help:"@job_consistency (default ${default})." default:"bsp" placeholder:"MODEL"`
	Recovery    string   `help:"@job_recovery (default ${default})." default:"resend:auto" placeholder:"STRATEGY"`
	MTBF        string   `name:"mtbf" help:"@job_mtbf" placeholder:"TIME"`
	OnOutage    string   `help:"@job_on_outage (default ${default})." default:"wait" placeholder:"POLICY"`
	OutageRows  string   `help:"@job_outage_rows (default ${default})." default:"apply" placeholder:"HOW"`
	OutageMB    int      `name:"outage-mb" help:"@job_outage_mb (default ${default})." default:"2048" placeholder:"N"`
	StaleScale  string   `help:"@job_stale_scale" placeholder:"HOW"`
	NoReplace   bool     `help:"Start no server anew when one dies; the others take over what it held."`
	Zone        []string `help:"@job_zone" placeholder:"I=NAME" sep:"none"`
	Zones       []string `help:"@job_zones" placeholder:"NAME"`
	Suspend     string   `name:"suspend-after" help:"@job_suspend" placeholder:"TIME"`
	Clocks      int64    `help:"@job_clocks (default ${default}; of cnn 2000)." default:"300" placeholder:"N"`
	Seed        uint64   `help:"@job_seed (default ${default})." default:"1" placeholder:"N"`
	Fault       []string `help:"@job_fault" placeholder:"FAULT" sep:"none"`
	Delay       string   `help:"@job_delay" placeholder:"TIME[±TIME]"`
	Bandwidth   string   `help:"@job_bandwidth" placeholder:"BYTES"`
	Listen      string   `help:"@job_listen (default ${default})." default:"127.0.0.1:0" placeholder:"HOST:PORT"`
	Grace       string   `help:"@job_grace (default ${default})." default:"10s" placeholder:"TIME"`
	Out         string   `help:"@job_out" placeholder:"DIR" type:"path"`
	logFlags

	given map[string]bool // the flags on the command line
}

type trainCmd struct {
	Workload string `arg:"" optional:"" help:"@train_workload (default ${default})." default:"softmax"`
	jobFlags
	Until      string   `help:"@train_until" placeholder:"GOAL"`
	Rule       string   `help:"@train_rule (default ${default})." default:"sgd" placeholder:"RULE"`
	Sparse     bool     `help:"Keep the model in sparse tables: a row is stored from its first update on."`
	Batch      *int     `help:"Examples per worker and clock (default the workload's)." placeholder:"N"`
	LR         *float64 `name:"lr" help:"@train_lr" placeholder:"RATE"`
	Schedule   string   `help:"@train_schedule (default ${default})." default:"const" placeholder:"NAME"`
	StepEvery  int64    `help:"@train_step_every (default ${default})." default:"100" placeholder:"N"`
	StepFactor float64  `help:"@train_step_factor (default ${default})." default:"0.5" placeholder:"X"`
	EvalEvery  string   `help:"@train_eval_every (default ${default})." default:"10" placeholder:"N|TIME"`
	ComputeMs  int      `help:"@train_compute_ms (default ${default})." default:"0" placeholder:"N"`
	CacheMB    int      `name:"cache-mb" help:"@train_cache_mb (default ${default})." default:"256" placeholder:"N"`
	RetainMB   int      `name:"retain-mb" help:"@train_retain_mb (default ${default})." default:"512" placeholder:"N"`
	Data       string   `help:"@train_data" placeholder:"PATH"`
	Rank       *int     `help:"@train_rank" placeholder:"N"`
	L2         *float64 `name:"l2" help:"@train_weight" placeholder:"X"`
	Fraction   *float64 `name:"clock-fraction" help:"@train_fraction" placeholder:"X"`
	WholeUsers bool     `help:"@train_whole_users"`
	FinalReLU  bool     `name:"final-relu" help:"@train_final_re_lu"`
	Scale      []string `help:"@train_scale" placeholder:"SCALE" sep:"none"`
	Resume     string   `help:"@train_resume" placeholder:"DIR" type:"existingdir"`
	From       string   `help:"@train_from" placeholder:"FILE" type:"existingfile"`
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
	atOnce, cancel := untilToldTwice(ctx)
	defer cancel()
	r, err := localrun.Start(ctx, localrun.Options{
		Settings: s, Folder: out, Workers: true, View: screen.New(stdout, quiet), Warn: warn,
	})
	if err != nil {
		return sum, err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	return r.Wait(ctx, atOnce)
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
		Version: version, Job: job, Faults: t.Fault, EvalEvery: every, EvalMs: ms, Until: g, ComputeMs: t.ComputeMs,
		CacheMB: t.CacheMB, RetainMB: t.RetainMB,
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
