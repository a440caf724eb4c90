package report

import (
	"fmt"
	"math"
	"strings"

	"github.com/perdure/perdure/internal/run/plain"
	"github.com/perdure/perdure/internal/run/rundir"
	"github.com/perdure/perdure/internal/run/runs"
)

// measure is what the models of a section are judged by.
type measure struct {
	Name   string // accuracy, rmse or loss
	column string // of the series
}

// Title is the measure as people call it.
func (m measure) Title() string {
	if m.Name == "rmse" {
		return "test RMSE"
	}
	return "test " + m.Name
}

// text writes a value.
func (m measure) text(v float64) string {
	if m.Name == "accuracy" {
		return fmt.Sprintf("%.2f%%", 100*v)
	}
	return fmt.Sprintf("%.4f", v)
}

// seconds writes a time.
func seconds(v float64) string {
	switch {
	case v < 10:
		return fmt.Sprintf("%.2f s", v)
	case v < 120:
		return fmt.Sprintf("%.1f s", v)
	}
	return fmt.Sprintf("%.0f min %02.0f s", math.Floor(v/60), math.Floor(math.Mod(v, 60)))
}

// story are the facts of one run.
type story struct {
	Run, Workload, Recovery, Consistency string
	Clocks, Of                           int64
	State                                runs.State
	Measure, Result, Wall, Away          string
	Faults                               string // each of them, where they are few
	Many                                 int
	Counted                              bool // what was lost and redone is known
	Lost, Redone                         string
	Nothing                              bool // was lost or redone
	Last                                 string
	Diverged                             bool
}

func storyOf(t *trial, m measure) *story {
	s := &story{
		Run: t.Folder, Workload: t.line.Workload, Recovery: t.line.Recovery, Consistency: t.line.Consistency,
		Clocks: int64(t.Clock), Of: int64(t.line.Clocks), State: t.State, Last: strings.TrimSuffix(t.Last, "."),
	}
	if _, diverged := t.measured("train_loss"); diverged {
		s.Diverged = true
	}
	if t.Summary == nil {
		return s
	}
	if v := t.line.Result; v != nil {
		s.Measure, s.Result = m.Title(), m.text(*v)
	}
	s.Wall, s.Away = seconds(t.Summary.WallSeconds), seconds(t.away())
	s.Many = len(t.Summary.Failures)
	if s.Many <= 4 {
		var faults []string
		for _, f := range t.Summary.Failures {
			faults = append(faults, happened(&f))
		}
		s.Faults = plain.Listed(faults)
	}
	if l, r := t.line.Lost, t.line.Redone; l != nil && r != nil {
		s.Counted, s.Nothing = true, *l == 0 && *r == 0
		s.Lost, s.Redone = plural(float64(*l), "update"), plural(float64(*r), "clock")
		if *l == 0 {
			s.Lost = "No update"
		}
		if *r == 0 {
			s.Redone = "no clock"
		}
	}
	return s
}

// happened says what a fault was.
func happened(f *rundir.Failure) string {
	switch {
	case f.Target == "":
		return fmt.Sprintf("%s at clock %d", f.Kind, f.AtClock)
	case f.Kind == "kill":
		return fmt.Sprintf("%s killed at clock %d", f.Target, f.AtClock)
	}
	return fmt.Sprintf("%s of %s at clock %d", f.Kind, f.Target, f.AtClock)
}

// comparison are the facts of several runs.
type comparison struct {
	Runs, Done int
	Groups     string // how many; "": one
	Differ     string // in what, in words
	Few        bool   // of some group there are less than three results
	Alike      string // groups whose runs of the same seed ended with the same model
}

func comparisonOf(s *section) *comparison {
	c := &comparison{Runs: len(s.trials)}
	for _, g := range s.groups {
		n := len(g.done())
		c.Done, c.Few = c.Done+n, c.Few || n < 3
	}
	if len(s.groups) == 1 {
		return c
	}
	var names []string
	for _, path := range s.differ {
		names = append(names, callOf(path).name)
	}
	if len(names) > 5 {
		names = append(names[:4:4], fmt.Sprintf("%d more settings", len(names)-4))
	}
	c.Groups, c.Differ, c.Alike = plural(float64(len(s.groups)), "group"), plain.Listed(names), alike(s.groups)
	return c
}

// alike are the groups whose runs of the same seed ended with the same model as those of the first one that
// there are others of, in words; "": there are none.
func alike(groups []*group) string {
	models := func(g *group) map[uint64]string {
		of := map[uint64]string{}
		for _, t := range g.done() {
			if t.line.Model == nil || of[t.line.Seed] != "" && of[t.line.Seed] != *t.line.Model {
				return nil
			}
			of[t.line.Seed] = *t.line.Model
		}
		return of
	}
	for i, first := range groups {
		is := models(first)
		if len(is) == 0 {
			continue
		}
		names := []string{first.Name}
		for _, g := range groups[i+1:] {
			of, shared, same := models(g), 0, true
			for seed, model := range of {
				if is[seed] != "" {
					shared++
					same = same && is[seed] == model
				}
			}
			if shared > 0 && same {
				names = append(names, g.Name)
			}
		}
		switch len(names) {
		case 1:
		case len(groups):
			return "all groups"
		default:
			return plain.Listed(names)
		}
	}
	return ""
}
