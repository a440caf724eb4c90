package main

import (
	"fmt"
	"math"
	"text/template"
)

// Times just after the server is killed for the first and the second time, in seconds. An evaluation at the moment of
// the kill still counts as before it.
const (
	firstKill  = 30.1
	secondKill = 80.1
)

// Measures at a kill.
var (
	atFirstKill  = change("test_accuracy", firstKill)
	atSecondKill = change("test_accuracy", secondKill)
	firstGap     = gap("test_accuracy", firstKill)
)

// failurePage is the page of failure.yaml or failure-paper.yaml. In the latter, each choice is a strategy.
type failurePage struct {
	*page

	paper        bool
	axes         []string
	calm, killed []*cell
}

// end is the name and the accuracy of the cell that ended with the highest or the lowest accuracy.
type end struct{ Name, Accuracy string }

// failure writes the page of failure.yaml or failure-paper.yaml.
func failure(p *page) {
	f := &failurePage{
		page: p, paper: p.Name == "failure-paper", axes: []string{"consistency", "recovery", "on-outage"},
		calm: p.where(labelSet{"failures": "none"}), killed: p.where(labelSet{"failures": "killed"}),
	}
	length, look, panels := "150", styleAxes{"recovery", "on-outage"}, "consistency"
	if f.paper {
		length, look, panels, f.axes = "300", styleAxes{colour: "recovery"}, "", []string{"recovery"}
	}
	worst, best := ends(f.killed, accuracy)
	ended := func(c *cell) func() end {
		return func() end { return end{f.nameOf(c, f.axes...), c.median(accuracy, percent)} }
	}
	bsp := func(m measure, format string) func(string) string {
		return func(recovery string) string {
			return f.cell(labelSet{
				"consistency": "bsp", "recovery": recovery, "on-outage": "wait", "failures": "killed",
			}).median(m, format)
		}
	}
	p.fill("failure", template.FuncMap{
		"paper":     func() bool { return f.paper },
		"length":    func() string { return length },
		"once":      f.hasSingleTrials,
		"best":      ended(best),
		"worst":     ended(worst),
		"apartness": func() string { return f.distinguishability(best, worst) },
		"gap":       bsp(firstGap, "%.1f"),
		"redone":    bsp(redone, ""),
		"lost":      bsp(lost, ""),
		"curves": func() string {
			return f.curves("accuracy.svg", "Accuracy over time", "test_accuracy", "test accuracy", f.killed, look,
				panels)
		},
		"accuracies": f.accuracies,
		"kills":      f.atKills,
		"work":       f.work,
		"dollars":    f.dollars,
		"comparison": f.comparison,
	})
}

// distinguishability describes whether the trials distinguish two cells.
func (f *failurePage) distinguishability(best, worst *cell) string {
	switch {
	case f.hasSingleTrials():
		return "With one trial each, this ranking says nothing about chance."
	case distinguishable(best, worst, accuracy):
		return "The ranges of their trials do not overlap."
	}
	return "The ranges of their trials overlap, so the difference is not clear."
}

func (f *failurePage) accuracies() string {
	return f.table(f.killed, f.axes,
		col("final accuracy", accuracy, percent),
		column{"no kill", accuracy, percent, "none"},
		col("s to 70%", timeToReach("test_accuracy", 0.7), "%.0f"),
		column{"no kill", timeToReach("test_accuracy", 0.7), "%.0f", "none"},
		col("s to 80%", timeToReach("test_accuracy", 0.8), "%.0f"),
		column{"no kill", timeToReach("test_accuracy", 0.8), "%.0f", "none"})
}

func (f *failurePage) atKills() string {
	return f.dots("change.svg", "At the first kill", f.killed, f.axes, styleAxes{colour: "recovery"},
		col("change of accuracy at the kill", atFirstKill, "%+.3f"),
		col("change, 5 s after the restart", changeBy("test_accuracy", 55, firstKill), "%+.3f"),
		col("seconds without an evaluation", firstGap, "%.0f")) +
		f.table(f.killed, f.axes,
			col("before", before("test_accuracy", firstKill), "%.3f"),
			col("next", next("test_accuracy", firstKill), "%.3f"),
			col("change", atFirstKill, "%+.3f"),
			column{"no kill", atFirstKill, "%+.3f", "none"},
			col("second kill: change", atSecondKill, "%+.3f"),
			col("s between evaluations", firstGap, "%.0f"),
			col("second kill", gap("test_accuracy", secondKill), "%.0f"))
}

func (f *failurePage) work() string {
	return f.dots("costs.svg", "Cost without failures", f.calm, f.axes, styleAxes{colour: "recovery"},
		col("CPU seconds of all processes", cpuSeconds, "%.0f"),
		col("memory of servers and log, MB", serverMB, "%.0f"),
		col("stored, MB", mbStored, "%.0f")) +
		f.table(f.killed, f.axes,
			col("gradients in the model", clocks, "%.0f"),
			column{"no kill", clocks, "%.0f", "none"},
			col("updates lost", lost, "%.0f"),
			col("clocks redone", redone, "%.0f"),
			column{"server memory, MB", serverMB, "%.0f", "none"},
			column{"log memory, MB", logMB, "%.0f", "none"},
			column{"stored, MB", mbStored, "%.0f", "none"},
			column{"CPU s", cpuSeconds, "%.0f", "none"},
			col("CPU s, with kills", cpuSeconds, "%.0f"))
}

func (f *failurePage) dollars() string {
	return f.table(f.killed, f.axes,
		col("on demand, $", cost, "%.4f"),
		column{"no kill", cost, "%.4f", "none"},
		col("monthly, $", costMonth, "%.4f"),
		col("$ per clock", ratio(cost, clocks), "%.7f"),
		column{"no kill", ratio(cost, clocks), "%.7f", "none"},
		col("$ to 80%", costTo(cost, "test_accuracy", 0.8), "%.4f"),
		column{"no kill", costTo(cost, "test_accuracy", 0.8), "%.4f", "none"})
}

// strategy is one of the paper's five, with its cells with and without kills.
type strategy struct {
	what         string
	killed, calm *cell
}

// strategies returns the paper's five strategies.
func (f *failurePage) strategies() (all []strategy) {
	for _, s := range []struct{ what, paper, consistency, recovery, outage string }{
		{"sync checkpointing", "sync-checkpoints", "bsp", "checkpoint:100", "wait"},
		{"async checkpointing", "async-checkpoints", "asp", "checkpoint:100", "wait"},
		{"sync chain replication", "sync-chain", "bsp", "chain:3,every:100", "wait"},
		{"async chain replication", "async-chain", "asp", "chain:3,every:100", "wait"},
		{"stateless", "stateless", "asp", "stateless", "continue"},
	} {
		labels := labelSet{"recovery": s.paper}
		if !f.paper {
			labels = labelSet{"consistency": s.consistency, "recovery": s.recovery, "on-outage": s.outage}
		}
		killed, calm := f.cell(labels.and("failures", "killed")), f.cell(labels.and("failures", "none"))
		all = append(all, strategy{s.what, killed, calm})
	}
	return all
}

// comparison compares the results with the paper's.
func (f *failurePage) comparison() string {
	text := "| claim | paper | here | ratio | rule for the direction | direction | size |\n" +
		"|---|--:|--:|--:|---|---|---|\n"
	all := f.strategies()
	stateless := all[4].killed
	text += f.changes(all)
	for _, s := range all[:4] {
		a, b := stateless.spread(accuracy), s.killed.spread(accuracy)
		rule := "higher median, disjoint ranges"
		if f.hasSingleTrials() {
			rule = "higher median"
		}
		text += f.row("stateless ends more accurate than "+s.what, "by up to 0.10", 0.1, a.Mid-b.Mid,
			fmt.Sprintf("%s (%s against %s)", shown(a.Mid-b.Mid, "%+.3f"), show(a, "%.3f"), show(b, "%.3f")), rule,
			above(a, b))
	}
	for i, s := range []struct {
		what  string
		paper float64
	}{
		{"sync checkpointing, first kill: seconds between evaluations", 23},
		{"async checkpointing, the same", 23},
		{"sync chain replication, the same", 12},
		{"async chain replication, the same", 11},
		{"stateless, the same", 26},
	} {
		v := all[i].killed.spread(firstGap)
		text += f.row(s.what, fmt.Sprintf("%v s", s.paper), s.paper, v.Mid, show(v, "%.1f s"), "–", "–")
	}
	text += f.ratios(stateless, all[1].killed)
	return text
}

// row formats a row of the comparison: the claim, the paper's text and size, the size found here and its text, the rule
// for the direction, and its verdict.
func (f *failurePage) row(what, text string, paper, found float64, here, rule, decision string) string {
	return fmt.Sprintf("| %s | %s | %s | %s | %s | %s | %s |\n", what, text, here, times(paper, found), rule, decision,
		within(paper, found))
}

// changes compares the effect of the first kill on the accuracy.
func (f *failurePage) changes(all []strategy) (text string) {
	for i, s := range []struct {
		what, text string
		paper      float64
	}{
		{"sync checkpointing, first kill: accuracy", "0.529 → 0.473 (−0.056)", -0.056},
		{"async checkpointing, the same", "0.361 → 0.294 (−0.067)", -0.067},
		{"sync chain replication, every 100, the same", "0.442 → 0.352 (−0.090)", -0.09},
		{"async chain replication, every 100, the same", "0.362 → 0.376 (+0.014)", 0.014},
		{"stateless, workers continue, the same", "0.281 → 0.426 (+0.145)", 0.145},
	} {
		v := all[i].killed.spread(atFirstKill)
		calm := all[i].calm.spread(atFirstKill)
		rule, decision := "every trial rises, more than any without kills", rises(v, calm)
		if s.paper < 0 {
			rule, decision = "every trial falls, more than any without kills", falls(v, calm)
		}
		text += f.row(s.what, s.text, s.paper, v.Mid, show(v, "%+.3f"), rule, decision)
	}
	return text
}

// ratios compares the resources that stateless recovery and asynchronous checkpoints need.
func (f *failurePage) ratios(stateless, checkpoints *cell) (text string) {
	judged := func(ratio float64, so bool) string {
		if math.IsNaN(ratio) {
			return incomparable
		}
		return verdict(so, f.hasSingleTrials())
	}
	serversAndLog := func(t *trial) float64 { return serverMB(t) + logMB(t) }
	for _, r := range []struct {
		what  string
		paper float64
		found float64
	}{
		{"gradients, stateless / async checkpointing", 4.9, stateless.mid(clocks) / checkpoints.mid(clocks)},
		{"CPU time, the same", 4.2, stateless.mid(cpuSeconds) / checkpoints.mid(cpuSeconds)},
		{"memory for the model, the same", 8.5, stateless.mid(serversAndLog) / checkpoints.mid(serverMB)},
	} {
		text += f.row(r.what, fmt.Sprintf("%v times", r.paper), r.paper, r.found, shown(r.found, "")+" times", "higher",
			judged(r.found, r.found > 1))
	}
	money := stateless.mid(cost) / checkpoints.mid(cost)
	return text + fmt.Sprintf("| money, the same | similar, in words | %s times | – | within 10%% | %s | – |\n",
		shown(money, ""), judged(money, money >= 0.9 && money <= 1.1))
}
