package main

import (
	_ "embed"
	"math"
	"slices"

	"github.com/perdure/perdure/internal/run/study"
)

//go:embed findings.md.tmpl
var findingsTemplate string

// findings are the sentences about what was found. This file works out the facts that fill
// them.
var findings = study.ParseFindings(findingsTemplate)

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
	return study.Listed(all)
}

// summaryFacts are what someone who chooses a strategy should know.
type summaryFacts struct {
	Away     awayFacts
	Work     workFacts
	End      *endFacts  // nil: no run with failures has an accuracy
	Cost     *costFacts // nil: there are no runs without failures
	Choices  []choice
	OneTrial bool // each
}

// Summary is what someone who chooses a strategy should know, in five sentences.
func (p *page) Summary() ([]string, error) {
	return findings.Of("summary", summaryFacts{
		Away: p.away(), Work: p.work(), End: p.end(), Cost: p.cost(), Choices: p.choices(),
		OneTrial: len(p.Study.Seeds) < 2,
	})
}

// awayFacts are under which strategies the model could be read while a server was away.
type awayFacts struct {
	Seconds     float64
	Went, Stood string
}

func (p *page) away() awayFacts {
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
	return awayFacts{Seconds: away, Went: p.names(went), Stood: p.names(stood)}
}

// figure is a cell's value, as it is written.
type figure struct{ Cell, Value string }

// workFacts are what work was lost, or done twice.
type workFacts struct {
	Lost, Redone []figure
	None         string // of whom neither is so
}

func (p *page) work() (f workFacts) {
	var none []*group
	for _, g := range p.Killed {
		again, gone := g.Redone(), g.Lost()
		switch {
		case len(g.Trials) == 0:
		case gone.High > 0:
			f.Lost = append(f.Lost, figure{g.cell.String(), gone.String()})
		case again.High > 0:
			f.Redone = append(f.Redone, figure{g.cell.String(), again.String()})
		default:
			none = append(none, g)
		}
	}
	f.None = p.names(none)
	return f
}

// endFacts are how accurate runs with failures ended, beside those without.
type endFacts struct {
	Kills       int
	Seconds     float64 // of training
	Worst, Best figure
	Calm        *interval // of the medians without failures; nil: there are none

	OnlyOne, OneTrial, Apart bool
}

func (p *page) end() *endFacts {
	list := rank(p.Killed, (*group).Last)
	if len(list) == 0 {
		return nil
	}
	worst, best := list[0], list[len(list)-1]
	f := endFacts{
		Kills: len(p.Study.Kills), Seconds: p.Study.scaled(p.Study.Length).Seconds(),
		Worst:   figure{worst.group.cell.String(), accuracy(worst.value)},
		Best:    figure{best.group.cell.String(), accuracy(best.value)},
		OnlyOne: worst.group == best.group, OneTrial: len(p.Study.Seeds) < 2, Apart: below(worst.value, best.value),
	}
	if calm := rank(p.Calm, (*group).Last); len(calm) > 0 {
		f.Calm = &interval{Low: calm[0].value.Mid, High: calm[len(calm)-1].value.Mid}
	}
	return &f
}

// interval is a range of values.
type interval struct{ Low, High float64 }

// costFacts are what strategies cost while nothing fails.
type costFacts struct {
	Fewest, Most   figure // gradients
	Memory, Stored *ends  // nil: it was not measured
}

// ends are the least and the most of a quantity, in MB, and the cells that have them.
type ends struct {
	Low, High   float64
	Least, Most string
}

func (p *page) cost() *costFacts {
	gradients := rank(p.Calm, (*group).Computed)
	if len(gradients) == 0 {
		return nil
	}
	as := func(r ranked) figure { return figure{r.group.cell.String(), r.value.String()} }
	between := func(of func(*group) study.Spread) *ends {
		list := rank(p.Calm, of)
		if len(list) == 0 {
			return nil
		}
		least, most := list[0], list[len(list)-1]
		return &ends{least.value.Mid, most.value.Mid, least.group.cell.String(), most.group.cell.String()}
	}
	return &costFacts{
		Fewest: as(gradients[0]), Most: as(gradients[len(gradients)-1]),
		Memory: between((*group).Holders), Stored: between((*group).Stored),
	}
}

// choice is what follows in one mode.
type choice struct {
	Mode, Best string
	Thrifty    *thrifty // nil: it is the best itself
}

// thrifty takes least memory of those that trials do not tell from the best.
type thrifty struct {
	Name       string
	MB, BestMB float64
}

func (p *page) choices() (all []choice) {
	for _, mode := range p.Study.Modes {
		of := study.Where(p.Killed, func(g *group) bool { return g.Mode == mode })
		list := rank(of, (*group).Last)
		if len(list) == 0 {
			continue
		}
		best := list[len(list)-1]
		c := choice{Mode: mode, Best: best.group.panel()}
		equal := study.Where(of, func(g *group) bool { return len(g.Trials) > 0 && !below(g.Last(), best.value) })
		if least := rank(equal, (*group).Holders); len(least) > 0 && least[0].group != best.group {
			c.Thrifty = &thrifty{least[0].group.panel(), least[0].value.Mid, best.group.Holders().Mid}
		}
		all = append(all, c)
	}
	return all
}

// What the runs without failures must keep to, as a part of what they might do, for
// the page to be about strategies and not about a machine that had too little time.
const (
	fewestEvaluations = .8
	fewestGradients   = .6
)

// doubtFacts are in what runs without failures did not keep up.
type doubtFacts struct {
	Late, Slow                         string // the cells that are
	Might                              float64
	FewestEvaluations, FewestGradients float64
}

// Doubts says why the page is not to be trusted, if so: who ran the study knows, or it
// shows: a machine that is busy, or too small, does not evaluate when it should, and
// computes less than it is made to wait.
func (p *page) Doubts() (doubts []string, err error) {
	if p.Study.Remark != "" {
		doubts = append(doubts, p.Study.Remark)
	}
	length := p.Study.scaled(p.Study.Length).Seconds()
	due := math.Floor(length / p.Study.scaled(p.Study.Eval).Seconds())
	f := doubtFacts{Might: math.Inf(1), FewestEvaluations: fewestEvaluations, FewestGradients: fewestGradients}
	if ms := p.Study.computeMs(); ms > 0 {
		f.Might = float64(p.Study.Workers) * length * 1000 / float64(ms)
	}
	var late, slow []*group
	for _, g := range p.Calm {
		if g.over(func(r *result) float64 { return float64(len(r.Accuracy)) }).Mid < fewestEvaluations*due {
			late = append(late, g)
		}
		if !math.IsInf(f.Might, 0) && g.Computed().Mid < fewestGradients*f.Might {
			slow = append(slow, g)
		}
	}
	f.Late, f.Slow = p.names(late), p.names(slow)
	found, err := findings.Of("doubts", f)
	return append(doubts, found...), err
}
