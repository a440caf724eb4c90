package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/alecthomas/kong"

	"github.com/perdure/perdure/internal/run/checkpoints"
	"github.com/perdure/perdure/internal/run/localrun"
	"github.com/perdure/perdure/internal/run/rundir"
	"github.com/perdure/perdure/internal/run/screen"
	"github.com/perdure/perdure/internal/run/settings"
)

// jobFlags are what train and up have in common.
type jobFlags struct {
	Workers     int       `help:"@job_workers (default ${default})." default:"4" placeholder:"N"`
	Servers     int       `help:"Server processes (default ${default})." default:"2" placeholder:"N"`
	Shards      int       `help:"@job_shards (default ${default})." default:"16" placeholder:"N"`
	Consistency string    `help:"@job_consistency (default ${default})." default:"bsp" placeholder:"MODEL"`
	Recovery    string    `help:"@job_recovery (default ${default})." default:"resend:auto" placeholder:"STRATEGY"`
	MTBF        string    `name:"mtbf" help:"@job_mtbf" placeholder:"TIME"`
	OnOutage    string    `help:"@job_on_outage (default ${default})." default:"wait" placeholder:"POLICY"`
	OutageRows  string    `help:"@job_outage_rows (default ${default})." default:"apply" placeholder:"HOW"`
	OutageMB    int       `name:"outage-mb" help:"@job_outage_mb (default ${default})." default:"2048" placeholder:"N"`
	StaleScale  string    `help:"@job_stale_scale" placeholder:"HOW"`
	NoReplace   bool      `help:"Start no server anew when one dies; the others take over what it held."`
	Zone        []string  `help:"@job_zone" placeholder:"I=NAME" sep:"none"`
	Zones       []string  `help:"@job_zones" placeholder:"NAME"`
	Suspend     string    `name:"suspend-after" help:"@job_suspend" placeholder:"TIME"`
	Clocks      int64     `help:"@job_clocks (default ${default}; of cnn 2000)." default:"300" placeholder:"N"`
	Seed        uint64    `help:"@job_seed (default ${default})." default:"1" placeholder:"N"`
	Fault       []string  `help:"@job_fault" placeholder:"FAULT" sep:"none"`
	Delay       string    `help:"@job_delay" placeholder:"TIME[±TIME]"`
	Bandwidth   string    `help:"@job_bandwidth" placeholder:"BYTES"`
	Listen      string    `help:"@job_listen (default ${default})." default:"127.0.0.1:0" placeholder:"HOST:PORT"`
	Checkpoints keepFlags `embed:""`
	Out         string    `help:"@job_out" placeholder:"DIR" type:"path"`
	logFlags
}

// keepFlags are about a run's checkpoints.
type keepFlags struct {
	Grace string `help:"@job_grace (default ${default})." default:"10s" placeholder:"TIME"`
	Keep  int    `name:"keep-checkpoints" help:"@job_keep (default ${default})." default:"1" placeholder:"K"`
	Store string `help:"@job_store (default the folder checkpoint in the run's)." placeholder:"URL"`
}

type trainCmd struct {
	Workload string `arg:"" optional:"" help:"@train_workload (default ${default})." default:"softmax"`
	jobFlags
	Until      string     `help:"@train_until" placeholder:"GOAL"`
	Rule       string     `help:"@train_rule (default ${default})." default:"sgd" placeholder:"RULE"`
	Sparse     bool       `help:"Keep the model in sparse tables: a row is stored from its first update on."`
	Batch      *int       `help:"Examples per worker and clock (default the workload's)." placeholder:"N"`
	LR         *float64   `name:"lr" help:"@train_lr" placeholder:"RATE"`
	Schedule   string     `help:"@train_schedule (default ${default})." default:"const" placeholder:"NAME"`
	StepEvery  int64      `help:"@train_step_every (default ${default})." default:"100" placeholder:"N"`
	StepFactor float64    `help:"@train_step_factor (default ${default})." default:"0.5" placeholder:"X"`
	EvalEvery  string     `help:"@train_eval_every (default ${default})." default:"10" placeholder:"N|TIME"`
	ComputeMs  int        `help:"@train_compute_ms (default ${default})." default:"0" placeholder:"N"`
	CacheMB    int        `name:"cache-mb" help:"@train_cache_mb (default ${default})." default:"256" placeholder:"N"`
	RetainMB   int        `name:"retain-mb" help:"@train_retain_mb (default ${default})." default:"512" placeholder:"N"`
	Data       string     `help:"@train_data" placeholder:"PATH"`
	Rank       *int       `help:"@train_rank" placeholder:"N"`
	L2         *float64   `name:"l2" help:"@train_weight" placeholder:"X"`
	Fraction   *float64   `name:"clock-fraction" help:"@train_fraction" placeholder:"X"`
	WholeUsers bool       `help:"@train_whole_users"`
	CNN        cnnFlags   `embed:""`
	Scale      []string   `help:"@train_scale" placeholder:"SCALE" sep:"none"`
	Again      againFlags `embed:""`
	Quiet      bool       `help:"Print only the result." short:"q"`
}

// cnnFlags are of the workload of that name.
type cnnFlags struct {
	FinalReLU bool   `name:"final-relu" help:"@train_final_re_lu"`
	Partition string `help:"@train_partition (default ${default})." default:"row" placeholder:"row|layer"`
}

// againFlags name an earlier run.
type againFlags struct {
	Resume string `help:"@train_resume" placeholder:"DIR" type:"existingdir"`
	Fork   string `help:"@train_fork" placeholder:"DIR[@CLOCK]" type:"path"`
	From   string `help:"@train_from" placeholder:"FILE" type:"existingfile"`
}

func (t *trainCmd) Run(ctx context.Context, k *kong.Context) error {
	s, err := settingsOf(t.asked(given(k)), &t.Again)
	if err != nil {
		return err
	}
	if t.Out == "" {
		t.Out = filepath.Join("runs", fmt.Sprintf("%s-%s", s.Job.Workload, time.Now().Format("20060102-150405.000")))
	}
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

// given returns the names of the flags on the command line.
func given(k *kong.Context) map[string]bool {
	names := map[string]bool{}
	for _, p := range k.Path {
		if p.Flag != nil {
			names[p.Flag.Name] = true
		}
	}
	return names
}

// asked is what the flags ask for; given are those on the command line.
func (t *trainCmd) asked(given map[string]bool) *settings.Asked {
	a := t.jobFlags.asked(t.Workload, given)
	if !given["clocks"] {
		a.Shape.Clocks = 0 // the workload's
	}
	a.Work = settings.WorkAsked{
		Until: t.Until, Rule: t.Rule, LR: t.LR, Schedule: t.Schedule, StepEvery: t.StepEvery, StepFactor: t.StepFactor,
		Batch: t.Batch, Sparse: t.Sparse, Data: home(t.Data), Rank: t.Rank, L2: t.L2, Fraction: t.Fraction,
		WholeUsers: t.WholeUsers, FinalReLU: t.CNN.FinalReLU, Partition: t.CNN.Partition, EvalEvery: t.EvalEvery,
		ComputeMs: t.ComputeMs, CacheMB: t.CacheMB, RetainMB: t.RetainMB, Scale: t.Scale,
	}
	return a
}

// asked is what the common flags ask for.
func (f *jobFlags) asked(workload string, given map[string]bool) *settings.Asked {
	return &settings.Asked{
		Version: version, Workload: workload,
		Shape: settings.Shape{
			Workers: f.Workers, Servers: f.Servers, Shards: f.Shards, Consistency: f.Consistency, Recovery: f.Recovery,
			Clocks: f.Clocks, Seed: f.Seed,
		},
		MTBF: f.MTBF, NoReplace: f.NoReplace, Suspend: f.Suspend, Zones: f.Zones, Zone: f.Zone, Faults: f.Fault,
		Outage:   settings.OutageAsked{On: f.OnOutage, Rows: f.OutageRows, MB: f.OutageMB, StaleScale: f.StaleScale},
		Distance: settings.Distance{Delay: f.Delay, Bandwidth: f.Bandwidth},
		Log: settings.LogAsked{
			Sync: f.LogSync, MB: f.LogMB, SnapshotMB: f.SnapshotMB, NATS: f.NATS, Creds: f.NATSCreds, CA: f.NATSCA,
			Cert: f.NATSCert, Key: f.NATSKey, Replicas: f.NATSReplicas,
		},
		Listen: f.Listen, Grace: f.Checkpoints.Grace, Keep: f.Checkpoints.Keep,
		Store: f.Checkpoints.Store, Given: given,
	}
}

// settingsOf are those of a run that repeats another, goes on from one, or begins.
func settingsOf(a *settings.Asked, of *againFlags) (s settings.Run, err error) {
	switch {
	case of.From != "":
		return a.Repeat(of.From)
	case of.Resume != "":
		return a.Resume(of.Resume)
	case of.Fork == "":
		return a.New()
	}
	f, err := checkpoints.Open(of.Fork)
	if err != nil {
		return s, err
	}
	k, err := f.Choose()
	if err != nil {
		return s, err
	}
	return a.Fork(f.Run, k)
}

// home puts the user's folder in place of ~, where the shell has not.
func home(path string) string {
	if strings.HasPrefix(path, "~/") {
		return kong.ExpandPath(path)
	}
	return path
}
