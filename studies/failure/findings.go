package main

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/perdure/perdure/internal/run/study"
)

// This file turns results into the five sentences with which the page begins. Each
// says what was found, whichever way it came out.

// ranked is a cell's value.
type ranked struct {
	group *group
	value study.Spread
}

// rank sorts groups by the median of a quantity, ascending, without those of which
// it is not known.
func rank(groups []*group, of func(*group) study.Spread) (list []ranked) {
	for _, g := range groups {
		if v := of(g); !math.IsNaN(v.Mid) {
			list = append(list, ranked{g, v})
		}
	}
	slices.SortStableFunc(list, func(a, b ranked) int {
		switch {
		case a.value.Mid < b.value.Mid:
			return -1
		case a.value.Mid > b.value.Mid:
			return 1
		}
		return 0
	})
	return list
}

// names lists groups; a strategy that is in under all its modes is named without them.
func (p *page) names(groups []*group) string {
	var all []string
	panels, of := byPanel(groups)
	_, whole := byPanel(study.Where(p.Killed, func(g *group) bool { return len(g.Trials) > 0 }))
	for _, panel := range panels {
		if n := len(of[panel]); n > 1 && n == len(whole[panel]) {
			all = append(all, "`"+panel+"`")
			continue
		}
		for _, g := range of[panel] {
			all = append(all, "`"+g.cell.String()+"`")
		}
	}
	return listed(all)
}

// listed joins with commas and an "and".
func listed(all []string) string {
	if n := len(all); n > 1 {
		return strings.Join(all[:n-1], ", ") + " and " + all[n-1]
	}
	return strings.Join(all, "")
}

// Summary is what someone who chooses a strategy should know, in five sentences.
func (p *page) Summary() []string {
	return []string{p.awayFound(), p.workFound(), p.endFound(), p.costFound(), p.choiceFound()}
}

// awayFound: under which the model could be read while a server was away.
func (p *page) awayFound() string {
	away := p.Study.scaled(p.Study.Outage).Seconds()
	var went, stood []*group
	for _, g := range p.Killed {
		if len(g.Trials) == 0 {
			continue
		}
		if g.Gap(0).Mid < away {
			went = append(went, g)
		} else {
			stood = append(stood, g)
		}
	}
	text := fmt.Sprintf("While a server was away for %s s, the model could be read and judged", study.Format(away))
	switch {
	case len(stood) == 0:
		return text + " under every strategy: " + p.names(went) + "."
	case len(went) == 0:
		return text + " under no strategy: " + p.names(stood) + " were without one until it was back."
	}
	return fmt.Sprintf("%s under %s; under %s there was nothing to read until it was back.", text, p.names(went), p.names(stood))
}

// workFound: what work was lost, or done twice.
func (p *page) workFound() string {
	var redone, lost []string
	var none []*group
	for _, g := range p.Killed {
		again, gone := g.Redone(), g.Lost()
		switch {
		case len(g.Trials) == 0:
		case gone.High > 0:
			lost = append(lost, fmt.Sprintf("`%s` lost %s gradients", g.cell, gone))
		case again.High > 0:
			redone = append(redone, fmt.Sprintf("`%s` did %s clocks of a worker again", g.cell, again))
		default:
			none = append(none, g)
		}
	}
	parts := append(lost, redone...)
	if len(none) > 0 {
		parts = append(parts, "nothing was lost or done twice under "+p.names(none))
	}
	return "Of the work that was done before the kills, " + strings.Join(parts, "; ") + "."
}

// endFound: how accurate runs with failures ended, beside those without.
func (p *page) endFound() string {
	list := rank(p.Killed, (*group).Last)
	if len(list) == 0 {
		return "No run with failures has an accuracy."
	}
	worst, best := list[0], list[len(list)-1]
	text := fmt.Sprintf("After %s and %s s of training, runs with failures ended least accurate under `%s`, with %s, and most under `%s`, with %s",
		plural(len(p.Study.Kills), "kill"), study.Format(p.Study.scaled(p.Study.Length).Seconds()), worst.group.cell, accuracy(worst.value), best.group.cell, accuracy(best.value))
	if calm := rank(p.Calm, (*group).Last); len(calm) > 0 {
		text += fmt.Sprintf(", those without failures with %.3f to %.3f", calm[0].value.Mid, calm[len(calm)-1].value.Mid)
	}
	return text + "; " + p.told(worst, best) + "."
}

// told says whether the trials tell two apart.
func (p *page) told(a, b ranked) string {
	switch {
	case a.group == b.group:
		return "there is only this one"
	case len(p.Study.Seeds) < 2:
		return "with one trial each nobody knows whether that is chance"
	case below(a.value, b.value):
		return "the ranges of their trials do not overlap"
	}
	return "the ranges of their trials overlap, so that is no clear difference"
}

func plural(n int, word string) string {
	if n == 1 {
		return "one " + word
	}
	return fmt.Sprintf("%d %ss", n, word)
}

// costFound: what strategies cost while nothing fails.
func (p *page) costFound() string {
	gradients, memory, stored := rank(p.Calm, (*group).Computed), rank(p.Calm, (*group).Holders), rank(p.Calm, (*group).Stored)
	if len(gradients) == 0 {
		return "What strategies cost without failures was not measured."
	}
	text := fmt.Sprintf("Without failures the fewest gradients were computed under `%s`, %s, and the most under `%s`, %s",
		gradients[0].group.cell, gradients[0].value, gradients[len(gradients)-1].group.cell, gradients[len(gradients)-1].value)
	if n := len(memory); n > 0 {
		text += fmt.Sprintf("; those who hold the model took from %s MB under `%s` to %s MB under `%s`",
			study.Short(memory[0].value.Mid), memory[0].group.cell, study.Short(memory[n-1].value.Mid), memory[n-1].group.cell)
	}
	if n := len(stored); n > 0 {
		text += fmt.Sprintf("; from %s MB (`%s`) to %s MB (`%s`) went to storage",
			study.Short(stored[0].value.Mid), stored[0].group.cell, study.Short(stored[n-1].value.Mid), stored[n-1].group.cell)
	}
	return text + "."
}

// choiceFound: what follows, in each mode.
func (p *page) choiceFound() string {
	var parts []string
	for _, mode := range p.Study.Modes {
		of := study.Where(p.Killed, func(g *group) bool { return g.Mode == mode })
		list := rank(of, (*group).Last)
		if len(list) == 0 {
			continue
		}
		best := list[len(list)-1]
		// Of those that trials do not tell from the best, the one that takes least.
		equal := study.Where(of, func(g *group) bool { return len(g.Trials) > 0 && !below(g.Last(), best.value) })
		thrifty := rank(equal, (*group).Holders)
		part := fmt.Sprintf("under %s `%s` ends most accurate", mode, best.group.panel())
		if len(thrifty) > 0 && thrifty[0].group != best.group {
			part += fmt.Sprintf(", and `%s`, which its trials do not tell from it, takes least memory for the model (%s against %s MB)",
				thrifty[0].group.panel(), study.Short(thrifty[0].value.Mid), study.Short(best.group.Holders().Mid))
		}
		parts = append(parts, part)
	}
	if len(parts) == 0 {
		return "There is nothing to choose by."
	}
	text := "So for failures such as these: " + strings.Join(parts, "; ")
	if len(p.Study.Seeds) < 2 {
		text += ", as far as one trial tells"
	}
	return text + "."
}

// What the runs without failures must keep to, as a part of what they might do, for
// the page to be about strategies and not about a machine that had too little time.
const (
	fewestEvaluations = .8
	fewestGradients   = .6
)

// Doubts says why the page is not to be trusted, if so: who ran the study knows, or it
// shows: a machine that is busy, or too small, does not evaluate when it should, and
// computes less than it is made to wait.
func (p *page) Doubts() (doubts []string) {
	if p.Study.Remark != "" {
		doubts = append(doubts, p.Study.Remark)
	}
	length := p.Study.scaled(p.Study.Length).Seconds()
	due := math.Floor(length / p.Study.scaled(p.Study.Eval).Seconds())
	might := math.Inf(1)
	if ms := p.Study.computeMs(); ms > 0 {
		might = float64(p.Study.Workers) * length * 1000 / float64(ms)
	}
	var late, slow []*group
	for _, g := range p.Calm {
		if g.over(func(r *result) float64 { return float64(len(r.Accuracy)) }).Mid < fewestEvaluations*due {
			late = append(late, g)
		}
		if !math.IsInf(might, 0) && g.Computed().Mid < fewestGradients*might {
			slow = append(slow, g)
		}
	}
	if len(late) > 0 {
		doubts = append(doubts, fmt.Sprintf("Even without failures fewer than %s of the evaluations that were due were done in time under %s: the times of this page are rough.", study.Percent0(fewestEvaluations), p.names(late)))
	}
	if len(slow) > 0 {
		doubts = append(doubts, fmt.Sprintf("Even without failures fewer than %s of the %s gradients that the workers had time for were computed under %s: the cores decided, or how long an update takes.", study.Percent0(fewestGradients), study.Short(might), p.names(slow)))
	}
	return doubts
}
