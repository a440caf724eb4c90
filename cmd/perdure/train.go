package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/alecthomas/kong"

	"github.com/perdure/perdure/internal/proc/httpdebug"
	"github.com/perdure/perdure/internal/run/checkpoints"
	"github.com/perdure/perdure/internal/run/localrun"
	"github.com/perdure/perdure/internal/run/rundir"
	"github.com/perdure/perdure/internal/run/screen"
	"github.com/perdure/perdure/internal/run/settings"
)

// jobFlags are what train and up have in common. Their texts are in flagTexts. What is main
// stands in the command's own help, and all else in that of its group.
type jobFlags struct {
	File string `short:"f" group:"run" main:"" placeholder:"JOB.yaml"`

	Workers int   `group:"job" main:"" default:"4" placeholder:"N"`
	Servers int   `group:"job" main:"" default:"2" placeholder:"N"`
	Clocks  int64 `group:"job" main:"" default:"300" placeholder:"N"`

	Consistency string `group:"consistency" main:"" default:"bsp" placeholder:"MODEL"`
	Recovery    string `group:"recovery" main:"" default:"resend:auto" placeholder:"STRATEGY"`

	Fault []string `group:"faults" main:"" placeholder:"FAULT" sep:"none"`
	Seed  uint64   `group:"job" main:"" default:"1" placeholder:"N"`
	Store string   `group:"recovery" main:"" placeholder:"URL"`
	Out   string   `group:"run" main:"" placeholder:"DIR" type:"path"`

	Shards int `group:"job" default:"16" placeholder:"N"`

	Reach reachFlags `embed:""`

	StaleScale string `group:"consistency" placeholder:"HOW"`

	Kept keptFlags `embed:""`
	Log  string    `group:"recovery" placeholder:"URL"`

	Outages outageFlags `embed:""`
	Far     farFlags    `embed:""`
	Watch   watchFlags  `embed:""`
}

// reachFlags are about who can reach the job.
type reachFlags struct {
	Listen   string `group:"job" default:"127.0.0.1:0" placeholder:"HOST:PORT"`
	Keys     string `group:"job" env:"PERDURE_KEYS" placeholder:"DIR" type:"path"`
	Insecure bool   `group:"job"`
}

func (f *reachFlags) asked() settings.Reach {
	return settings.Reach{Listen: f.Listen, Keys: absolute(f.Keys), Insecure: f.Insecure}
}

// farFlags are about how far the processes are from each other.
type farFlags struct {
	Delay     string `group:"faults" placeholder:"TIME[±TIME]"`
	Bandwidth string `group:"faults" placeholder:"BYTES"`
}

// watchFlags are about how the processes let themselves be watched.
type watchFlags struct {
	Metrics   string           `group:"run" placeholder:"HOST:PORT"`
	LogFormat httpdebug.Format `group:"run" default:"text" enum:"text,json" placeholder:"HOW"`
}

// keptFlags are about what is kept for a death, and where.
type keptFlags struct {
	MTBF      string   `name:"mtbf" group:"recovery" placeholder:"TIME"`
	Keep      int      `name:"keep-checkpoints" group:"recovery" default:"1" placeholder:"K"`
	Grace     string   `group:"recovery" default:"10s" placeholder:"TIME"`
	NoReplace bool     `group:"recovery"`
	Failures  int      `name:"max-failures" group:"recovery" default:"5" placeholder:"N"`
	TakeOver  string   `name:"take-over-after" group:"recovery" placeholder:"TIME"`
	Zone      []string `group:"recovery" placeholder:"I=NAME" sep:"none"`
	Zones     []string `group:"recovery" placeholder:"NAME"`
}

// outageFlags are about what workers do while a shard is out.
type outageFlags struct {
	OnOutage   string `group:"outages" default:"wait" placeholder:"POLICY"`
	OutageRows string `group:"outages" default:"apply" placeholder:"HOW"`
	OutageMB   int    `name:"outage-mb" group:"outages" default:"2048" placeholder:"N"`
	Suspend    string `name:"suspend-after" group:"outages" placeholder:"TIME"`
}

// learningFlags are about how the model is trained.
type learningFlags struct {
	Init       string   `group:"training" placeholder:"FILE"`
	LR         *float64 `name:"lr" group:"training" placeholder:"RATE"`
	Batch      *int     `group:"training" placeholder:"N"`
	Rule       string   `group:"training" placeholder:"RULE"`
	Sparse     bool     `group:"training"`
	Combine    string   `group:"training" placeholder:"HOW"`
	Schedule   string   `group:"training" default:"const" placeholder:"NAME"`
	StepEvery  int64    `group:"training" default:"100" placeholder:"N"`
	StepFactor float64  `group:"training" default:"0.5" placeholder:"X"`
	EvalEvery  string   `group:"training" default:"10" placeholder:"N|TIME"`
}

// trainCmd are the flags that all workloads have. Where none is named, the first is trained, or
// that of the earlier run that is named.
type trainCmd struct {
	Of workloadFlags `embed:""`

	jobFlags
	Until string     `group:"job" main:"" placeholder:"GOAL"`
	Data  string     `group:"training" main:"" placeholder:"PATH"`
	Again againFlags `embed:""`
	outputFlags

	Learning  learningFlags `embed:""`
	CacheMB   int           `name:"cache-mb" group:"consistency" default:"256" placeholder:"N"`
	RetainMB  int           `name:"retain-mb" group:"recovery" default:"512" placeholder:"N"`
	ComputeMs int           `group:"faults" default:"0" placeholder:"N"`
	Scale     []string      `group:"job" placeholder:"SCALE" sep:"none"`
}

// workloadFlags are the workloads, and the flags of each.
type workloadFlags struct {
	Unnamed struct{}              `cmd:"" default:"withargs" hidden:"" help:"Train the usual workload."`
	Softmax settings.ConvexAsked  `cmd:"" help:"Softmax regression, the usual one: pictures of clothes."`
	CNN     cnnFlags              `cmd:"" name:"cnn" help:"A convolutional network on pictures of 28 x 28."`
	MF      settings.FactorsAsked `cmd:"" name:"mf" help:"Matrix factorisation: ratings of items by users."`
	LogReg  struct{}              `cmd:"" name:"logreg" help:"Logistic regression: sparse features, as of clicks."`
	LDA     settings.TopicsAsked  `cmd:"" name:"lda" help:"Latent Dirichlet allocation: topics of documents."`
	Bowl    settings.BowlAsked    `cmd:"" name:"quadratic" help:"A bowl, of which all is known."`
}

// cnnFlags are of the workload of that name.
type cnnFlags struct {
	FinalReLU bool   `name:"final-relu" main:"" group:"cnn"`
	Partition string `main:"" group:"cnn" default:"row" placeholder:"row|layer"`
}

// againFlags name an earlier run.
type againFlags struct {
	Resume string `group:"run" main:"" placeholder:"DIR" type:"existingdir"`
	Fork   string `group:"run" placeholder:"DIR[@CLOCK]" type:"path"`
	From   string `group:"run" placeholder:"FILE" type:"existingfile"`
}

// outputFlags are about what a command prints of a run.
type outputFlags struct {
	Quiet bool `group:"run" main:"" short:"q"`
	JSON  bool `name:"json" group:"run" main:""`
}

func (t *trainCmd) Run(ctx context.Context, k *kong.Context) error {
	s, err := t.settings(k)
	if err != nil {
		return err
	}
	if t.Out == "" {
		t.Out = filepath.Join("runs", fmt.Sprintf("%s-%s", s.Job.Workload, time.Now().Format("20060102-150405.000")))
	}
	_, err = runJob(ctx, s, t.Out, t.view(), localrun.Watched(t.Watch))
	return err
}

// settings are those of the run that the command line asks for.
func (t *trainCmd) settings(k *kong.Context) (settings.Run, error) {
	return settingsOf(t.asked(workloadOf(k), given(k)), &t.Again)
}

// workloadOf is the workload that a command line of train names; "": none.
func workloadOf(k *kong.Context) string {
	if n := k.Selected(); n != nil && !n.Hidden && n.Parent.Name == "train" {
		return n.Name
	}
	return ""
}

// view is what shows a run.
func (f *outputFlags) view() screen.View {
	switch {
	case f.JSON:
		return screen.Document{Out: stdout, Warn: warn}
	case f.Quiet:
		return screen.OneLine{Out: stdout}
	}
	return screen.New(stdout)
}

// runJob runs a training job to its end and returns its summary. The first signal to end ends
// it in order, with a last checkpoint; the second at once.
func runJob(
	ctx context.Context, s settings.Run, out string, view screen.View, w localrun.Watched,
) (sum rundir.Summary, err error) {
	atOnce, cancel := untilToldTwice(ctx)
	defer cancel()
	r, err := localrun.Start(ctx, localrun.Options{
		Settings: s, Folder: out, Workers: true, View: view, Watched: w, Warn: warn,
	})
	if err != nil {
		return sum, err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	return r.Wait(ctx, atOnce)
}

// warn tells people something that they must know.
func warn(line string) { fmt.Fprintln(os.Stderr, "perdure:", line) }

// shown are flags about what people see of a run, and the one that stands for others.
var shown = []string{"quiet", "json", "metrics", "log-format", "file"}

// given returns the names of the flags on the command line that ask something of a run.
func given(k *kong.Context) map[string]bool {
	names := map[string]bool{}
	for _, p := range k.Path {
		if p.Flag != nil && !slices.Contains(shown, p.Flag.Name) {
			names[p.Flag.Name] = true
		}
	}
	return names
}

// asked is what the flags ask for of a workload; given are those on the command line.
func (t *trainCmd) asked(workload string, given map[string]bool) *settings.Asked {
	a := t.jobFlags.asked(workload, given)
	if !given["clocks"] {
		a.Shape.Clocks = 0 // the workload's
	}
	l, o := &t.Learning, &t.Of
	a.Init = home(t.Learning.Init)
	a.Work = settings.WorkAsked{
		Until: t.Until, Rule: l.Rule, LR: l.LR, Schedule: l.Schedule, StepEvery: l.StepEvery, StepFactor: l.StepFactor,
		Batch: l.Batch, Sparse: l.Sparse, Combine: l.Combine, Data: home(t.Data),
		Factors: o.MF, Topics: o.LDA, Bowl: o.Bowl, Convex: o.Softmax, FinalReLU: o.CNN.FinalReLU,
		Partition: o.CNN.Partition, EvalEvery: l.EvalEvery, ComputeMs: t.ComputeMs, CacheMB: t.CacheMB,
		RetainMB: t.RetainMB, Scale: t.Scale,
	}
	return a
}

// asked is what the common flags ask for.
func (f *jobFlags) asked(workload string, given map[string]bool) *settings.Asked {
	o := &f.Outages
	return &settings.Asked{
		Version: version, Workload: workload,
		Shape: settings.Shape{
			Workers: f.Workers, Servers: f.Servers, Shards: f.Shards, Consistency: f.Consistency, Recovery: f.Recovery,
			Clocks: f.Clocks, Seed: f.Seed,
		},
		MTBF: f.Kept.MTBF, NoReplace: f.Kept.NoReplace, TakeOver: f.Kept.TakeOver, MaxFailures: f.Kept.Failures,
		Zones: f.Kept.Zones, Zone: f.Kept.Zone, Faults: f.Fault,
		Outage:   settings.OutageAsked{On: o.OnOutage, Rows: o.OutageRows, MB: o.OutageMB, StaleScale: f.StaleScale},
		Distance: settings.Distance(f.Far), Suspend: o.Suspend,
		Log: f.Log, Reach: f.Reach.asked(), Grace: f.Kept.Grace, Keep: f.Kept.Keep, Store: f.Store, Given: given,
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
		a.Workload = cmp.Or(a.Workload, settings.DefaultWorkload)
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

// absolute is a path that other processes understand, which may begin in another folder.
func absolute(path string) string {
	if path == "" {
		return ""
	}
	if at, err := filepath.Abs(path); err == nil {
		return at
	}
	return path
}

// home puts the user's folder in place of ~, where the shell has not.
func home(path string) string {
	if strings.HasPrefix(path, "~/") {
		return kong.ExpandPath(path)
	}
	return path
}
