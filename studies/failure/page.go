package main

import (
	_ "embed"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/template"
	"time"

	"github.com/perdure/perdure/internal/run/study"
)

//go:embed page.md.tmpl
var pageTemplate string

// page is what the template is filled with.
type page struct {
	Study   settings
	Machine study.Machine
	Omitted []omission
	Results []*result

	Killed, Calm []*group // of each cell: with failures, and without
}

// newPage puts the results together. Cells without any are left out.
func newPage(s settings, m study.Machine, cells []cell, out []omission, results []*result) *page {
	p := &page{Study: s, Machine: m, Omitted: out, Results: results}
	for _, c := range cells {
		of := study.Where(results, func(r *result) bool { return r.cell == c })
		if len(of) == 0 {
			p.Omitted = append(p.Omitted, omission{c, "it has not run"})
			continue
		}
		for _, killed := range []bool{true, false} {
			g := &group{cell: c, Killed: killed}
			for _, r := range of {
				switch {
				case r.Killed != killed:
				case r.Failed != "":
					g.Failed = append(g.Failed, r)
				default:
					g.Trials = append(g.Trials, r)
				}
			}
			if killed {
				p.Killed = append(p.Killed, g)
			} else {
				p.Calm = append(p.Calm, g)
			}
		}
	}
	return p
}

// find returns a cell's group; nil: it is not there.
func (p *page) find(c cell, killed bool) *group {
	list := p.Calm
	if killed {
		list = p.Killed
	}
	i := slices.IndexFunc(list, func(g *group) bool { return g.cell == c })
	if i < 0 {
		return nil
	}
	return list[i]
}

func (p *page) killed(c cell) *group { return p.find(c, true) }

// Beside is the group of the same cell without failures.
func (p *page) Beside(g *group) *group { return p.find(g.cell, false) }

// Failed are the runs that left no summary.
func (p *page) Failed() []*result {
	return study.Where(p.Results, func(r *result) bool { return r.Failed != "" })
}

// Programs are the versions of perdure that the runs are of.
func (p *page) Programs() string {
	known := study.Where(p.Results, func(r *result) bool { return r.Program != "" })
	versions, _ := study.Group(known, func(r *result) string { return r.Program })
	if len(versions) == 1 {
		return versions[0]
	}
	return "several versions, so that rows may not compare: " + strings.Join(versions, ", ")
}

// Roles are those that used anything.
func (p *page) Roles() []string {
	return slices.DeleteFunc(slices.Clone(roleNames), func(name string) bool {
		return !slices.ContainsFunc(p.Results, func(r *result) bool { _, has := r.Roles[name]; return has })
	})
}

// Chains reports whether any strategy keeps shards on several servers.
func (p *page) Chains() bool {
	return slices.ContainsFunc(p.Killed, func(g *group) bool { return g.kept() > 1 })
}

// Usage is a row of the table of costs.
type usage struct {
	*group
	Role                         string
	CPU, Memory, Network, Stored string
}

// Usage says what each role used, with failures.
func (p *page) Usage() (rows []usage) {
	for _, g := range p.Calm {
		for _, name := range p.Roles() {
			of := func(v func(role) float64) string {
				return g.over(func(r *result) float64 {
					if u, has := r.Roles[name]; has {
						return v(u)
					}
					return math.NaN()
				}).String()
			}
			if len(g.Trials) > 0 {
				rows = append(rows, usage{g, name, of(costs[0].of), of(costs[1].of), of(costs[2].of), of(costs[3].of)})
			}
		}
	}
	return rows
}

// write writes the tables, the plots, and then the page that shows them.
func (p *page) write(folder string) error {
	if len(p.Results) == 0 {
		return fmt.Errorf("no run has a result yet in %s; leave out -report", p.Study.Runs)
	}
	if err := os.MkdirAll(folder, 0o777); err != nil {
		return err
	}
	for name, rows := range p.tables() {
		if err := study.WriteCSV(filepath.Join(folder, name), rows); err != nil {
			return err
		}
	}
	for name, plot := range map[string]func(file string) error{
		"accuracy": p.plotAccuracy, "change": p.plotChange, "gradients": p.plotGradients, "costs": p.plotCosts,
	} {
		if err := plot(filepath.Join(folder, name+".svg")); err != nil {
			return err
		}
	}
	t, err := template.New("page").Funcs(template.FuncMap{
		"base": filepath.Base, "short": study.Short,
		"seconds": func(d time.Duration) string { return study.Format(d.Seconds()) },
		"scaled":  p.Study.scaled, "accuracy": accuracy, "percent0": study.Percent0,
		"list": func(values any) string {
			return strings.ReplaceAll(strings.Trim(fmt.Sprint(values), "[]"), " ",
				", ")
		},
	}).Parse(pageTemplate)
	if err != nil {
		return err
	}
	var text strings.Builder
	if err := t.Execute(&text, p); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(folder, "README.md"), []byte(text.String()), 0o666)
}

// tables are the study's numbers, tidy: one row is one observation.
func (p *page) tables() map[string][][]string {
	key := []string{"mode", "strategy", "on_outage", "failures", "seed"}
	head := func(names ...string) [][]string { return [][]string{append(slices.Clone(key), names...)} }
	runs := head(append([]string{
		"version", "failed", "accuracy", "gradients", "gradients_in_model", "gradients_lost",
		"clocks_redone", "bytes_pushed", "bytes_pulled",
	}, goalNames(p.Study.Goals)...)...)
	accuracy, gradients := head("seconds", "accuracy"), head("seconds", "gradients")
	outages := head("outage", "from_seconds", "to_seconds", "serving_after_seconds", "accuracy_before", "accuracy_next",
		"accuracy_back", "longest_gap_seconds")
	costs := head("role", "cpu_seconds", "peak_mb", "written_mb", "stored_mb", "network_mb")
	for _, r := range p.Results {
		of := func(values ...any) []string {
			policy := map[bool]string{true: "continue", false: "wait"}[r.Continue]
			return append(study.Record(r.Mode, r.Strategy, policy, r.Killed, r.Seed), study.Record(values...)...)
		}
		row := of(r.Program, r.Failed, r.Last, r.Computed, r.Kept, r.Lost, r.Redone, r.BytesPushed, r.Received)
		for _, g := range p.Study.Goals {
			row = append(row, study.Record(finite(r.reach(g)))...)
		}
		runs = append(runs, row)
		for _, q := range r.Accuracy {
			accuracy = append(accuracy, of(q.Seconds, q.Value))
		}
		due := 0.
		for _, q := range r.Gradients {
			if q.Seconds >= due { // as often as there is an accuracy
				gradients = append(gradients, of(q.Seconds, q.Value))
				due = q.Seconds + p.Study.scaled(p.Study.Eval).Seconds()
			}
		}
		for i, o := range r.Outages {
			serving := math.NaN()
			if i < len(r.Serving) {
				serving = r.Serving[i]
			}
			before, next, back := r.around(o)
			outages = append(outages, of(i+1, o.From, o.To, serving, before, next, back, r.gap(o)))
		}
		for _, name := range roleNames {
			if u, has := r.Roles[name]; has {
				costs = append(costs, of(name, u.CPU, u.Peak, u.Written, u.Stored, finite(u.network())))
			}
		}
	}
	return map[string][][]string{
		"runs.csv": runs, "accuracy.csv": accuracy, "gradients.csv": gradients,
		"outages.csv": outages, "costs.csv": costs,
	}
}

// finite makes what never was no number.
func finite(v float64) float64 {
	if math.IsInf(v, 0) {
		return math.NaN()
	}
	return v
}

func goalNames(goals []float64) (names []string) {
	for _, g := range goals {
		names = append(names, fmt.Sprintf("seconds_to_%s", study.Format(g)))
	}
	return names
}
