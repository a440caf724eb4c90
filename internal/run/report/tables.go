package report

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/perdure/perdure/internal/run/plot"
)

const unknown = "–"

// tables returns the tables of a section.
func (s *section) tables() (all []table) {
	if len(s.groups) > 1 {
		all = append(all, s.groupTable())
	}
	if len(s.trials) > 1 {
		all = append(all, s.runTable())
	} else if t := s.faultTable(s.trials[0]); len(t.Rows) > 0 {
		all = append(all, t)
	}
	if len(s.groups) > 1 {
		all = append(all, s.differTable())
	}
	return append(all, s.sharedTable())
}

func spreadText(s plot.Spread, write func(float64) string) string {
	if math.IsNaN(s.Mid) {
		return unknown
	}
	return s.Text(write)
}

// groupTable lists the groups, best first.
func (s *section) groupTable() table {
	t := table{
		Name: "Groups: medians, with the range from minimum to maximum",
		Head: []string{
			"group", "results", s.measure.Title(), "time", "faults", "updates lost", "clocks redone", "recovering",
		},
	}
	for _, g := range s.ordered() {
		t.Rows = append(t.Rows, []string{
			g.Name, fmt.Sprintf("%d of %d", len(g.done()), len(g.Trials)), spreadText(g.spread(result), s.measure.text),
			spreadText(g.spread(wall), seconds), spreadText(g.spread(faults), counted),
			spreadText(g.spread(lost), counted), spreadText(g.spread(redone), counted),
			spreadText(g.spread(awayFor), seconds),
		})
	}
	return t
}

// ordered returns the groups, best first. Groups without a result come last.
func (s *section) ordered() []*group {
	all := slices.Clone(s.groups)
	slices.SortStableFunc(all, func(a, b *group) int {
		x, y := a.spread(result).Mid, b.spread(result).Mid
		if s.measure.more() {
			x, y = -x, -y
		}
		switch {
		case math.IsNaN(x) && math.IsNaN(y):
			return 0
		case math.IsNaN(x):
			return 1
		case math.IsNaN(y):
			return -1
		}
		return cmp.Compare(x, y)
	})
	return all
}

func valueText(v *float64, write func(float64) string) string {
	if v == nil {
		return unknown
	}
	return write(*v)
}

// runTable has a row for each run.
func (s *section) runTable() table {
	t := table{
		Name: "Runs", Head: []string{
			"run", "group", "seed", "ended", "clock", s.measure.Title(), "time", "faults", "lost", "redone", "model",
		},
	}
	if len(s.groups) == 1 {
		t.Head = slices.Delete(t.Head, 1, 2)
	}
	for _, g := range s.groups {
		for _, r := range g.Trials {
			model, hit := unknown, unknown
			if m := r.line.Model; m != nil {
				model = (*m)[:min(12, len(*m))]
			}
			if r.Summary != nil {
				hit = counted(*faults(r))
			}
			row := []string{
				r.Folder, g.Name, fmt.Sprint(r.line.Seed), string(r.State), fmt.Sprint(r.Clock),
				valueText(result(r), s.measure.text), valueText(wall(r), seconds), hit,
				valueText(lost(r), counted), valueText(redone(r), counted), model,
			}
			if len(s.groups) == 1 {
				row = slices.Delete(row, 1, 2)
			}
			t.Rows = append(t.Rows, row)
		}
	}
	return t
}

func milliseconds(v float64) string { return fmt.Sprintf("%.0f ms", v) }

// faultTable lists the faults of a run.
func (s *section) faultTable(r *trial) table {
	t := table{
		Name: "Faults", Head: []string{
			"fault", "of", "at", "clock", "detected after", "all serving again after", "updates lost", "clocks redone",
		},
	}
	if r.Summary == nil {
		return t
	}
	for _, f := range r.Summary.Failures {
		t.Rows = append(t.Rows, []string{
			f.Kind, cmp.Or(f.Target, unknown), fmt.Sprintf("%.2f s", f.AtSeconds), fmt.Sprint(f.AtClock),
			valueText(f.DetectedAfterMs, milliseconds), valueText(f.ServingAgainAfterMs, milliseconds),
			valueText(number(f.UpdatesLost), counted), valueText(number(f.ClocksRedone), counted),
		})
	}
	return t
}

// differTable lists the settings in which groups differ.
func (s *section) differTable() table {
	t := table{Name: "Settings that differ", Head: []string{"group"}}
	for _, path := range s.differ {
		t.Head = append(t.Head, settingOf(path).name)
	}
	for _, g := range s.groups {
		row := []string{g.Name}
		for _, path := range s.differ {
			row = append(row, settingOf(path).text(g.Trials[0].settings[path]))
		}
		t.Rows = append(t.Rows, row)
	}
	return t
}

// sharedTable lists the settings that all runs share, and the seeds.
func (s *section) sharedTable() table {
	t := table{Name: "Settings that all runs share", Head: []string{"setting", "value"}}
	if len(s.trials) == 1 {
		t.Name = "Settings"
	}
	var seeds []string
	for _, r := range s.trials {
		if seed := fmt.Sprint(r.line.Seed); !slices.Contains(seeds, seed) {
			seeds = append(seeds, seed)
		}
	}
	var paths []string
	for path := range s.trials[0].settings {
		if !slices.Contains(identitySettings, path) && !slices.Contains(s.differ, path) {
			paths = append(paths, path)
		}
	}
	slices.SortFunc(paths, func(a, b string) int { return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(a, b)) })
	name := "seed"
	if len(seeds) > 1 {
		name = "seeds"
	}
	if len(seeds) > 12 {
		seeds = append(seeds[:12:12], fmt.Sprintf("and %d more", len(seeds)-12))
	}
	t.Rows = append(t.Rows, []string{name, strings.Join(seeds, ", ")})
	for _, path := range paths {
		t.Rows = append(t.Rows, []string{settingOf(path).name, settingOf(path).text(s.trials[0].settings[path])})
	}
	return t
}
