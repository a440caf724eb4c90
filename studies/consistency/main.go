// The consistency study measures what the consistency models of a parameter
// server cost and give, on one machine: how stale their reads are, how training
// goes under them, what their time goes to, and how long they take to the same
// loss beside a straggler. It reproduces figures 2 and 3 of Dai et al., AAAI 2015,
// by running bin/perdure many times, and writes tables, plots and a page.
//
// Runs whose folders have a summary are not run again, so a study that was
// stopped goes on where it was. Nothing here is called concurrently.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/perdure/perdure/internal/run/study"
)

// The parts of the study, as -parts names them.
const (
	differentials = "differentials"
	convergence   = "convergence"
	timeSplit     = "time-split"
	timeToLoss    = "time-to-loss"
	stepSize      = "step-size" // found for the others when -lr is 0
)

// settings are what the study was asked to be.
type settings struct {
	Perdure, Runs, Out string
	Workload, Data     string

	Parts, Kinds []string // of the study; of consistency models
	Staleness    []int    // of ssp and essp in differentials and convergence, clocks
	Split        []int    // and in time-split
	Bounds       []float64
	Seeds        []int
	Fractions    []float64 // of the data in one clock of a worker; 0: the workload's own batch
	Clocks       []int     // of a run, for each of fractions

	Workers, Rank     int
	LR, Start         float64 // the step size (0: search), and where the search starts
	Bisections        int
	Share, Gentle     float64 // of the largest step size, in convergence and in all else
	ComputeMs         int
	Jitter, Straggler string
	Target            float64 // loss of time-to-loss; 0: what bsp has half way
	Losses            []string
	Timeout           time.Duration
	Quick, Report     bool
}

func main() { os.Exit(study.Main("consistency", conduct)) }

// conduct runs what is missing, and then writes tables, plots and the page. It says
// on screen how it goes.
func conduct(ctx context.Context, args []string, screen io.Writer) error {
	s, err := parseFlags(args)
	if err != nil {
		return err
	}
	runner := &runner{settings: s, screen: screen, results: map[string]*result{}}
	rates, trials, err := runner.stepSizes(ctx)
	if err != nil {
		return err
	}
	plan := s.plan(rates)
	if err := runner.runAll(ctx, plan); err != nil {
		return err
	}
	p := newPage(s, study.MachineNow(), rates, trials, runner.of(plan))
	if err := p.write(s.Out); err != nil {
		return err
	}
	fmt.Fprintf(runner.screen, "written: %s\n", filepath.Join(s.Out, "README.md"))
	return nil
}

// quickly are the flags of a smoke test that takes less than a minute.
var quickly = map[string]string{
	"staleness": "0,3", "split": "3", "bounds": "1", "seeds": "1,2", "fractions": "0.01", "clocks": "60",
	"rank": "5", "bisections": "1", "compute-ms": "2",
	"runs": "runs/consistency-quick", "out": "runs/consistency-quick/page",
}

func parseFlags(args []string) (settings, error) {
	var s settings
	f := flag.NewFlagSet("consistency", flag.ContinueOnError)
	f.StringVar(&s.Perdure, "perdure", "bin/perdure", "the `program` that is measured")
	f.StringVar(&s.Runs, "runs", "runs/consistency", "`folder` of the runs; those that are in it are not run again")
	f.StringVar(&s.Out, "out", "docs/studies/consistency", "`folder` of the page, the plots and the tables")
	f.StringVar(&s.Workload, "workload", "mf", "`name` of what is trained")
	f.StringVar(&s.Data, "data", "", "`file` or folder of the data (default the workload's own)")
	f.IntVar(&s.Workers, "workers", 4, "worker processes")
	f.IntVar(&s.Rank, "rank", 16, "rank of the factorisation; 0: the workload's own")
	f.Float64Var(&s.LR, "lr", 0, "step size; 0: the largest at which bsp stands, found by a search")
	f.Float64Var(&s.Start, "lr-start", 0.01, "step size at which the search starts")
	f.IntVar(&s.Bisections, "bisections", 3, "halvings of the interval, on a log scale, once the search has one")
	f.Float64Var(&s.Share, "lr-share", 1, "part of the largest step size that convergence uses")
	f.Float64Var(&s.Gentle, "lr-gentle", 0.5, "part of the largest step size that the other parts use")
	f.IntVar(&s.ComputeMs, "compute-ms", 10, "least time that a clock computes, waited and not worked")
	f.StringVar(&s.Jitter, "jitter", "jitter*2:worker:*@0s",
		"`fault` of differentials and of time-split with compute-ms")
	f.StringVar(&s.Straggler, "straggler", "slow*3:worker:1@0s", "`fault` of convergence and time-to-loss")
	f.Float64Var(&s.Target, "target", 0, "`loss` of time-to-loss; 0: the median that bsp has half way")
	f.DurationVar(&s.Timeout, "timeout", 5*time.Minute, "a run that takes longer is ended, and counts as such")
	f.BoolVar(&s.Quick, "quick", false, "a smoke test: few and short runs, beside the study's own")
	f.BoolVar(&s.Report, "report", false, "run nothing, write the page of what there is")
	study.List(f, &s.Parts, "parts", "differentials,convergence,time-split,time-to-loss", "parts to run and to show",
		study.Word)
	study.List(f, &s.Kinds, "kinds", "bsp,ssp,essp,asp,vap", "consistency models to compare", study.Word)
	study.List(f, &s.Staleness, "staleness", "0,2,3,5,10,15,100",
		"clocks of staleness in differentials and convergence", strconv.Atoi)
	study.List(f, &s.Split, "split", "2,5,10", "clocks of staleness in time-split", strconv.Atoi)
	study.List(f, &s.Bounds, "bounds", "0.3,1,3", "bounds V of vap in time-to-loss, in the model's units", study.Number)
	study.List(f, &s.Seeds, "seeds", "1,2,3", "seeds of convergence and time-to-loss; the others take the first",
		strconv.Atoi)
	study.List(f, &s.Fractions, "fractions", "0.01,0.1", "parts of the data in one clock; 0: the workload's own batch",
		study.Number)
	study.List(f, &s.Clocks, "clocks", "600,150", "clocks of a run, for each of -fractions", strconv.Atoi)
	study.List(f, &s.Losses, "loss", "test_rmse,test_loss", "columns to take for the loss: the first that a run has",
		study.Word)
	if err := f.Parse(args); err != nil {
		return s, err
	}
	if f.NArg() > 0 {
		return s, fmt.Errorf("%q is no flag; parts are chosen by -parts", f.Arg(0))
	}
	if s.Quick {
		if err := study.Preset(f, quickly); err != nil {
			return s, err
		}
	}
	return s, s.check()
}

func (s settings) check() error {
	for _, p := range s.Parts {
		if !slices.Contains([]string{differentials, convergence, timeSplit, timeToLoss}, p) {
			return fmt.Errorf("-parts: %q is none of %s, %s, %s, %s", p, differentials, convergence, timeSplit,
				timeToLoss)
		}
	}
	for _, k := range s.Kinds {
		if !slices.Contains([]string{"bsp", "ssp", "essp", "asp", "vap"}, k) {
			return fmt.Errorf("-kinds: %q is none of bsp, ssp, essp, asp, vap", k)
		}
	}
	if s.ComputeMs < 1 && slices.Contains(s.Parts, timeSplit) {
		return errors.New("-compute-ms must be at least 1 for time-split, which has clocks with and without it")
	}
	distinct := slices.Compact(slices.Sorted(slices.Values(s.Fractions)))
	switch {
	case len(distinct) < len(s.Fractions):
		return errors.New("-fractions has a number twice")
	case len(s.Clocks) != len(s.Fractions):
		return fmt.Errorf("-clocks has %d numbers and -fractions %d; give one for each", len(s.Clocks),
			len(s.Fractions))
	case slices.Min(s.Clocks) < evaluations/4:
		return fmt.Errorf("-clocks %d; choose at least %d", slices.Min(s.Clocks), evaluations/4)
	case !slices.Contains(s.Kinds, "bsp"):
		return errors.New("-kinds needs bsp, which the others are compared with")
	case !(s.Start > 0) || s.LR < 0 || !(s.Share > 0) || !(s.Gentle > 0):
		return errors.New("-lr-start, -lr-share and -lr-gentle must be above 0, and -lr not below it")
	}
	if _, err := os.Stat(s.Perdure); err != nil && !s.Report {
		return fmt.Errorf("%s is not there; build it with make build", s.Perdure)
	}
	return nil
}
