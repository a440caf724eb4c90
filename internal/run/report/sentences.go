package report

import (
	_ "embed"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/perdure/perdure/internal/run/humanize"
	"github.com/perdure/perdure/internal/run/plot"
	"github.com/perdure/perdure/internal/run/rundir"
	"github.com/perdure/perdure/internal/run/runs"
	"github.com/perdure/perdure/internal/run/settings"
)

//go:embed sentences.tmpl
var sentencesText string

var sentences = parseFindings(sentencesText)

// measure is the measure of a section's models.
type measure struct {
	Name   string // accuracy, rmse or loss
	column string // column of the series
}

// Title returns the measure's name for readers.
func (m measure) Title() string {
	if m.Name == "rmse" {
		return "test RMSE"
	}
	return "test " + m.Name
}

func (m measure) more() bool { return m.Name == "accuracy" } // higher is better

// text formats a value.
func (m measure) text(v float64) string {
	if m.Name == "accuracy" {
		return fmt.Sprintf("%.2f%%", 100*v)
	}
	return fmt.Sprintf("%.4f", v)
}

// differenceText formats the difference between two values.
func (m measure) differenceText(v float64) string {
	if m.Name == "accuracy" {
		return fmt.Sprintf("%.2f points", 100*math.Abs(v))
	}
	return fmt.Sprintf("%.4f", math.Abs(v))
}

// seconds formats a duration.
func seconds(v float64) string {
	switch {
	case v < 10:
		return fmt.Sprintf("%.2f s", v)
	case v < 120:
		return fmt.Sprintf("%.1f s", v)
	}
	return fmt.Sprintf("%.0f min %02.0f s", math.Floor(v/60), math.Floor(math.Mod(v, 60)))
}

// runFacts holds the facts about a single run.
type runFacts struct {
	Run, Workload, Recovery, Consistency string
	Clocks                               int64
	Of                                   string // " of N", N being the job's last clock; "": none is planned
	State                                runs.State
	Measure, Result, Wall, Away          string
	Faults                               []string
	Many                                 int
	Counted                              bool // lost updates and repeated clocks are known
	Lost, Redone                         string
	Nothing                              bool // nothing was lost or repeated
	Last                                 string
	Diverged                             bool
}

func newRunFacts(t *trial, m measure) runFacts {
	s := runFacts{
		Run: t.Folder, Workload: t.line.Workload, Recovery: t.line.Recovery, Consistency: t.line.Consistency,
		Clocks: int64(t.Clock), Of: settings.OfClocks(t.line.Clocks), State: t.State,
		Last: strings.TrimSuffix(t.Last, "."),
	}
	if _, diverged := t.points("train_loss"); diverged {
		s.Diverged = true
	}
	if t.Summary == nil {
		return s
	}
	if v := t.line.Result; v != nil {
		s.Measure, s.Result = m.Title(), m.text(*v)
	}
	s.Wall, s.Away = seconds(t.Summary.WallSeconds), seconds(t.Summary.OutageSeconds())
	s.Many = len(t.Summary.Failures)
	for _, f := range t.Summary.Failures {
		s.Faults = append(s.Faults, faultText(&f))
	}
	if s.Many > 4 {
		s.Faults = nil
	}
	if l, r := t.line.Lost, t.line.Redone; l != nil && r != nil {
		s.Counted, s.Nothing = true, *l == 0 && *r == 0
		s.Lost, s.Redone = plural(float64(*l), "update"), plural(float64(*r), "clock")
		if *l == 0 {
			s.Lost = "no update"
		}
		if *r == 0 {
			s.Redone = "no clock"
		}
	}
	return s
}

// faultText describes a fault.
func faultText(f *rundir.Failure) string {
	switch {
	case f.Target == "":
		return fmt.Sprintf("%s at clock %d", f.Kind, f.AtClock)
	case f.Kind == "kill":
		return fmt.Sprintf("%s killed at clock %d", f.Target, f.AtClock)
	}
	return fmt.Sprintf("%s of %s at clock %d", f.Kind, f.Target, f.AtClock)
}

// comparison holds the facts about several groups.
type comparison struct {
	Runs, Groups, Done int
	Differ             string // the settings that differ, in words
	Few                string // a warning if there are fewer than three trials, or ""
	Trials             string // per group
	Several            bool   // some groups have more than one trial
	Best               *ranking
	Fast               *ranking
	Losers             []string // groups that lost updates, with the number
	Lossless           bool     // no other group lost updates
	Redoers            []string
	Redone             string // the number if equal in all groups, or ""
	Faults             string // of all runs
	Alike              []string
	AllAlike           bool
}

// ranking compares the groups by one measure.
type ranking struct {
	Title, Best, Value, Next, NextValue, By, Last, LastValue string

	Tied    []string // groups equal to the best
	All     bool     // all groups are equal
	Overlap bool     // the ranges of the best and the next overlap
	Single  bool     // both have a single trial, so ranges cannot overlap
	Close   bool     // they differ by less than a twentieth
}

// compareBy orders groups by a number. It returns nil if fewer than two groups have it.
func compareBy(
	groups []*group, title string, of func(*trial) *float64, more bool, write, apart func(float64) string,
) *ranking {
	type entry struct {
		g *group
		s plot.Spread
	}
	var all []entry
	for _, g := range groups {
		if s := g.spread(of); !math.IsNaN(s.Mid) {
			all = append(all, entry{g, s})
		}
	}
	if len(all) < 2 {
		return nil
	}
	slices.SortStableFunc(all, func(a, b entry) int {
		if (a.s.Mid > b.s.Mid) == more && a.s.Mid != b.s.Mid {
			return -1
		} else if a.s.Mid != b.s.Mid {
			return 1
		}
		return 0
	})
	c := &ranking{Title: title, Best: all[0].g.Name, Value: all[0].s.Text(write)}
	next := 1
	for next < len(all) && write(all[next].s.Mid) == write(all[0].s.Mid) {
		c.Tied = append(c.Tied, all[next].g.Name)
		next++
	}
	if next == len(all) {
		c.All = true
		return c
	}
	best, other, last := all[0], all[next], all[len(all)-1]
	c.Next, c.NextValue, c.By = other.g.Name, other.s.Text(write), apart(best.s.Mid-other.s.Mid)
	c.Overlap = best.s.Low <= other.s.High && other.s.Low <= best.s.High
	c.Close = math.Abs(best.s.Mid-other.s.Mid) < math.Abs(best.s.Mid)/20
	c.Single = len(best.g.done()) == 1 && len(other.g.done()) == 1
	if len(all) > next+1 {
		c.Last, c.LastValue = last.g.Name, last.s.Text(write)
	}
	return c
}

func newComparison(s *section) comparison {
	c := comparison{Runs: len(s.trials), Groups: len(s.groups), Lossless: true, AllAlike: true}
	var names []string
	for _, path := range s.differ {
		names = append(names, settingOf(path).name)
	}
	if len(names) > 5 {
		names = append(names[:4:4], fmt.Sprintf("%d more settings", len(names)-4))
	}
	c.Differ = humanize.Join(names)
	least, most := math.MaxInt, 0
	var total, away float64
	for _, g := range s.groups {
		n := len(g.done())
		c.Done += n
		if n > 0 {
			least, most = min(least, n), max(most, n)
		}
		for _, t := range g.done() {
			total, away = total+*faults(t), away+t.Summary.OutageSeconds()
		}
	}
	c.Trials = fmt.Sprintf("%d trials each", most)
	switch {
	case most == 1:
		c.Trials = "one trial each"
	case least != most:
		c.Trials = fmt.Sprintf("%d to %d trials each", least, most)
	}
	c.Several = most > 1
	if few := []string{1: "one trial", 2: "two trials"}; least < len(few) {
		c.Few = "some groups have only " + few[least]
		if least == most {
			c.Few = "each group has only " + few[least]
		}
	}
	if total > 0 {
		c.Faults = fmt.Sprintf("%s in all; recovering from them took %s", plural(total, "fault"), seconds(away))
	}
	c.Best = compareBy(s.groups, s.measure.Title(), result, s.measure.more(), s.measure.text, s.measure.differenceText)
	c.Fast = compareBy(s.groups, "time", wall, false, seconds, func(v float64) string { return seconds(math.Abs(v)) })
	for _, g := range s.groups {
		l, r := g.spread(lost), g.spread(redone)
		if math.IsNaN(l.Mid) {
			c.Lossless = false
		} else if l.High > 0 {
			c.Losers = append(c.Losers, fmt.Sprintf("%s (%s)", g.Name, l.Text(counted)))
		}
		if r.High > 0 {
			c.Redoers = append(c.Redoers, fmt.Sprintf("%s (%s)", g.Name, r.Text(counted)))
		}
	}
	if c.Redone = sameText(s.groups, redone); c.Redone != "" {
		c.Redoers = nil
	}
	c.Alike, c.AllAlike = sameModels(s.groups)
	return c
}

// sameText returns a count that is equal in all runs with a result, or "".
func sameText(groups []*group, of func(*trial) *float64) string {
	same := math.NaN()
	for _, g := range groups {
		v := g.spread(of)
		switch {
		case math.IsNaN(v.Mid) && len(g.done()) == 0:
		case v.Low != v.High || !math.IsNaN(same) && same != v.Mid || math.IsNaN(v.Mid):
			return ""
		default:
			same = v.Mid
		}
	}
	if math.IsNaN(same) {
		return ""
	}
	return counted(same)
}

// sameModels returns the first set of groups whose runs with the same seed ended with the same model.
func sameModels(groups []*group) (names []string, all bool) {
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
		names = []string{first.Name}
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
		if len(names) > 1 {
			return names, len(names) == len(groups)
		}
	}
	return nil, false
}
