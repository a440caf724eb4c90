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
		return func(model string) string { return p.cell(even.and("consistency", model)).median(m, format) }
	}
	p.fill("consistency", template.FuncMap{
		"age": of(differential(mean), "%.2f"), "moving": of(moving, percent), "seconds": of(seconds, "%.1f"),
		"straggling": func(model string) string {
			labels := labelSet{"clock-fraction": "0.01", "failures": "straggler", "consistency": model}
			return p.cell(labels).median(rmse, "%.3f")
		},
		"even":      of(rmse, "%.3f"),
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
			col("max missing updates", missing(highest), "%.0f"),
			col("bound, P(2s + 1)", missingBound, "%.0f"),
			col("RMSE of the final model", rmse, "%.3f"))
}

// timeSplit shows how workers spend their time.
func timeSplit(p *page, cells []*cell) string {
	axes, look := []string{"consistency"}, styleAxes{colour: "consistency"}
	return p.dots("time.svg", "How the workers spend their time, 10% of the data in a clock", cells, axes, look,
		col("waiting for other workers", waiting, percent),
		col("moving rows", moving, percent),
		col("run time in seconds", seconds, "%.1f"))
}

// straggler shows training with one slow worker.
func straggler(p *page, fraction string) string {
	cells := p.where(labelSet{"clock-fraction": fraction, "failures": "straggler"})
	return p.curves("straggler-"+strings.TrimSuffix(percentOf(fraction), "%")+".svg",
		"Error on held-out ratings, "+fraction+" of the data in a clock", "test_rmse", "test RMSE",
		only(cells, "consistency", "bsp", "ssp:5", "essp:5", "ssp:100", "essp:100", "asp"),
		styleAxes{colour: "consistency"}, "") +
		p.table(cells, []string{"consistency"},
			col("RMSE of the final model", rmse, "%.3f"),
			col("last point above the minimum", aboveMin("test_rmse"), "%.3f"),
			col("seconds", seconds, "%.1f"),
			column{"seconds, slow for 1 s", seconds, "%.1f", "for-a-while"},
			column{"RMSE, slow for 1 s", rmse, "%.3f", "for-a-while"},
			column{"seconds, none slow", seconds, "%.1f", "even"})
}

// courses compares the course of training with the paper's. The claim is a contrast: one model turns up or diverges,
// and the other falls.
func courses(p *page) string {
	text := "| s, data per clock | `ssp`, paper | here | RMSE − `bsp` | `essp`, paper | here | RMSE − `bsp` | " +
		"contrast |\n|---|---|---|--:|---|---|--:|---|\n"
	for _, row := range []struct{ s, fraction, ssp, essp string }{
		{"5", "0.1", turnsUp, goesDown},
		{"10", "0.1", diverges, goesDown},
		{"15", "0.1", "–", "–"},
		{"100", "0.1", "–", "–"},
		{"100", "0.01", diverges, goesDown},
	} {
		ssp, essp := courseOf(p, row.fraction, "ssp:"+row.s), courseOf(p, row.fraction, "essp:"+row.s)
		judged := "–"
		switch {
		case row.ssp == "–":
		case ssp.here == "–" || essp.here == "–":
			judged = incomparable
		default:
			judged = verdict(ssp.here == row.ssp && essp.here == row.essp, ssp.once || essp.once)
		}
		text += fmt.Sprintf("| %s, %s | %s | %s | %s | %s | %s | %s | %s |\n", row.s, percentOf(row.fraction),
			row.ssp, ssp.here, ssp.difference, row.essp, essp.here, essp.difference, judged)
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

// course describes how the error of a model develops, and the difference of its final model's error to that of bsp.
type course struct {
	here, difference string
	once             bool // there is only one trial
}

// courseOf returns the course of a model with one slow worker.
func courseOf(p *page, fraction, model string) course {
	labels := labelSet{"clock-fraction": fraction, "failures": "straggler"}
	c, bsp := p.cell(labels.and("consistency", model)), p.cell(labels.and("consistency", "bsp"))
	v := c.spread(aboveMin("test_rmse"))
	here := "trials differ"
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
	return course{here, shown(c.mid(rmse)-bsp.mid(rmse), "%+.3f"), v.N == 1}
}
