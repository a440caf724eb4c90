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

	"github.com/perdure/perdure/internal/run/checkpoints"
	"github.com/perdure/perdure/internal/run/localrun"
	"github.com/perdure/perdure/internal/run/rundir"
	"github.com/perdure/perdure/internal/run/settings"
	"github.com/perdure/perdure/internal/run/terminal"
)

// jobFlags are the flags that train and up share. Their help is in flagTexts. Flags with the tag main appear in the
// command's own help, all others only in the help of their group.
type jobFlags struct {
	File  string                 `short:"f" group:"run" main:"" placeholder:"JOB.yaml"`
	Asked settings.Flags         `embed:""`
	Out   string                 `group:"run" main:"" placeholder:"DIR" type:"path"`
	Live  dashboardFlag          `group:"run" main:"" name:"dashboard" placeholder:"HOST:PORT"`
	Watch localrun.Observability `embed:""`
}

// trainCmd holds the flags that all workloads share. Without a workload on the command line it trains that of the
// earlier run, if one is named, or else the default one.
type trainCmd struct {
	Of workloadFlags `embed:""`
	jobFlags
	Work  settings.WorkloadFlags `embed:""`
	Again againFlags             `embed:""`
	outputFlags
}

// workloadFlags are the workloads and the flags of each.
type workloadFlags struct {
	Unnamed struct{}              `cmd:"" default:"withargs" hidden:"" help:"Train the default workload."`
	Softmax settings.SoftmaxFlags `cmd:"" help:"Softmax regression on images of clothing (the default)."`
	CNN     settings.CNNFlags     `cmd:"" name:"cnn" help:"A convolutional network on 28 x 28 images."`
	MF      settings.MFFlags      `cmd:"" name:"mf" help:"Matrix factorisation: ratings of items by users."`
	LogReg  struct{}              `cmd:"" name:"logreg" help:"Logistic regression on sparse features, such as clicks."`
	LDA     settings.LDAFlags     `cmd:"" name:"lda" help:"Latent Dirichlet allocation: topics of documents."`
	Bowl    settings.QuadFlags    `cmd:"" name:"quadratic" help:"A quadratic function with a known minimum."`
}

// againFlags name an earlier run to continue or repeat.
type againFlags struct {
	Resume string `group:"run" main:"" placeholder:"DIR" type:"existingdir"`
	Fork   string `group:"run" placeholder:"DIR[@CLOCK]" type:"path"`
	From   string `group:"run" placeholder:"FILE" type:"existingfile"`
}

// outputFlags control what a command prints about a run.
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
	_, err = runJob(ctx, localrun.Options{
		Settings: s, Folder: t.Out, View: t.view(), Watched: t.Watch, Live: t.live(),
	})
	return err
}

// settings returns the settings of the run that the command line requests.
func (t *trainCmd) settings(k *kong.Context) (settings.Run, error) {
	return settingsOf(t.request(workloadOf(k), given(k)), &t.Again)
}

// workloadOf returns the workload that a command line of train names, or "".
func workloadOf(k *kong.Context) string {
	if n := k.Selected(); n != nil && !n.Hidden && n.Parent.Name == "train" {
		return n.Name
	}
	return ""
}

// view returns the view that displays a run.
func (f *outputFlags) view() terminal.View {
	switch {
	case f.JSON:
		return terminal.JSONView{Out: stdout, Warn: warn}
	case f.Quiet:
		return terminal.LineView{Out: stdout}
	}
	return terminal.New(stdout)
}

// runJob runs a training job to its end and returns its summary. The first signal ends the job gracefully, with a last
// checkpoint. The second ends it immediately.
func runJob(ctx context.Context, o localrun.Options) (sum rundir.Summary, err error) {
	atOnce, cancel := untilSecondSignal(ctx)
	defer cancel()
	o.Workers, o.Warn = true, warn
	r, err := localrun.Start(ctx, o)
	if err != nil {
		return sum, err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	return r.Wait(ctx, atOnce)
}

// live returns the configuration of the run's dashboard.
func (f *jobFlags) live() localrun.LiveView {
	return localrun.LiveView{Listen: string(f.Live), ShowLink: printDashboard}
}

// warn prints a warning for the user.
func warn(line string) { fmt.Fprintln(os.Stderr, "perdure:", line) }

// commandFlags are flags that affect this command and not the run: its output and its parent process. They include
// --file, which stands for the flags in the file.
var commandFlags = []string{
	"quiet", "json", "metrics", "log-format", "file", "with-parent", "announce-fd",
	"dashboard",
}

// given returns the names of the flags on the command line that affect the run.
func given(k *kong.Context) map[string]bool {
	names := map[string]bool{}
	for _, p := range k.Path {
		if p.Flag != nil && !slices.Contains(commandFlags, p.Flag.Name) {
			names[p.Flag.Name] = true
		}
	}
	return names
}

// request returns the request that the flags make for a workload; given are those on the command line.
func (t *trainCmd) request(workload string, given map[string]bool) *settings.Flags {
	a := t.jobFlags.request(workload, given)
	if !given["clocks"] {
		a.Shape.Clocks = 0 // use the workload's default
	}
	w := t.Work
	w.Init, w.Data = home(w.Init), home(w.Data)
	w.Convex, w.Network, w.Factors, w.Topics, w.Bowl = t.Of.Softmax, t.Of.CNN, t.Of.MF, t.Of.LDA, t.Of.Bowl
	a.Work = w
	return a
}

// request returns the request that the common flags make.
func (f *jobFlags) request(workload string, given map[string]bool) *settings.Flags {
	a := f.Asked
	a.Version, a.Workload, a.Given = version, workload, given
	a.Reach.Keys = absolute(a.Reach.Keys)
	return &a
}

// settingsOf returns the settings of a run that repeats, resumes or forks another, or starts a new one.
func settingsOf(a *settings.Flags, of *againFlags) (s settings.Run, err error) {
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

// absolute makes a path absolute, for processes that may run in another directory.
func absolute(path string) string {
	if path == "" {
		return ""
	}
	if at, err := filepath.Abs(path); err == nil {
		return at
	}
	return path
}

// home expands a leading ~ if the shell has not.
func home(path string) string {
	if strings.HasPrefix(path, "~/") {
		return kong.ExpandPath(path)
	}
	return path
}
