package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/perdure/perdure/internal/run/study"
	"github.com/perdure/perdure/itercost"
)

// write writes the page and the table of all runs.
func write(s settings, m study.Machine, all []result) error {
	if err := os.MkdirAll(s.Out, 0o777); err != nil {
		return err
	}
	rows := [][]string{{
		"task", "seed", "killed_server", "at_clock", "strategy", "iterations_lost", "at_least", "epsilon",
		"end_less_twin", "updates_lost", "same_model", "failures",
	}}
	for _, r := range all {
		rows = append(rows, study.Record(r.name, r.seed, r.victim, r.kill, r.arm, r.cost.Clocks, r.cost.Censored,
			r.epsilon, r.end, r.lost, r.same, r.failures))
	}
	if err := study.WriteCSV(filepath.Join(s.Out, "runs.csv"), rows); err != nil {
		return err
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, "# What a lost server costs, in iterations\n\nWritten by `go run "+
		"./studies/progress` on %s: %d cores, "+
		"%s, %s. %s\n\nOne of two servers, and with it half of the parameters, is killed at a clock that is drawn. "+
		"Iterations lost are clocks that were done again, and by how many clocks later than its "+
		"undisturbed twin the run "+
		"came to ε for good; ε is what the twin has at a clock named below. Evaluations are two "+
		"clocks apart. The mean is "+
		"in brackets with its 95 %% interval, by bootstrap over the trials. All runs: [runs.csv](runs.csv).\n",
		m.Date, m.Cores, m.CPU, m.Go, s.Remark)
	for _, t := range tasks {
		of := study.Where(all, func(r result) bool { return r.name == t.name })
		if err := section(&b, t, of); err != nil {
			return err
		}
	}
	return os.WriteFile(filepath.Join(s.Out, "README.md"), b.Bytes(), 0o666)
}

// section is the table of a task.
func section(b *bytes.Buffer, t task, all []result) error {
	if len(all) == 0 {
		return nil
	}
	fmt.Fprintf(b, "\n## %s\n\n%d clocks, the failure at one of %d to %d, ε is the %s of the twin "+
		"at clock %d; %d trials, "+
		"seeds from 1 on.\n\n| strategy | iterations lost: median, least to most | mean | of those "+
		"of `checkpoint:20` | "+
		"runs that end with the twin's model |\n|---|---|---|---|---|\n",
		t.name, t.clocks, t.first, t.last-1, t.measure, t.goal, len(all)/len(arms))
	costs := func(arm string) (c []itercost.Cost, same int) {
		for _, r := range all {
			if r.arm == arm {
				c = append(c, r.cost)
				if r.same {
					same++
				}
			}
		}
		return c, same
	}
	base, _ := costs("checkpoint:20")
	full, err := itercost.Summarize(base)
	if err != nil {
		return err
	}
	for _, arm := range arms {
		c, same := costs(arm)
		mean, err := itercost.Bootstrap{Seed: 1}.Mean(c)
		if err != nil {
			return err
		}
		sum, err := itercost.Summarize(c)
		if err != nil {
			return err
		}
		least := slices.MinFunc(c, func(a, b itercost.Cost) int { return a.Clocks - b.Clocks })
		most := slices.MaxFunc(c, func(a, b itercost.Cost) int { return a.Clocks - b.Clocks })
		fmt.Fprintf(b, "| `%s` | %v, %v to %v | %v | %.2f | %d of %d |\n", arm, sum.Median, least, most, mean,
			mean.Estimate.Low/full.Mean, same, len(c))
	}
	return nil
}
