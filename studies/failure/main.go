// The failure study repeats the experiment of Cao et al., "Training Through
// Failure" (2024), with Perdure: the parameter server is killed on purpose, and
// comes back later, under several recovery strategies and two modes of training.
// It runs bin/perdure many times, and writes tables, plots and a page, with what
// the paper has beside it.
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
	"strings"
	"time"

	"github.com/perdure/perdure/internal/run/study"
)

// settings are what the study was asked to be. Times are as at scale 1.
type settings struct {
	Perdure, Runs, Out string
	Workload, Data     string

	Modes, Strategies []string
	Seeds             []int
	Workers, Shards   int
	Batch             int     // 0: the workload's own
	LR                float64 // likewise
	ComputeMs         int

	Scale               float64 // of all times that follow, and of ComputeMs
	Length, Eval        time.Duration
	Kills               []time.Duration
	Outage              time.Duration
	Goals               []float64 // accuracies, 0 to 1
	Slack               time.Duration
	Quick, Report, List bool
	Remark              string // of who ran it, for readers
}

func main() { os.Exit(study.Main("failure", conduct)) }

// conduct runs what is missing, and then writes tables, plots and the page. It says
// on screen how it goes.
func conduct(ctx context.Context, args []string, screen io.Writer) error {
	s, err := parseFlags(args)
	if err != nil {
		return err
	}
	cells := s.cells()
	var out []omission
	if !s.Report {
		if cells, out, err = s.accepted(ctx, cells); err != nil {
			return err
		}
	}
	for _, o := range out {
		fmt.Fprintf(screen, "left out: %s: %s\n", o.cell, o.Why)
	}
	results, err := (&runner{settings: s, screen: screen}).all(ctx, cells)
	if err != nil || s.List {
		return err
	}
	p := newPage(s, study.MachineNow(), cells, out, results)
	if err := p.write(s.Out); err != nil {
		return err
	}
	fmt.Fprintf(screen, "written: %s\n", filepath.Join(s.Out, "README.md"))
	return nil
}

// quickly are the flags of a smoke test that takes less than a minute.
var quickly = map[string]string{
	"workload": "softmax", "modes": "asp", "strategies": "checkpoint:100 chain:3", "seeds": "1", "workers": "2",
	"batch": "64", "lr": "0.05",
	"scale": "0.05", "runs": "runs/failure-quick", "out": "runs/failure-quick/page",
}

func parseFlags(args []string) (settings, error) {
	var s settings
	f := flag.NewFlagSet("failure", flag.ContinueOnError)
	f.StringVar(&s.Perdure, "perdure", "bin/perdure", "the `program` that is measured")
	f.StringVar(&s.Runs, "runs", "runs/failure", "`folder` of the runs; those that are in it are not run again")
	f.StringVar(&s.Out, "out", "docs/studies/failure", "`folder` of the page, the plots and the tables")
	f.StringVar(&s.Workload, "workload", "cnn", "`name` of what is trained")
	f.StringVar(&s.Data, "data", "", "`folder` of the data (default the workload's own)")
	f.IntVar(&s.Workers, "workers", 3, "worker processes")
	f.IntVar(&s.Shards, "shards", 3, "parts of the model")
	f.IntVar(&s.Batch, "batch", 32, "examples in a gradient; 0: the workload's own")
	f.Float64Var(&s.LR, "lr", 0.01, "step size; 0: the workload's own")
	f.IntVar(&s.ComputeMs, "compute-ms", 200, "least time that a gradient takes, waited and not worked, at scale 1")
	f.Float64Var(&s.Scale, "scale", 1, "factor of all times, for quick runs")
	f.DurationVar(&s.Length, "length", 150*time.Second, "time of a run, at scale 1")
	f.DurationVar(&s.Eval, "eval", 2*time.Second, "time between two evaluations, at scale 1")
	f.DurationVar(&s.Outage, "outage", 20*time.Second, "time that a killed server is away, at scale 1")
	f.DurationVar(&s.Slack, "slack", 2*time.Minute, "a run that takes so much longer is ended, and counts as failed")
	f.BoolVar(&s.Quick, "quick", false, "a smoke test: few and short runs, beside the study's own")
	f.BoolVar(&s.Report, "report", false, "run nothing, write the page of what there is")
	f.StringVar(&s.Remark, "remark", "", "`text` that the page says of the runs: other work that the machine had, say")
	f.BoolVar(&s.List, "list", false, "run nothing, say what would be run")
	study.List(f, &s.Modes, "modes", "bsp,asp", "training modes to compare", study.Word)
	study.List(f, &s.Seeds, "seeds", "1,2,3", "a trial each", strconv.Atoi)
	study.List(f, &s.Kills, "kills", "30s,80s", "times at which a server is killed, at scale 1", time.ParseDuration)
	study.List(f, &s.Goals, "goals", "0.7,0.8", "accuracies whose time is told", study.Number)
	s.Strategies = strings.Fields("checkpoint:100 chain:3,every:100 chain:3 stateless resend")
	f.Func("strategies", "recovery strategies to compare, between blanks (default "+strings.Join(s.Strategies, " ")+")",
		func(text string) error {
			s.Strategies = strings.Fields(text)
			return nil
		})
	if err := f.Parse(args); err != nil {
		return s, err
	}
	if f.NArg() > 0 {
		return s, fmt.Errorf("%q is no flag; strategies are chosen by -strategies", f.Arg(0))
	}
	if s.Quick {
		if err := study.Preset(f, quickly); err != nil {
			return s, err
		}
	}
	return s, s.check()
}

func (s settings) check() error {
	switch last := slices.Max(s.Kills) + s.Outage; {
	case !(s.Scale > 0) || s.Scale > 100:
		return fmt.Errorf("-scale %g; choose a factor above 0 and at most 100", s.Scale)
	case !slices.IsSorted(s.Kills) || s.Kills[0] < 2*s.Eval:
		return fmt.Errorf("-kills %v; give ascending times from two evaluations (-eval %v) on", s.Kills, s.Eval)
	case s.Outage < s.Eval:
		return fmt.Errorf("-outage %v is shorter than the time between two evaluations, -eval %v", s.Outage, s.Eval)
	case s.Length < last+2*s.Eval:
		return fmt.Errorf("-length %v; the last server is back at %v: give two evaluations (-eval %v) more", s.Length,
			last, s.Eval)
	case s.Workers < 1 || s.Batch < 0 || s.LR < 0 || s.ComputeMs < 0:
		return errors.New("-workers must be at least 1, and -batch, -lr and -compute-ms not below 0")
	case len(s.Strategies) == 0:
		return errors.New("-strategies names none")
	}
	for i, k := range s.Kills[1:] {
		if k < s.Kills[i]+s.Outage+2*s.Eval {
			return fmt.Errorf("-kills %v; leave two evaluations between the end of one outage (-outage %v) and the "+
				"next kill", s.Kills, s.Outage)
		}
	}
	for _, g := range s.Goals {
		if !(g > 0) || g > 1 {
			return fmt.Errorf("-goals %g; choose accuracies above 0 and at most 1", g)
		}
	}
	if s.scaled(s.Eval) < 10*time.Millisecond {
		return fmt.Errorf("-eval %v at -scale %g; perdure evaluates at most every 10ms", s.Eval, s.Scale)
	}
	if _, err := os.Stat(s.Perdure); err != nil && !s.Report {
		return fmt.Errorf("%s is not there; build it with make build", s.Perdure)
	}
	return nil
}

// scaled is a time as it is in the runs.
func (s settings) scaled(d time.Duration) time.Duration {
	return time.Duration(float64(d) * s.Scale).Round(time.Millisecond)
}
