package main

import (
	"fmt"
	"math"
	"strings"
)

// consistency is the page of consistency.yaml.
func consistency(p *page) {
	even := at{"clock-fraction": "0.1", "failures": "even"}
	under := func(model string) *cell { return p.cell(even.and("consistency", model)) }
	beside := func(model string) string {
		labels := at{"clock-fraction": "0.01", "failures": "straggler", "consistency": model}
		return p.cell(labels).show(atEnd("test_rmse"), "%.3f")
	}
	age := func(model string) string { return under(model).show(differential(mean), "%.2f") }
	p.say("# Consistency models: how old reads are, and what that does")
	p.say("Under `essp:S` rows are about two clocks old in the mean whatever S is (%s at 2, %s at 10, %s at 100); "+
		"under `ssp:S` they get older with it (%s, %s and %s). So a large S costs `ssp` progress, and `essp` less: "+
		"at S = 100 and 1%% of the data in a clock runs end at %s under `ssp`, and at %s under `essp`, beside %s "+
		"under `bsp`. Workers wait for %s of their time for rows to come under `ssp:2`, and for %s under `essp:2`, "+
		"which has a run take %s s in place of %s.",
		age("essp:2"), age("essp:10"), age("essp:100"), age("ssp:2"), age("ssp:10"), age("ssp:100"),
		beside("ssp:100"), beside("essp:100"), beside("bsp"), under("ssp:2").show(moving, percent),
		under("essp:2").show(moving, percent), under("essp:2").show(seconds, "%.1f"),
		under("ssp:2").show(seconds, "%.1f"))
	p.say("This page repeats figures 2 and 3 of *High-Performance Distributed ML at Scale through Parameter Server " +
		"Consistency Models* (Dai, Kumar, Wei, Ho, Gibson, Xing, AAAI 2015), which introduced ESSP, with bounds on " +
		"values (VAP) beside it, of which [another study](../bound/README.md) says more. `studies/consistency.yaml` " +
		"says all settings.")
	p.command()
	p.facts(p.atATime())
	p.say("The paper has matrix factorisation on Netflix (100 million ratings, rank 100) on 64 machines, and LDA on "+
		"8. What is found here is about a smaller problem, and 4 workers that share %d cores. Messages do not leave "+
		"the machine, and each is held back for 1 ms.", p.Machine.Cores)
	ages(p, p.where(even))
	p.say("## How training goes beside a straggler")
	p.say("One worker of four is three times slower all the time (`slow*3:worker:1@0s`).")
	for _, fraction := range p.by("clock-fraction") {
		straggler(p, fraction)
	}
	p.say("Beside the paper, which shows that at 10%% of the data in a clock `ssp:5` turns up and `ssp:10` diverges " +
		"while `essp:10` goes as `bsp` does, and that at 1%% `ssp:100` diverges while `essp:100` does not:")
	p.line("| s, data in a clock | `ssp`, the paper | here | less `bsp` | verdict | `essp`, the paper | here | less " +
		"`bsp` | verdict |\n|---|---|---|--:|---|---|---|--:|---|")
	for _, row := range []struct{ s, fraction, ssp, essp string }{
		{"5", "0.1", turnsUp, goesDown},
		{"10", "0.1", diverges, goesDown},
		{"15", "0.1", "–", "–"},
		{"100", "0.1", "–", "–"},
		{"100", "0.01", diverges, goesDown},
	} {
		p.line("| %s, %s | %s | %s |", row.s, percentOf(row.fraction), courseOf(p, row.fraction, "ssp:"+row.s, row.ssp),
			courseOf(p, row.fraction, "essp:"+row.s, row.essp))
	}
	p.line("")
	p.say("Here a model falls if each trial ends less than 0.01 above the least error that it had, turns up if each " +
		"ends 0.01 and more above it, and diverges if that is 1 and more; else trials are not alike. Only what the " +
		"paper calls so is reproduced. A difference of 0.05 and more is 1%% of the error. At 10%% steps here are " +
		"the largest at which `bsp` falls, to make staleness show, and at 1%% half as large as that; on Netflix " +
		"with 64 machines the same s is missing 16 times as many updates.")
	p.end()
}

// ages writes how old reads are, and the time that workers spend waiting.
func ages(p *page, cells []*cell) {
	axes, look := []string{"consistency"}, looks{colour: "consistency"}
	bounded := only(cells, "consistency", "bsp", "ssp:2", "essp:2", "ssp:3", "essp:3", "ssp:5", "essp:5", "ssp:10",
		"essp:10", "ssp:15", "essp:15", "ssp:100", "essp:100")
	p.say("## How old reads are")
	p.say("A read at clock c that contains n clocks of another worker has the *clock differential* n − 1 − c " +
		"towards it: −1 is the newest that finished work can be. Every clock is drawn out at random here " +
		"(`jitter*2:worker:*@0s`).")
	p.dots("differentials.svg", "Clock differentials of reads, 10% of the data in a clock", bounded, axes, look,
		col("mean", differential(mean), "%.2f"),
		col("deviation", differential(deviation), "%.2f"),
		col("oldest", differential(lowest), "%.0f"))
	p.table(cells, axes,
		col("at −1", differentialAt("-1"), percent),
		col("at 0", differentialAt("0"), percent),
		col("mean", differential(mean), "%.2f"),
		col("deviation", differential(deviation), "%.2f"),
		col("oldest", differential(lowest), "%.0f"),
		col("most missing updates", missing(highest), "%.0f"),
		col("bound, P(2s + 1)", missingBound, "%.0f"),
		col("RMSE at the end", atEnd("test_rmse"), "%.3f"))
	p.say("A read under `ssp` is old until it is read anew, and then as new as can be. Under `essp` each is about " +
		"one clock older than under `bsp`, all the time; with steps as large as these, and workers that are all as " +
		"slow as each other, that costs more than what `ssp` does, up to S of 15 or so. Beside a straggler it does " +
		"not, as below.")
	p.say("In the paper `bsp` has all reads at −1, `ssp` has them flat over its window, and `essp` has about 43%% " +
		"at −1 and 30%% at 0 whatever s is. No read may lack more updates than the bound, which the paper proves.")
	p.say("## What the workers' time goes to")
	p.dots("time.svg", "What the workers' time goes to, 10% of the data in a clock", cells, axes, look,
		col("waiting for rows or the bound", waiting, percent),
		col("moving rows", moving, percent),
		col("seconds in all", seconds, "%.1f"))
	p.say("The paper has 17%% to 26%% of the time in communication under `ssp`, and 4%% under `essp` (LDA, s = 2, " +
		"4, 8), which [a study of topics](../topics/README.md) repeats. Under `vap:V` what is waited for is the " +
		"bound: whatever V is about as long as an update needs to reach all.")
}

// straggler writes about training with one slow worker.
func straggler(p *page, fraction string) {
	cells := p.where(at{"clock-fraction": fraction, "failures": "straggler"})
	p.say("### %s of the data in a clock", percentOf(fraction))
	p.curves("straggler-"+strings.TrimSuffix(percentOf(fraction), "%")+".svg",
		"Error on held-out ratings, "+fraction+" of the data in a clock", "test_rmse", "test RMSE",
		only(cells, "consistency", "bsp", "ssp:5", "essp:5", "ssp:100", "essp:100", "asp"),
		looks{colour: "consistency"}, "")
	p.table(cells, []string{"consistency"},
		col("RMSE at the end", atEnd("test_rmse"), "%.3f"),
		col("above its least", aboveLeast("test_rmse"), "%.3f"),
		col("seconds", seconds, "%.1f"),
		column{"with a straggler for 1 s", seconds, "%.1f", "for-a-while"},
		column{"RMSE of that model", rmse, "%.3f", "for-a-while"},
		column{"without", seconds, "%.1f", "even"})
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

// courseOf writes how the error of a model develops with one slow worker: in the paper, here, the difference to bsp at
// the end, and a verdict.
func courseOf(p *page, fraction, model, paper string) string {
	labels := at{"clock-fraction": fraction, "failures": "straggler"}
	c, bsp := p.cell(labels.and("consistency", model)), p.cell(labels.and("consistency", "bsp"))
	v := c.spread(aboveLeast("test_rmse"))
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
