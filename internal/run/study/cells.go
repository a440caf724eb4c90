package study

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/run/humanize"
	"github.com/perdure/perdure/internal/run/runs"
	"github.com/perdure/perdure/internal/run/settings"
)

// Cell is a set of runs that differ only in their seeds.
type Cell struct {
	Name   string   // also the name of its directory
	Labels []string // the choice for each axis
	Plan   string   // the name of the failure plan

	kind *Kind
	own  []string // flags of the kind's own command
	args []string // for perdure train, without seed, faults and directory
	plan *faultPlan
	job  faultJob // without the seed
}

// SkippedCell is a cell that cannot run.
type SkippedCell struct {
	Name string `json:"name"`
	Why  string `json:"why"`
}

// Study is a checked file: its cells can be run.
type Study struct {
	File
	Cells   []*Cell
	LeftOut []SkippedCell
	Notes   []string // explanations of the failure plans

	prices *runs.Prices // nil if none
}

// maxCells limits the size of a study. It is far above any sensible size and catches mistyped lists.
const maxCells = 10_000

// Check creates the cells of a study and checks that each can run.
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
		if n *= len(a.Choices); n > maxCells {
			return nil, perdure.Usagef("the study has more than %d cells; list fewer values under vary", maxCells)
		}
	}
	for _, chosen := range combinations(f.Vary) {
		for i := range f.Plans {
			c := f.cell(chosen, &f.Plans[i])
			notes, err := c.check(f.Seeds)
			switch {
			case err != nil && !f.LeaveOut:
				return nil, perdure.Usagef("cell %s cannot run: %s (set impossible: leave-out in the study's file to "+
					"skip such cells)", c.Name, humanize.ErrorText(err))
			case err != nil:
				s.LeftOut = append(s.LeftOut, SkippedCell{c.Name, humanize.ErrorText(err)})
				continue
			}
			for _, note := range notes {
				if !slices.Contains(s.Notes, note) {
					s.Notes = append(s.Notes, note)
				}
			}
			if slices.ContainsFunc(s.Cells, func(o *Cell) bool { return o.Name == c.Name }) {
				return nil, perdure.Usagef("two cells would have the directory %s; use values that differ in letters "+
					"or digits", c.Name)
			}
			s.Cells = append(s.Cells, c)
		}
	}
	if len(s.Cells) == 0 {
		return nil, perdure.Usagef("no cell of the study can run: %s: %s", s.LeftOut[0].Name, s.LeftOut[0].Why)
	}
	return s, nil
}

// combinations returns all ways to choose one value for each axis. The last axis varies fastest.
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

// cell creates the cell for some choices, which override the job's settings.
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
	if f.Kind.Name != KindLosses { // its trials draw their own failures
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
			if v != "" { // else the default applies: quick may remove a value
				*to = append(*to, "--"+s.Key+"="+v)
			}
		}
	}
	c.args = append([]string{workload}, c.args...)
	return c
}

// check checks that the cell can run with each seed. It calls kind.Check only once, because that reads the data; seeds
// affect only the faults.
func (c *Cell) check(seeds []uint64) (notes []string, err error) {
	s, err := c.kind.Check(c.line(c.args, ""))
	if err != nil {
		return nil, err
	}
	c.job = faultJob{Workers: s.Job.Slots, Servers: s.Job.Servers}
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
		notes = f.Notes // equal for all seeds
	}
	return notes, nil
}

// faults returns the faults of the run with a seed.
func (c *Cell) faults(seed uint64) (faultList, error) {
	job := c.job
	job.Seed = seed
	return c.plan.Of(job)
}

// line returns the arguments of the kind's command, with the run's directory unless folder is "".
func (c *Cell) line(train []string, dir string) []string {
	var to []string
	if dir != "" {
		to = []string{"--out", dir}
	}
	if c.kind.Own == nil {
		return slices.Concat(train, to)
	}
	return slices.Concat(c.own, to, []string{"--"}, train)
}

// Args returns the arguments of the kind's command for the run with a seed, without its directory.
func (c *Cell) Args(seed uint64) ([]string, error) {
	args, err := c.trainArgs(seed)
	return c.line(args, ""), err
}

// trainArgs returns the arguments of perdure train for the run with a seed, without its directory.
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
