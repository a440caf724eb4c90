// Package report makes one page of runs that people can read without Perdure and hand on: pictures, tables, settings,
// and how to run them again. It is one HTML file that needs nothing else.
//
// Runs that differ in nothing but their seed are trials of one group; groups are named by what differs. Of
// runs of several workloads each has a section of its own: their results cannot be compared. What cannot be
// read, and what has no result, is named on the page and counts nowhere. A page is a function of the runs and of
// Options. Nothing here is shared.
package report

import (
	"cmp"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/disk"
	"github.com/perdure/perdure/internal/run/plain"
	"github.com/perdure/perdure/internal/run/rundir"
	"github.com/perdure/perdure/internal/run/runs"
	"github.com/perdure/perdure/internal/run/settings"
)

// Options are what a page says beside the runs.
type Options struct {
	Version string // of Perdure, which makes the page
	Made    time.Time
}

// Page is what a report says.
type Page struct {
	Title    string
	Question string   // of the study that the runs are; "": there is none
	Facts    []string // of the page as a whole, in a line
	Problems []string // runs that cannot be read, and why
	Notes    []string // what else must be known to read the page rightly
	Sections []*section
}

// section is about the runs of one workload.
type section struct {
	Heading  string      // "": the page has only one
	Story    *story      // of one run
	Several  *comparison // of more
	Figures  []figure    // numbers to be seen at once
	Pictures []picture
	Tables   []table
	Again    []again

	trials  []*trial
	groups  []*group
	differ  []string
	measure measure
}

// figure is a number with its name.
type figure struct{ Name, Value string }

// table is folded away.
type table struct {
	Name string
	Head []string
	Rows [][]string
}

// again says how a run is run again.
type again struct{ Name, Command, File, Settings string }

// New makes a page of runs. That of damaged ones says so; it is an error if there are no others.
func New(all []*runs.Run, o Options) (*Page, error) {
	p := &Page{}
	var trials []*trial
	for _, r := range all {
		t, problem := read(r)
		if problem != nil {
			p.Problems = append(p.Problems, fmt.Sprintf("%s: %s", r.Folder, strings.TrimPrefix(plain.Text(problem),
				r.Folder+": ")))
		}
		if t != nil {
			trials = append(trials, t)
		}
	}
	if len(trials) == 0 {
		return nil, fmt.Errorf("%w: no run can be read: %s", perdure.ErrUsage, strings.Join(p.Problems, "; "))
	}
	studies, problems := studiesOf(trials)
	p.Problems = append(p.Problems, problems...)
	keys, by := groupBy(trials, func(t *trial) string { return t.line.Workload })
	for _, k := range keys {
		s, err := newSection(by[k])
		if err != nil {
			return nil, err
		}
		if len(keys) > 1 {
			s.Heading = k
		}
		p.Sections = append(p.Sections, s)
	}
	if len(keys) > 1 {
		p.Notes = append(p.Notes, fmt.Sprintf("These runs train %s. What models of different workloads come to "+
			"cannot be compared, so each has a section of its own.", plain.Listed(keys)))
	}
	p.Notes = append(p.Notes, unfinished(trials)...)
	p.head(trials, o)
	p.tell(studies)
	return p, nil
}

// read reads what was measured in a run; no trial of one without settings.
func read(r *runs.Run) (t *trial, problem error) {
	if r.Settings.Job.ID == "" {
		return nil, cmp.Or(r.Problem, fmt.Errorf("its settings cannot be read"))
	}
	t = &trial{Run: r, line: r.Line()}
	if t.flat, problem = r.Flat(); problem != nil {
		return nil, problem
	}
	for path, value := range t.flat {
		t.flat[path] = t.withoutSecrets(value)
	}
	if p := r.Settings.Params; p.Marked {
		p.Data = filepath.Base(p.Data)
		t.flat["params.Data"] = p.DataName()
		delete(t.flat, "params.Marked")
	}
	if t.series, problem = rundir.ReadSeries(r.Folder); problem != nil {
		problem = fmt.Errorf("what was measured cannot be read, so it is in no curve: %w", problem)
	}
	return t, cmp.Or(r.Problem, problem)
}

// unfinished says which runs have no result.
func unfinished(trials []*trial) (notes []string) {
	by := map[runs.State][]string{}
	for _, t := range trials {
		by[t.State] = append(by[t.State], fmt.Sprintf("%s (clock %d of %d)", t.Folder, t.Clock, t.line.Clocks))
	}
	if len(trials) == 1 {
		return nil // the answer says it
	}
	for _, s := range []struct {
		state runs.State
		text  string
	}{
		{runs.Running, "still going on, and is here as it stood when this page was made"},
		{runs.Stopped, "ended early"},
		{runs.Failed, "failed"},
		{runs.Killed, "killed with all its processes"},
		{runs.Damaged, "damaged"},
	} {
		names := by[s.state]
		if len(names) == 0 {
			continue
		}
		more := ""
		if len(names) > 6 {
			names, more = names[:6], fmt.Sprintf(" and %d more", len(names)-6)
		}
		notes = append(notes, fmt.Sprintf("Without a result, %s: %s%s. What was measured is in the curves, and "+
			"counts in no figure.", s.text, strings.Join(names, ", "), more))
	}
	return notes
}

// head is what stands above and below all sections.
func (p *Page) head(trials []*trial, o Options) {
	p.Title = "Perdure: " + trials[0].Folder
	if len(trials) > 1 {
		p.Title = fmt.Sprintf("Perdure: %d runs", len(trials))
	}
	first, last := time.Time{}, time.Time{}
	var versions []string
	for _, t := range trials {
		if v := t.Settings.Version; !slices.Contains(versions, v) {
			versions = append(versions, v)
		}
		if t.Began.IsZero() {
			continue
		}
		if first.IsZero() || t.Began.Before(first) {
			first = t.Began
		}
		if t.Began.After(last) {
			last = t.Began
		}
	}
	slices.Sort(versions)
	runs := plural(float64(len(trials)), "run")
	when := ""
	if !first.IsZero() {
		when = ", begun " + first.UTC().Format("2006-01-02 15:04")
		if last.Sub(first) > time.Minute {
			when += " to " + last.UTC().Format("2006-01-02 15:04")
		}
		when += " UTC"
	}
	p.Facts = append(p.Facts, runs+when, "run by Perdure "+plain.Listed(versions),
		fmt.Sprintf("page made by Perdure %s at %s UTC", o.Version, o.Made.UTC().Format("2006-01-02 15:04")))
}

func newSection(trials []*trial) (s *section, err error) {
	s = &section{trials: trials}
	s.measure = measureOf(trials)
	s.groups, s.differ = groupsOf(trials)
	if len(trials) == 1 {
		s.Story, s.Figures = storyOf(trials[0], s.measure), figuresOf(trials[0], s.measure)
	} else {
		s.Several = comparisonOf(s)
	}
	s.Pictures = s.pictures()
	s.Tables = s.tables()
	s.Again, err = s.howAgain()
	return s, err
}

// measureOf is what most of the models are judged by.
func measureOf(trials []*trial) measure {
	for _, m := range []measure{{"rmse", "test_rmse"}, {"accuracy", "test_accuracy"}, {"loss", "test_loss"}} {
		if slices.ContainsFunc(trials, func(t *trial) bool {
			p, _ := t.measured(m.column)
			return t.line.Metric == m.Name || len(p.X) > 0
		}) {
			return m
		}
	}
	return measure{"loss", "train_loss"}
}

// figuresOf are the numbers of one run.
func figuresOf(t *trial, m measure) (all []figure) {
	add := func(name string, v *float64, write func(float64) string) {
		if v != nil {
			all = append(all, figure{name, write(*v)})
		}
	}
	if t.Summary == nil {
		return nil
	}
	add(m.Title(), t.line.Result, m.text)
	add("time", wall(t), seconds)
	add("faults", faults(t), counted)
	add("updates lost", lost(t), counted)
	add("clocks redone", redone(t), counted)
	if len(t.Summary.Failures) > 0 {
		add("recovering", awayFor(t), seconds)
	}
	return all
}

// mostAgain is of how many groups a page says how to run them again: it has their settings in it.
const mostAgain = 24

func (s *section) howAgain() (all []again, err error) {
	for _, g := range s.groups {
		t := g.Trials[0]
		if len(all) == mostAgain {
			break
		}
		command := "train"
		if t.line.Workload == settings.OwnWorkload {
			command = "up"
		}
		a := again{Name: g.Name, File: "run.json"}
		if len(s.groups) == 1 {
			a.Name = filepath.Base(t.Folder)
		}
		if t.Settings.Resumed != "" {
			a.Command = fmt.Sprintf("perdure %s %s", command, t.Settings.Again())
			all = append(all, a)
			continue
		}
		text, err := disk.ReadRegular(filepath.Join(t.Folder, rundir.RunFile), rundir.MostSettings)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", perdure.ErrUsage, err)
		}
		a.Command, a.Settings = fmt.Sprintf("perdure %s --from run.json", command), t.withoutSecrets(string(text))
		all = append(all, a)
	}
	return all, nil
}
