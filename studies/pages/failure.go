package main

import (
	"fmt"
	"math"
)

// When the server is killed for the first and the second time, in seconds: an evaluation at the kill itself is before
// it.
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

// failurePage is the page of failure.yaml, or of failure-paper.yaml, whose choices are strategies.
type failurePage struct {
	*page

	paper        bool
	length       string // of a run, in seconds
	axes         []string
	calm, killed []*cell
}

// failure is the page of failure.yaml and of failure-paper.yaml.
func failure(p *page) {
	f := &failurePage{
		page: p, length: "150", axes: []string{"consistency", "recovery", "on-outage"},
		calm: p.where(at{"failures": "none"}), killed: p.where(at{"failures": "killed"}),
	}
	if p.Name == "failure-paper" {
		f.paper, f.length, f.axes = true, "300", []string{"recovery"}
	}
	f.summary()
	f.accuracies()
	f.atKills()
	f.costs()
	f.besidePaper()
	f.differences()
	p.end()
}

// either returns one of two texts; the first is for the study of the paper's five strategies.
func (f *failurePage) either(paper, own string) string {
	if f.paper {
		return paper
	}
	return own
}

// summary writes the main findings.
func (f *failurePage) summary() {
	worst, best := ends(f.killed, accuracy)
	apartness := "; the ranges of their trials meet, so that is no clear difference"
	switch {
	case f.once():
		apartness = "; that is one trial each, which says nothing of chance"
	case apart(best, worst, accuracy):
		apartness = "; the ranges of their trials do not meet"
	}
	f.say("# Training through failure: the server is killed and comes back")
	f.line("After two kills and %s s of training, runs ended most accurate under `%s`, with %s, and least under "+
		"`%s`, with %s%s.", f.length, f.named(best, f.axes...), best.show(accuracy, percent), f.named(worst, f.axes...),
		worst.show(accuracy, percent), apartness)
	if !f.paper {
		killed := func(recovery string, of measure, format string) string {
			return f.cell(at{
				"consistency": "bsp", "recovery": recovery, "on-outage": "wait", "failures": "killed",
			}).show(of, format)
		}
		f.line("Under `chain:3` the model could be read all the while: there were %s s between two evaluations; "+
			"under `checkpoint:100` %s s, and under `resend:20` %s s. What was done and lost, or done again: "+
			"`checkpoint:100` did %s clocks of workers again, `chain:3,every:100` lost %s updates; nothing was lost "+
			"or done again where the others' columns below say 0.",
			killed("chain:3", firstGap, "%.1f"), killed("checkpoint:100", firstGap, "%.1f"),
			killed("resend:20", firstGap, "%.1f"), killed("checkpoint:100", redone, ""),
			killed("chain:3,every:100", lost, ""))
	}
	f.say("")
	f.say("This is the experiment of *Training Through Failure* (Cao, Luo, Gan, Jinesh 2024, arXiv 2406.05546): a "+
		"server is killed at 30 s and at 80 s, and comes back 20 s later. %s; to run it again:",
		f.either("The paper's five "+
			"strategies, with its one worker and once each, are in `studies/failure-paper.yaml`",
			"`studies/failure.yaml` says all settings"))
	f.command()
	f.facts(f.atATime())
}

// accuracies writes how accurate the models were.
func (f *failurePage) accuracies() {
	if f.paper {
		f.say("`sync-checkpoints` is `checkpoint:100` under `bsp`, `async-checkpoints` the same under `asp`; " +
			"`sync-chain` and `async-chain` are `chain:3,every:100`, likewise, with three servers; `stateless` is " +
			"under `asp`, and workers go on in an outage.")
	}
	f.say("## Accuracy")
	look, panels := looks{colour: "recovery"}, ""
	if !f.paper {
		look.dash, panels = "on-outage", "consistency"
	}
	f.curves("accuracy.svg", "Accuracy over time", "test_accuracy", "test accuracy", f.killed, look, panels)
	f.say("Lines are medians of the trials, bands go from the least to the most; upright lines are kills. The " +
		"command evaluates the newest rows that servers have. While no server has them there is nothing to evaluate.")
	f.table(f.killed, f.axes,
		col("at the end", accuracy, percent),
		column{"without failures", accuracy, percent, "none"},
		col("s to 70%", rise("test_accuracy", 0.7), "%.0f"),
		column{"without", rise("test_accuracy", 0.7), "%.0f", "none"},
		col("s to 80%", rise("test_accuracy", 0.8), "%.0f"),
		column{"without", rise("test_accuracy", 0.8), "%.0f", "none"})
	f.say("Medians of the trials, with the least and the most. ∞: never.")
}

// atKills writes about the accuracy at the kills.
func (f *failurePage) atKills() {
	f.say("## At a kill")
	f.dots("change.svg", "At the first kill", f.killed, f.axes, looks{colour: "recovery"},
		col("next evaluation less the last before", atFirstKill, "%+.3f"),
		col("the same, 5 s later than back", changeBy("test_accuracy", 55, firstKill), "%+.3f"),
		col("s without an evaluation", firstGap, "%.0f"))
	f.table(f.killed, f.axes,
		col("before", before("test_accuracy", firstKill), "%.3f"),
		col("next", next("test_accuracy", firstKill), "%.3f"),
		col("change", atFirstKill, "%+.3f"),
		column{"without failures", atFirstKill, "%+.3f", "none"},
		col("second kill: change", atSecondKill, "%+.3f"),
		col("s without an evaluation", firstGap, "%.0f"),
		col("second kill", gap("test_accuracy", secondKill), "%.0f"))
	f.say("Before: the last evaluation before the kill. Next: the one that follows, whenever rows can be read " +
		"again. The kill comes some milliseconds after one of the evaluations, which are 5 s apart.")
}

// costs writes about the work, the resources and the cost.
func (f *failurePage) costs() {
	f.say("## Work and cost")
	f.dots("costs.svg", "What it costs while nothing fails", f.calm, f.axes, looks{colour: "recovery"},
		col("processor s, all", cpuSeconds, "%.0f"),
		col("memory of servers and log, MB", serverMB, "%.0f"),
		col("stored, MB", mbStored, "%.0f"))
	f.table(f.killed, f.axes,
		col("gradients in the model", clocks, "%.0f"),
		column{"without failures", clocks, "%.0f", "none"},
		col("updates lost", lost, "%.0f"),
		col("clocks redone", redone, "%.0f"),
		column{"memory of servers, MB", serverMB, "%.0f", "none"},
		column{"of the log, MB", logMB, "%.0f", "none"},
		column{"stored, MB", mbStored, "%.0f", "none"},
		column{"processor s", cpuSeconds, "%.0f", "none"},
		col("with kills", cpuSeconds, "%.0f"))
	f.say("Clocks are of every worker: a clock is a gradient of each. Memory is resident memory at its highest.")
	f.table(f.killed, f.axes,
		col("on demand, $", cost, "%.4f"),
		column{"without failures", cost, "%.4f", "none"},
		col("by the month, $", costMonth, "%.4f"),
		col("$ a clock", over(cost, clocks), "%.7f"),
		column{"without", over(cost, clocks), "%.7f", "none"},
		col("$ to 80%", costTo(cost, "test_accuracy", 0.8), "%.4f"),
		column{"without", costTo(cost, "test_accuracy", 0.8), "%.4f", "none"})
	if f.Prices != "" {
		f.line("Prices are of %s.", f.Prices)
	}
	f.say("By the month what stands idle is paid as what works. \"$ to 80%%\" is what was paid on demand until the " +
		"test accuracy was 80%% for the first time, with kills and without.")
}

// strategy is one of the paper's five, with kills and without.
type strategy struct {
	what         string
	killed, calm *cell
}

// strategies are the paper's five.
func (f *failurePage) strategies() (all []strategy) {
	for _, s := range []struct{ what, paper, consistency, recovery, outage string }{
		{"sync checkpointing", "sync-checkpoints", "bsp", "checkpoint:100", "wait"},
		{"async checkpointing", "async-checkpoints", "asp", "checkpoint:100", "wait"},
		{"sync chain replication", "sync-chain", "bsp", "chain:3,every:100", "wait"},
		{"async chain replication", "async-chain", "asp", "chain:3,every:100", "wait"},
		{"stateless", "stateless", "asp", "stateless", "continue"},
	} {
		labels := at{"recovery": s.paper}
		if !f.paper {
			labels = at{"consistency": s.consistency, "recovery": s.recovery, "on-outage": s.outage}
		}
		killed, calm := f.cell(labels.and("failures", "killed")), f.cell(labels.and("failures", "none"))
		all = append(all, strategy{s.what, killed, calm})
	}
	return all
}

// besidePaper compares the findings with the paper's.
func (f *failurePage) besidePaper() {
	f.say("## Beside the paper")
	f.say("Directions are judged by a rule. Sizes are judged apart from them, within a factor of 2, since a "+
		"difference of 1 point is not one of 10: the fourth column says how many times the paper's what is found "+
		"here is.%s",
		map[bool]string{true: " One trial says nothing of chance, so no direction is called reproduced."}[f.once()])
	f.line("| | the paper | here | of the paper's | direction: reproduced if | direction | size |\n" +
		"|---|--:|--:|--:|---|---|---|")
	all := f.strategies()
	stateless := all[4].killed
	f.changes(all)
	for _, s := range all[:4] {
		a, b := stateless.spread(accuracy), s.killed.spread(accuracy)
		rule := "its median is higher, and the ranges do not meet"
		if f.once() {
			rule = "its median is higher"
		}
		f.row("stateless ends more accurate than "+s.what, "by up to 0.10", 0.1, a.Mid-b.Mid,
			fmt.Sprintf("%s (%s beside %s)", shown(a.Mid-b.Mid, "%+.3f"), show(a, "%.3f"), show(b, "%.3f")), rule,
			above(a, b))
	}
	for i, s := range []struct {
		what  string
		paper float64
	}{
		{"sync checkpointing: s without an evaluation at the first kill", 23},
		{"async checkpointing, likewise", 23},
		{"sync chain replication, likewise", 12},
		{"async chain replication, likewise", 11},
		{"stateless, likewise", 26},
	} {
		v := all[i].killed.spread(firstGap)
		f.row(s.what, fmt.Sprintf("%v s", s.paper), s.paper, v.Mid, show(v, "%.1f s"), "–", "–")
	}
	f.ratios(stateless, all[1].killed)
	f.say("")
	f.say("The paper's processor times are parts of a laptop, 78%% beside 17%% to 20%%, and its \"similar cost\" is " +
		"argued from contracts in which what stands idle is paid, too. Here the coordinator, each server and each " +
		"worker is a machine, which is paid for as long as it is there: that is the same for all strategies with as " +
		"many servers, and more for chains, which have three. The log of `stateless` is billed as no machine of its " +
		"own: what it has written is paid as storage, and who gives it a machine pays one more.")
}

// row writes a line of the comparison: the paper's text and size, the size that was found and its text, the rule for
// the direction and the verdict about it.
func (f *failurePage) row(what, text string, paper, found float64, here, rule, verdict string) {
	f.line("| %s | %s | %s | %s | %s | %s | %s |", what, text, here, times(paper, found), rule, verdict,
		within(paper, found))
}

// changes compares the effect of the first kill on the accuracy.
func (f *failurePage) changes(all []strategy) {
	for i, s := range []struct {
		what, text string
		paper      float64
	}{
		{"sync checkpointing, first kill: accuracy", "0.529 → 0.473 (−0.056)", -0.056},
		{"async checkpointing, likewise", "0.361 → 0.294 (−0.067)", -0.067},
		{"sync chain replication, every 100, likewise", "0.442 → 0.352 (−0.090)", -0.09},
		{"async chain replication, every 100, likewise", "0.362 → 0.376 (+0.014)", 0.014},
		{"stateless, workers go on, likewise", "0.281 → 0.426 (+0.145)", 0.145},
	} {
		v := all[i].killed.spread(atFirstKill)
		rule, verdict := "every trial rises", rises(v)
		if s.paper < 0 {
			rule = "every trial falls, and further than any without failures"
			verdict = falls(v, all[i].calm.spread(atFirstKill))
		}
		f.row(s.what, s.text, s.paper, v.Mid, show(v, "%+.3f"), rule, verdict)
	}
}

// ratios compares the needs of stateless recovery with those of asynchronous checkpoints.
func (f *failurePage) ratios(stateless, checkpoints *cell) {
	judged := func(ratio float64, so bool) string {
		if math.IsNaN(ratio) {
			return incomparable
		}
		return verdict(so, f.once())
	}
	serversAndLog := func(t *trial) float64 { return serverMB(t) + logMB(t) }
	for _, r := range []struct {
		what  string
		paper float64
		found float64
	}{
		{"gradients, stateless to async checkpointing", 4.9, stateless.mid(clocks) / checkpoints.mid(clocks)},
		{"processor time, likewise", 4.2, stateless.mid(cpuSeconds) / checkpoints.mid(cpuSeconds)},
		{"memory of who holds the model, likewise", 8.5, stateless.mid(serversAndLog) / checkpoints.mid(serverMB)},
	} {
		f.row(r.what, fmt.Sprintf("%v times", r.paper), r.paper, r.found, shown(r.found, "")+" times", "more",
			judged(r.found, r.found > 1))
	}
	money := stateless.mid(cost) / checkpoints.mid(cost)
	f.line("| money, likewise | similar, in words | %s times | – | within a tenth | %s | – |", shown(money, ""),
		judged(money, money >= 0.9 && money <= 1.1))
}

// differences lists how the experiment differs from the paper's.
func (f *failurePage) differences() {
	f.say("What differs from the paper, whose raw logs the figures are from:")
	for _, text := range []string{
		f.either("It has one worker, as here", "It has one worker; here are two") +
			". Its sync and async are `bsp` and `asp`.",
		"Its checkpoints never reach a disk; here they do. Its first recovery in runs with two kills begins again " +
			"from random weights, which is a bug, so that part of its fall is no fault of checkpoints.",
		"It respawns tasks for every gradient under some strategies and not under others, which is why its numbers " +
			"of gradients differ as they do. Here a gradient takes 250 ms under all of them, waited and not worked.",
		"Its stateless worker leaves out every other batch, and its server takes a tenth of the step size when more " +
			"than 50 gradients wait. Here every gradient counts as it is.",
		"It has no seeds, no trials and no error bars." +
			f.either(" Nor are trials here: differences say nothing of chance.", ""),
		"It replicates every 100 iterations, which is `chain:3,every:100`" + f.either("", "; `chain:3`, in which an "+
			"update counts once all three have it, and `resend:20` are not in it") + ".",
		"One server has the model where it is not replicated, as in the paper. A chain has three, and both kills " +
			"are of the first: at the second it is the last of its chains.",
		"It runs for 240 to 300 s; here " + f.length + " s.",
	} {
		f.line("- %s", text)
	}
	f.line("")
}
