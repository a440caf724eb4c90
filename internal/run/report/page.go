package report

import (
	"cmp"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/disk"
	"github.com/perdure/perdure/internal/run/humanize"
	"github.com/perdure/perdure/internal/run/rundir"
	"github.com/perdure/perdure/internal/run/runs"
	"github.com/perdure/perdure/internal/run/settings"
)

// Options are information on a page beyond the runs.
type Options struct {
	Version string // of Perdure, which writes the page
	Made    time.Time
}

// Page is the content of a report.
type Page struct {
	Title    string
	Question string   // of the study that the runs belong to; "": none
	Facts    []string // about the page as a whole, printed in one line
	Problems []string // runs that cannot be read, with the reason
	Notes    []string // remarks that are necessary to interpret the page
	Sections []*section
}

// section describes the runs of one workload.
type section struct {
	Heading  string // "": the page has a single section
	Answer   []string
	Figures  []figure // key numbers
	Pictures []picture
	Tables   []table
	Again    []repeatCommand

	trials  []*trial
	groups  []*group
	differ  []string
	measure measure
}

// figure is a number with its name.
type figure struct{ Name, Value string }

// table is a table that is collapsed at first.
type table struct {
	Name string
	Head []string
	Rows [][]string
}

// repeatCommand is the command to repeat a run.
type repeatCommand struct{ Name, Command, File, Settings string }

// New returns a page of runs. Damaged runs are listed as problems. It returns an error if no run can be read.
func New(all []*runs.Run, o Options) (*Page, error) {
	p := &Page{}
	var trials []*trial
	for _, r := range all {
		t, problem := read(r)
		if problem != nil {
			p.Problems = append(
				p.Problems,
				fmt.Sprintf("%s: %s", r.Folder, strings.TrimPrefix(humanize.ErrorText(problem),
					r.Folder+": ")),
			)
		}
		if t != nil {
			trials = append(trials, t)
		}
	}
	if len(trials) == 0 {
		return nil, perdure.Usagef("none of the runs can be read: %s", strings.Join(p.Problems, "; "))
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
		p.Notes = append(p.Notes, fmt.Sprintf("These runs train %s. Results of different workloads "+
			"cannot be compared, so each workload has its own section.", humanize.Join(keys)))
	}
	p.Notes = append(p.Notes, unfinished(trials)...)
	p.head(trials, o)
	p.addStudies(studies)
	return p, nil
}

// read reads the measurements of a run. It returns no trial if the settings cannot be read.
func read(r *runs.Run) (t *trial, problem error) {
	if r.Settings.Job.ID == "" {
		return nil, cmp.Or(r.Problem, fmt.Errorf("cannot read its settings"))
	}
	t = &trial{Run: r, line: r.Line()}
	if t.settings, problem = r.Flat(); problem != nil {
		return nil, problem
	}
	for path, value := range t.settings {
		t.settings[path] = t.withoutSecrets(value)
	}
	if p := r.Settings.Params; p.Marked {
		p.Data = filepath.Base(p.Data)
		t.settings["params.Data"] = p.DataName()
		delete(t.settings, "params.Marked")
	}
	if t.series, problem = rundir.ReadSeries(r.Folder); problem != nil {
		problem = fmt.Errorf("cannot read its measurements, so it is missing from the curves: %w", problem)
	}
	return t, cmp.Or(r.Problem, problem)
}

// unfinished returns notes about runs without a result.
func unfinished(trials []*trial) (notes []string) {
	by := map[runs.State][]string{}
	for _, t := range trials {
		by[t.State] = append(by[t.State], fmt.Sprintf("%s (clock %d%s)", t.Folder, t.Clock,
			settings.OfClocks(t.line.Clocks)))
	}
	if len(trials) == 1 {
		return nil // the answer describes it
	}
	for _, s := range []struct {
		state runs.State
		text  string
	}{
		{runs.Running, "still running when this page was made"},
		{runs.Stopped, "ended early"},
		{runs.Detached, "without a coordinator"},
		{runs.Failed, "failed"},
		{runs.Killed, "killed with all processes"},
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
		notes = append(notes, fmt.Sprintf("No result (%s): %s%s. Their measurements appear in the curves, but not in "+
			"the figures.", s.text, strings.Join(names, ", "), more))
	}
	return notes
}

// head sets the title and the facts of the page.
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
		when = ", started " + first.UTC().Format("2006-01-02 15:04")
		if last.Sub(first) > time.Minute {
			when += " to " + last.UTC().Format("2006-01-02 15:04")
		}
		when += " UTC"
	}
	p.Facts = append(p.Facts, runs+when, "run with Perdure "+humanize.Join(versions),
		fmt.Sprintf("page made by Perdure %s at %s UTC", o.Version, o.Made.UTC().Format("2006-01-02 15:04")))
}

func newSection(trials []*trial) (s *section, err error) {
	s = &section{trials: trials}
	s.measure = measureOf(trials)
	s.groups, s.differ = groupsOf(trials)
	kind, record := "one", any(nil)
	switch {
	case len(trials) == 1:
		record = newRunFacts(trials[0], s.measure)
		s.Figures = figuresOf(trials[0], s.measure)
	case len(s.groups) == 1:
		kind, record = "trials", trialsOf(s)
	default:
		kind, record = "groups", newComparison(s)
	}
	if s.Answer, err = sentences.render(kind, record); err != nil {
		return nil, err
	}
	for i, line := range s.Answer {
		if !s.begins(line) {
			s.Answer[i] = capital(line)
		}
	}
	s.Pictures = s.pictures()
	s.Tables = s.tables()
	s.Again, err = s.repeatCommands()
	return s, err
}

// begins reports whether a sentence begins with a name, which must not be capitalized.
func (s *section) begins(line string) bool {
	return slices.ContainsFunc(s.groups, func(g *group) bool { return strings.HasPrefix(line, g.Name) }) ||
		strings.HasPrefix(line, s.trials[0].Folder)
}

// measureOf returns the measure that most of the models have.
func measureOf(trials []*trial) measure {
	for _, m := range []measure{{"rmse", "test_rmse"}, {"accuracy", "test_accuracy"}, {"loss", "test_loss"}} {
		if slices.ContainsFunc(trials, func(t *trial) bool {
			p, _ := t.points(m.column)
			return t.line.Metric == m.Name || len(p.X) > 0
		}) {
			return m
		}
	}
	return measure{"loss", "train_loss"}
}

// trialsOf returns the facts about a single group.
func trialsOf(s *section) map[string]any {
	g := s.groups[0]
	l, r := g.spread(lost), g.spread(redone)
	record := map[string]any{
		"Runs": len(s.trials), "Done": len(g.done()), "Title": s.measure.Title(),
		"Value": g.spread(result).Text(s.measure.text), "Wall": g.spread(wall).Text(seconds),
		"Counted": !math.IsNaN(l.Mid + r.Mid), "Nothing": l.High == 0 && r.High == 0,
		"Lost": l.Text(counted), "Redone": r.Text(counted), "Faults": "",
	}
	if c := newComparison(s); c.Faults != "" {
		record["Faults"] = c.Faults
	}
	return record
}

// figuresOf returns the key numbers of a run.
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

// maxRepeatCommands limits the number of groups for which a page has the command and the settings to repeat them.
const maxRepeatCommands = 24

func (s *section) repeatCommands() (all []repeatCommand, err error) {
	for _, g := range s.groups {
		t := g.Trials[0]
		if len(all) == maxRepeatCommands {
			break
		}
		command := "train"
		if t.line.Workload == settings.OwnWorkload {
			command = "up"
		}
		a := repeatCommand{Name: g.Name, File: "run.json"}
		if len(s.groups) == 1 {
			a.Name = filepath.Base(t.Folder)
		}
		if t.Settings.Resumed != "" {
			a.Command = fmt.Sprintf("perdure %s %s", command, t.Settings.RestartFlag())
			all = append(all, a)
			continue
		}
		text, err := disk.ReadRegular(filepath.Join(t.Folder, rundir.RunFile), rundir.MaxSettingsBytes)
		if err != nil {
			return nil, perdure.Usagef("%w", err)
		}
		a.Command, a.Settings = fmt.Sprintf("perdure %s --from run.json", command), t.withoutSecrets(string(text))
		all = append(all, a)
	}
	return all, nil
}
