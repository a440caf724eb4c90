package main

import (
	"fmt"
	"math"

	"github.com/perdure/perdure/internal/run/study"
)

// This file has what the paper reports, and the rules by which it is said whether
// this study has found the same.

// The verdicts.
const (
	reproduced    = "reproduced"
	notReproduced = "not reproduced"
	incomparable  = "not comparable"
)

// claim is something that the paper reports, beside what was found.
type claim struct {
	What, Paper, Found string
	Rule               string
	Verdict, Why       string // why it is not comparable
}

// What the paper's raw logs have, for the first of two kills.
var (
	paperSettings = []struct {
		name          string
		cell          cell
		before, after float64 // accuracy before the first kill, and evaluated next
		gap           float64 // s between evaluations
	}{
		{"sync checkpointing", cell{"bsp", "checkpoint:100", false}, .529, .473, 23},
		{"async checkpointing", cell{"asp", "checkpoint:100", false}, .361, .294, 23},
		{"sync chain replication", cell{"bsp", "chain:3,every:100", false}, .442, .352, 12},
		{"async chain replication", cell{"asp", "chain:3,every:100", false}, .362, .376, 11},
		{"stateless", paperStateless, .281, .426, 26},
	}
	paperStateless    = cell{"asp", "stateless", true}
	paperCheckpointed = cell{"asp", "checkpoint:100", false}
)

const (
	paperGradientRatio = 5260. / 1070 // of stateless to async checkpointing
	paperCPURatio      = 78. / 18.5   // of stateless to the others, 17% to 20%
	paperMemoryRatio   = 745. / 88    // of the stateless store to the others' 78 to 98 MB
	ratioWithin        = 2.
	gapWithin          = 1.5
)

// signVerdict compares the direction of a change. A fall is reproduced if every trial
// falls, and further than any run without failures: evaluations scatter. A rise is if
// every trial rises.
func signVerdict(paper float64, found, calm study.Spread) string {
	switch {
	case math.IsNaN(found.Mid) || paper < 0 && math.IsNaN(calm.Mid):
		return incomparable
	case paper < 0 && found.High < 0 && below(found, calm), paper > 0 && found.Low > 0:
		return reproduced
	}
	return notReproduced
}

// ratioVerdict compares a number that is above 0: it is reproduced if the median is
// within a factor of the paper's.
func ratioVerdict(paper, found, within float64) string {
	switch {
	case math.IsNaN(found) || math.IsInf(found, 0):
		return incomparable
	case found >= paper/within && found <= paper*within:
		return reproduced
	}
	return notReproduced
}

// betterVerdict is about ending with a better accuracy than others: reproduced if
// the median is above that of each of them, and trials tell it apart from at least one.
func betterVerdict(one study.Spread, others []study.Spread) string {
	apart := false
	for _, o := range others {
		if math.IsNaN(o.Mid) || math.IsNaN(one.Mid) {
			return incomparable
		}
		if one.Mid <= o.Mid {
			return notReproduced
		}
		apart = apart || below(o, one)
	}
	if len(others) == 0 {
		return incomparable
	}
	if !apart {
		return notReproduced
	}
	return reproduced
}

// Claims are all that is compared with the paper.
func (p *page) Claims() (claims []claim) {
	for _, s := range paperSettings {
		found := p.killed(s.cell).Change(0)
		claims = append(claims, p.judge(claim{
			What:  fmt.Sprintf("%s: accuracy before the first kill, and evaluated next", s.name),
			Paper: fmt.Sprintf("%.3f → %.3f", s.before, s.after),
			Found: fmt.Sprintf("%s → %s", accuracy(p.killed(s.cell).Before(0)), accuracy(p.killed(s.cell).Next(0))),
			Rule:  signRule(s.after - s.before), Verdict: signVerdict(s.after-s.before, found,
				p.find(s.cell, false).Change(0)),
		}, s.cell))
	}
	claims = append(claims, p.betterClaim(), p.ratioClaim("gradients, stateless to async checkpointing",
		paperGradientRatio, (*group).Computed),
		p.ratioClaim("processor time, likewise", paperCPURatio, (*group).CPU),
		p.ratioClaim("memory of who holds the model, likewise", paperMemoryRatio, (*group).Holders))
	for _, s := range paperSettings {
		found := p.killed(s.cell).Gap(0)
		c := p.judge(claim{
			What:  fmt.Sprintf("%s: longest time without an evaluation at the first outage", s.name),
			Paper: fmt.Sprintf("%.0f s", s.gap),
			Found: found.String() + " s", Rule: fmt.Sprintf("the median within a factor of %g", gapWithin),
			Verdict: ratioVerdict(s.gap, found.Mid, gapWithin),
		}, s.cell)
		if p.Study.Scale != 1 && c.Why == "" {
			c.Verdict, c.Why = incomparable, fmt.Sprintf("times are scaled by %g", p.Study.Scale)
		}
		claims = append(claims, c)
	}
	return append(claims, claim{
		What: "monetary cost", Paper: "similar, argued in words", Found: "–", Rule: "–", Verdict: incomparable,
		Why: "neither has prices",
	})
}

func signRule(paper float64) string {
	if paper < 0 {
		return "every trial falls, and further than any without failures"
	}
	return "every trial rises"
}

// judge says why cells cannot be compared, if so.
func (p *page) judge(c claim, cells ...cell) claim {
	var absent, once []string
	for _, cell := range cells {
		switch g := p.killed(cell); {
		case g == nil || len(g.Trials) == 0:
			absent = append(absent, "`"+cell.String()+"`")
		case len(g.Trials) == 1:
			once = append(once, "`"+cell.String()+"`")
		}
	}
	switch {
	case len(absent) > 0:
		c.Found, c.Verdict, c.Why = "–", incomparable, "there are no runs of "+study.Listed(absent)
	case len(once) > 0:
		c.Verdict, c.Why = incomparable, "there is only one trial of "+study.Listed(once)
	case c.Verdict == incomparable:
		c.Why = "it was not measured"
	}
	return c
}

func (p *page) betterClaim() claim {
	var others []study.Spread
	cells := []cell{paperStateless}
	highest := math.Inf(-1)
	for _, s := range paperSettings {
		if s.cell != paperStateless {
			last := p.killed(s.cell).Last()
			others, cells = append(others, last), append(cells, s.cell)
			highest = max(highest, last.Mid)
		}
	}
	one := p.killed(paperStateless).Last()
	return p.judge(claim{
		What: "stateless ends more accurate than the four others", Paper: "by up to 10%",
		Found:   fmt.Sprintf("%s, the best of the others %.3f", accuracy(one), highest),
		Rule:    "its median is above that of each, and no trial of at least one of them reaches its trials",
		Verdict: betterVerdict(one, others),
	}, cells...)
}

func (p *page) ratioClaim(what string, paper float64, of func(*group) study.Spread) claim {
	found := of(p.killed(paperStateless)).Mid / of(p.killed(paperCheckpointed)).Mid
	return p.judge(claim{
		What: what, Paper: fmt.Sprintf("%.1f times", paper), Found: fmt.Sprintf("%.2f times", found),
		Rule:    fmt.Sprintf("the ratio of medians within a factor of %g", ratioWithin),
		Verdict: ratioVerdict(paper, found, ratioWithin),
	}, paperStateless, paperCheckpointed)
}
