package study

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/run/plain"
	"github.com/perdure/perdure/internal/run/runs"
	"github.com/perdure/perdure/internal/run/settings"
)

// Cell is what is the same in some runs but for their seeds.
type Cell struct {
	Name   string   // of its folder, too
	Labels []string // the choice of each axis
	Plan   string   // the name of how machines fail

	kind *Kind
	own  []string // flags of the kind's command itself
	args []string // of perdure train, but for seed, faults and folder
	plan *faultPlan
	job  faultJob // but for the seed
}

// LeftOut is a cell that no run can be.
type LeftOut struct {
	Name string `json:"name"`
	Why  string `json:"why"`
}

// Study is a file that was checked: its cells can be run.
type Study struct {
	File
	Cells   []*Cell
	LeftOut []LeftOut
	Notes   []string // what plans mean, for people

	prices *runs.Prices // nil: none
}

// mostCells bounds a study, far beyond use: a list too many is told, and not tried.
const mostCells = 10_000

// Check makes the cells of a study, and asks about each whether it can run.
func (f File) Check() (*Study, error) {
	s := &Study{File: f}
	if f.Prices != "" {
		prices, err := runs.ReadPrices(f.Prices)
		if err != nil {
			return nil, err
		}
		s.prices = prices
	}
	n := len(f.Plans)
	for _, a := range f.Vary {
		if n *= len(a.Choices); n > mostCells {
			return nil, fmt.Errorf("%w: the study has more than %d cells; vary less", perdure.ErrUsage, mostCells)
		}
	}
	for _, chosen := range combinations(f.Vary) {
		for i := range f.Plans {
			c := f.cell(chosen, &f.Plans[i])
			notes, err := c.check(f.Seeds)
			switch {
			case err != nil && !f.LeaveOut:
				return nil, fmt.Errorf("%w: cell %s cannot run: %s (impossible: leave-out in the study's file leaves "+
					"such cells out)", perdure.ErrUsage, c.Name, plain.Text(err))
			case err != nil:
				s.LeftOut = append(s.LeftOut, LeftOut{c.Name, plain.Text(err)})
				continue
			}
			for _, note := range notes {
				if !slices.Contains(s.Notes, note) {
					s.Notes = append(s.Notes, note)
				}
			}
			if slices.ContainsFunc(s.Cells, func(o *Cell) bool { return o.Name == c.Name }) {
				return nil, fmt.Errorf("%w: two cells would have the folder %s; write what differs in letters and "+
					"digits", perdure.ErrUsage, c.Name)
			}
			s.Cells = append(s.Cells, c)
		}
	}
	if len(s.Cells) == 0 {
		return nil, fmt.Errorf("%w: no cell of the study can run: %s: %s", perdure.ErrUsage, s.LeftOut[0].Name,
			s.LeftOut[0].Why)
	}
	return s, nil
}

// combinations are all ways to choose one of each axis; the last axis changes fastest.
func combinations(axes []Axis) [][]Choice {
	all := [][]Choice{nil}
	for _, a := range axes {
		var next [][]Choice
		for _, before := range all {
			for _, c := range a.Choices {
				next = append(next, append(slices.Clone(before), c))
			}
		}
		all = next
	}
	return all
}

// cell makes the cell of some choices. What is chosen wins over the job.
func (f *File) cell(chosen []Choice, plan *Plan) *Cell {
	c := &Cell{Plan: plan.Name, plan: &plan.faultPlan, kind: &f.Kind}
	job := slices.Clone(f.Job)
	var names []string
	for _, choice := range chosen {
		c.Labels = append(c.Labels, choice.Label)
		names = append(names, choice.Label)
		for _, s := range choice.Settings {
			job = replace(job, s, func(a, b Setting) bool { return a.Key == b.Key })
		}
	}
	if f.Kind.Name != OfLosses { // whose trials have failures of their own
		names = append(names, plan.Name)
	}
	c.Name = cmp.Or(folderName(strings.Join(names, "_")), "all")
	workload := settings.DefaultWorkload
	for _, s := range job {
		if s.Key == "workload" {
			workload = s.Values[0]
			continue
		}
		to := &c.args
		if slices.Contains(f.Kind.Own, s.Key) {
			to = &c.own
		}
		for _, v := range s.Values {
			if v != "" { // else its default holds: quick may take a value back
				*to = append(*to, "--"+s.Key+"="+v)
			}
		}
	}
	c.args = append([]string{workload}, c.args...)
	return c
}

// check asks whether the cell can run with each of the seeds. The kind is asked once: it reads the data, and seeds
// differ in nothing but what machines do.
func (c *Cell) check(seeds []uint64) (notes []string, err error) {
	s, err := c.kind.Check(c.line(c.args, ""))
	if err != nil {
		return nil, err
	}
	c.job = faultJob{Workers: s.Job.Slots, Servers: s.Job.Servers, Clocks: s.Job.Clocks}
	if s.Until.Metric == settings.OverTime {
		c.job.Time = time.Duration(s.Until.Value * float64(time.Second))
	}
	for _, seed := range seeds {
		f, err := c.faults(seed)
		if err != nil {
			return nil, err
		}
		s.Faults = f.Texts()
		if _, err := s.ParseFaults(); err != nil {
			return nil, err
		}
		notes = f.Notes // of each seed the same
	}
	return notes, nil
}

// faults are what machines do in the run of a seed.
func (c *Cell) faults(seed uint64) (faultList, error) {
	job := c.job
	job.Seed = seed
	return c.plan.Of(job)
}

// line are flags of the kind's command, with a folder for the run if there is one.
func (c *Cell) line(train []string, folder string) []string {
	var to []string
	if folder != "" {
		to = []string{"--out", folder}
	}
	if c.kind.Own == nil {
		return slices.Concat(train, to)
	}
	return slices.Concat(c.own, to, []string{"--"}, train)
}

// Args are those of the kind's command for the run of a seed, without its folder.
func (c *Cell) Args(seed uint64) ([]string, error) {
	args, err := c.trainArgs(seed)
	return c.line(args, ""), err
}

// trainArgs are those of perdure train for the run of a seed, without its folder.
func (c *Cell) trainArgs(seed uint64) ([]string, error) {
	f, err := c.faults(seed)
	if err != nil {
		return nil, err
	}
	args := append(slices.Clone(c.args), fmt.Sprintf("--seed=%d", seed))
	for _, text := range f.Texts() {
		args = append(args, "--fault="+text)
	}
	return args, nil
}
