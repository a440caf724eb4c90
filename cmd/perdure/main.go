// Command perdure trains models with a fault-tolerant parameter server: any of its processes may be killed at any time.
// See `perdure --help` and docs/GUIDE.md.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime/debug"
	"strings"
	"syscall"

	"github.com/alecthomas/kong"
	kongcompletion "github.com/jotaen/kong-completion"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/proc/supervisor"
	"github.com/perdure/perdure/internal/run/humanize"
	"github.com/perdure/perdure/internal/run/localrun"
	"github.com/perdure/perdure/internal/run/terminal"
)

// version is set by the Makefile. Other builds have the version that Go records, if any.
var version = unversioned

const unversioned = "unversioned"

// versionOf returns the version of a program: the one that the build has set, or else the one that Go has recorded. Go
// records the tag of `go install MODULE@TAG`, and the commit of a build in a git checkout.
func versionOf(set string, recorded *debug.BuildInfo) string {
	if set != unversioned || recorded == nil || recorded.Main.Version == "(devel)" {
		return set
	}
	return cmp.Or(recorded.Main.Version, set)
}

// Exit codes.
const (
	exitError  = 1
	exitUsage  = 2
	exitFenced = 3 // the process's slot or server index now belongs to a newer process
	exitFailed = 5 // the job of a coordinator or a host has failed
	exitSignal = 130
)

type cli struct {
	Train      trainCmd       `cmd:"" help:"Train a workload on this machine, even if processes fail."`
	Init       initCmd        `cmd:"" help:"Write a commented job file, for train -f."`
	Demo       demoCmd        `cmd:"" help:"Show in one minute what Perdure does."`
	Up         upCmd          `cmd:"" help:"Start a coordinator and servers for your own training programs."`
	Export     exportCmd      `cmd:"" help:"@perdure_export"`
	Predict    predictCmd     `cmd:"" help:"@perdure_predict"`
	Runs       runsCmds       `cmd:"" help:"List, show, export and delete runs."`
	Study      studyCmds      `cmd:"" help:"@perdure_study"`
	Views      viewCmds       `embed:""`
	Fault      faultCmd       `cmd:"" help:"Inject a failure into a running job."`
	Stop       stopCmd        `cmd:"" help:"@perdure_stop"`
	Roles      roleCmds       `embed:""`
	Keys       keysCmds       `cmd:"" help:"@perdure_keys"`
	Scale      scaleCmd       `cmd:"" help:"Let workers join or leave a running job."`
	Drain      drainCmd       `cmd:"" help:"@perdure_drain"`
	Data       dataCmd        `cmd:"" help:"List and fetch data sets."`
	Workloads  workloadsCmd   `cmd:"" help:"List what can be trained."`
	Log        logCmds        `cmd:"" help:"Serve an update log for jobs on many machines, or inspect one."`
	Checkpoint checkpointCmds `cmd:"" help:"@perdure_checkpoint"`
	Bench      benchCmds      `cmd:"" help:"@perdure_bench"`
	Version    versionCmd     `cmd:"" help:"Print the version."`

	About aboutFlags `embed:""`

	Completion kongcompletion.Completion `cmd:"" help:"Print how to enable shell completion."`

	BenchPeer benchPeerCmd `cmd:"" hidden:"" help:"Serve the raw exchanges of perdure bench."`
}

// viewCmds show runs and jobs.
type viewCmds struct {
	Report    reportCmd    `cmd:"" help:"@perdure_report"`
	Dashboard dashboardCmd `cmd:"" help:"@perdure_dashboard"`
	Status    statusCmd    `cmd:"" help:"Show the status of a running job."`
}

// aboutFlags print information about the program and exit.
type aboutFlags struct {
	Help    helpFlag    `short:"h" help:"Print help."`
	HelpAll helpAllFlag `hidden:"" help:"Print help with all flags."`
	Version versionFlag `name:"version" help:"Print the version and exit."`
}

func main() {
	if err := supervisor.DieWithParent(); err != nil {
		fmt.Fprintln(os.Stderr, "perdure:", err)
		os.Exit(exitError)
	}
	recorded, _ := debug.ReadBuildInfo() // nil if Go has recorded nothing
	version = versionOf(version, recorded)
	os.Exit(run(os.Args[1:]))
}

// run runs one command line and returns the exit code.
func run(args []string) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var c cli
	parser := newParser(ctx, &c)
	kongcompletion.Register(parser)
	file, err := openJobFile(parser.Model, args)
	if err == nil && file != nil {
		args, err = file.commandLine("")
	}
	if err != nil {
		return finish(ctx, err)
	}
	k, err := parser.Parse(args)
	if err != nil && stdout.Err() != nil { // printing the help has failed
		return finish(ctx, nil)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "perdure:", parseErrorText(parser.Model, err))
		return exitUsage
	}
	err = k.Run()
	if file != nil {
		err = file.blame(err)
	}
	return finish(ctx, err)
}

// finish reports how a command ended and returns the exit code. Processes of a job ignore lost output: they print to
// their log and continue when the disk is full.
func finish(ctx context.Context, err error) int {
	code := 0
	if err != nil {
		code = reportError(ctx, err)
	}
	if lost := stdout.Err(); lost != nil && !supervisor.HasParent() {
		code = cmp.Or(code, reportError(ctx, lost))
	}
	return code
}

// newParser returns the parser for command lines.
func newParser(ctx context.Context, c *cli) *kong.Kong {
	return kong.Must(c,
		kong.Name("perdure"),
		kong.Description("A fault-tolerant parameter server: training continues when any process is killed."),
		kong.NoDefaultHelp(),
		kong.BindTo(ctx, (*context.Context)(nil)), kong.Writers(stdout, os.Stderr), kong.PostBuild(fillHelp),
		kong.Exit(func(code int) { os.Exit(cmp.Or(code, finish(ctx, nil))) }), // runs after the help is printed
	)
}

// reportError prints an error as one line and returns its exit code.
func reportError(ctx context.Context, err error) int {
	sent := signalError{}
	switch {
	case errors.As(err, &sent):
		return sent.code
	case errors.Is(err, localrun.ErrInterrupted) || errors.Is(err, localrun.ErrStopped):
		fmt.Fprintf(os.Stderr, "%sperdure: %v\n", terminal.Overwrite(os.Stderr), err)
		return exitSignal
	case ctx.Err() != nil && errors.Is(err, context.Canceled):
		return exitSignal
	case errors.Is(err, perdure.ErrFenced):
		fmt.Fprintln(os.Stderr, "perdure:", err)
		return exitFenced
	case errors.Is(err, perdure.ErrFailed):
		fmt.Fprintln(os.Stderr, "perdure:", humanize.ErrorText(err))
		return exitFailed
	case errors.Is(err, perdure.ErrUsage):
		fmt.Fprintln(os.Stderr, "perdure:", humanize.ErrorText(err))
		return exitUsage
	}
	fmt.Fprintln(os.Stderr, "perdure:", strings.ReplaceAll(humanize.ErrorText(err), "\n", "; "))
	return exitError
}
