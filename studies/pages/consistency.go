package main

import (
	"fmt"
	"math"
	"strings"
	"text/template"
)

// consistency writes the page of consistency.yaml.
func consistency(p *page) {
	even := labelSet{"clock-fraction": "0.1", "failures": "even"}
	of := func(m measure, format string) func(model string) string {
		return func(model string) string { return p.cell(even.and("consistency", model)).show(m, format) }
	}
	p.fill("consistency", template.FuncMap{
		"age": of(differential(mean), "%.2f"), "moving": of(moving, percent), "seconds": of(seconds, "%.1f"),
		"beside": func(model string) string {
			labels := labelSet{"clock-fraction": "0.01", "failures": "straggler", "consistency": model}
			return p.cell(labels).show(atEnd("test_rmse"), "%.3f")
		},
		"ages":      func() string { return ages(p, p.where(even)) },
		"time":      func() string { return timeSplit(p, p.where(even)) },
		"fractions": func() []string { return p.labelsOf("clock-fraction") }, "percentOf": percentOf,
		"straggler": func(fraction string) string { return straggler(p, fraction) },
		"courses":   func() string { return courses(p) },
	})
}

// ages shows how old the rows are that workers read.
func ages(p *page, cells []*cell) string {
	axes, look := []string{"consistency"}, styleAxes{colour: "consistency"}
	bounded := only(cells, "consistency", "bsp", "ssp:2", "essp:2", "ssp:3", "essp:3", "ssp:5", "essp:5", "ssp:10",
		"essp:10", "ssp:15", "essp:15", "ssp:100", "essp:100")
	return p.dots("differentials.svg", "Clock differentials of reads, 10% of the data in a clock", bounded, axes, look,
		col("mean", differential(mean), "%.2f"),
		col("deviation", differential(deviation), "%.2f"),
		col("oldest", differential(lowest), "%.0f")) +
		p.table(cells, axes,
			col("at −1", differentialAt("-1"), percent),
			col("at 0", differentialAt("0"), percent),
			col("mean", differential(mean), "%.2f"),
			col("deviation", differential(deviation), "%.2f"),
			col("oldest", differential(lowest), "%.0f"),
			col("most missing updates", missing(highest), "%.0f"),
			col("bound, P(2s + 1)", missingBound, "%.0f"),
			col("RMSE at the end", atEnd("test_rmse"), "%.3f"))
}

// timeSplit shows how workers spend their time.
func timeSplit(p *page, cells []*cell) string {
	axes, look := []string{"consistency"}, styleAxes{colour: "consistency"}
	return p.dots("time.svg", "What the workers' time goes to, 10% of the data in a clock", cells, axes, look,
		col("waiting for rows or the bound", waiting, percent),
		col("moving rows", moving, percent),
		col("seconds in all", seconds, "%.1f"))
}

// straggler shows training with one slow worker.
func straggler(p *page, fraction string) string {
	cells := p.where(labelSet{"clock-fraction": fraction, "failures": "straggler"})
	return p.curves("straggler-"+strings.TrimSuffix(percentOf(fraction), "%")+".svg",
		"Error on held-out ratings, "+fraction+" of the data in a clock", "test_rmse", "test RMSE",
		only(cells, "consistency", "bsp", "ssp:5", "essp:5", "ssp:100", "essp:100", "asp"),
		styleAxes{colour: "consistency"}, "") +
		p.table(cells, []string{"consistency"},
			col("RMSE at the end", atEnd("test_rmse"), "%.3f"),
			col("above its least", aboveMin("test_rmse"), "%.3f"),
			col("seconds", seconds, "%.1f"),
			column{"with a straggler for 1 s", seconds, "%.1f", "for-a-while"},
			column{"RMSE of that model", rmse, "%.3f", "for-a-while"},
			column{"without", seconds, "%.1f", "even"})
}

// courses compares the course of training with the paper's.
func courses(p *page) string {
	text := "| s, data in a clock | `ssp`, the paper | here | less `bsp` | verdict | `essp`, the paper | here | less " +
		"`bsp` | verdict |\n|---|---|---|--:|---|---|---|--:|---|\n"
	for _, row := range []struct{ s, fraction, ssp, essp string }{
		{"5", "0.1", turnsUp, goesDown},
		{"10", "0.1", diverges, goesDown},
		{"15", "0.1", "–", "–"},
		{"100", "0.1", "–", "–"},
		{"100", "0.01", diverges, goesDown},
	} {
		text += fmt.Sprintf("| %s, %s | %s | %s |\n", row.s, percentOf(row.fraction),
			courseOf(p, row.fraction, "ssp:"+row.s, row.ssp), courseOf(p, row.fraction, "essp:"+row.s, row.essp))
	}
	return text
}

func percentOf(fraction string) string {
	return map[string]string{"0.01": "1%", "0.1": "10%"}[fraction]
}

// Courses of an error over time.
const (
	goesDown = "falls"
	turnsUp  = "turns up"
	diverges = "diverges"
)

// courseOf describes how the error of a model develops with one slow worker. It returns four table cells: the course in
// the paper, the course here, the difference to bsp at the end, and a verdict.
func courseOf(p *page, fraction, model, paper string) string {
	labels := labelSet{"clock-fraction": fraction, "failures": "straggler"}
	c, bsp := p.cell(labels.and("consistency", model)), p.cell(labels.and("consistency", "bsp"))
	v := c.spread(aboveMin("test_rmse"))
	here, judged := "not alike", "–"
	switch {
	case math.IsNaN(v.Mid):
		here = "–"
	case v.High < 0.01:
		here = goesDown
	case v.Low >= 1:
		here = diverges
	case v.Low >= 0.01 && v.High < 1:
		here = turnsUp
	}
	switch {
	case paper == "–":
	case !known(v):
		judged = incomparable
	default:
		judged = verdict(paper == here, v.N == 1)
	}
	test := atEnd("test_rmse")
	return fmt.Sprintf("%s | %s | %s | %s", paper, here, shown(c.mid(test)-bsp.mid(test), "%+.3f"), judged)
}
