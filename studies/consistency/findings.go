package main

import (
	_ "embed"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/perdure/perdure/internal/run/study"
)

//go:embed findings.md.tmpl
var findingsTemplate string

// findings are the sentences about what was found. This file works out the facts that fill
// them.
var findings = study.ParseFindings(findingsTemplate)

// What the paper reports.
const (
	paperAtMinus1, paperAt0           = .43, .30 // essp's share of reads at these differentials
	paperComm, paperSSPLow, paperHigh = .04, .17, .26
)

// readFacts are about the clock differentials.
type readFacts struct {
	BSP        *bspFacts // nil: it was not run
	Older      []string  // models with reads that were older than their bound
	Beyond     []string  // models with reads that lacked more than the theory's bound
	BoundKnown bool      // of some model
	Pairs      *pairFacts
}

// bspFacts are about reads under bsp.
type bspFacts struct {
	AtMinus1    float64 // the share of reads with this differential
	AllAtMinus1 bool
}

// pairFacts hold ssp and essp of one staleness, above 0, beside each other.
type pairFacts struct {
	Tried                  int
	Newer, Narrower, Wider []string // staleness at which essp is newer, or closer together, or not

	AtMinus1, At0           study.Spread // essp's share of reads, over all staleness
	PaperAtMinus1, PaperAt0 float64
	Apart                   bool // far from the paper's
	Early                   bool // as clocks of mf are that read all their rows first
	Workers                 int
	Jitter                  string
}

// ReadsFound is about the clock differentials.
func (p *page) ReadsFound() ([]string, error) {
	byName := map[string]readRow{}
	var f readFacts
	for _, r := range p.Reads {
		byName[r.Model] = r
		if s := staleness(r.Model); s >= 0 && r.Oldest < -s-1 {
			f.Older = append(f.Older, r.Model)
		}
		if r.Missing != nil && r.MissingBound != nil {
			f.BoundKnown = true
			if *r.Missing > *r.MissingBound {
				f.Beyond = append(f.Beyond, r.Model)
			}
		}
	}
	if bsp, has := byName["bsp"]; has {
		f.BSP = &bspFacts{AtMinus1: bsp.Shares[-1], AllAtMinus1: bsp.Shares[-1] == 1}
	}
	f.Pairs = p.pairs(byName)
	return findings.Of("reads", f)
}

// pairs compares ssp and essp; nil: there is nothing to compare.
func (p *page) pairs(byName map[string]readRow) *pairFacts {
	f := pairFacts{PaperAtMinus1: paperAtMinus1, PaperAt0: paperAt0, Workers: p.Study.Workers, Jitter: p.Study.Jitter}
	var atMinus1, at0 []float64
	for _, r := range p.Reads {
		s := staleness(r.Model)
		if kind(r.Model) == "essp" && s > 0 {
			atMinus1, at0 = append(atMinus1, r.Shares[-1]), append(at0, r.Shares[0])
		}
		e, has := byName[strings.Replace(r.Model, "ssp", "essp", 1)]
		if kind(r.Model) != "ssp" || !has || s == 0 {
			continue
		}
		f.Tried++
		if e.Mean > r.Mean {
			f.Newer = append(f.Newer, fmt.Sprint(s))
		}
		if e.Deviation < r.Deviation {
			f.Narrower = append(f.Narrower, fmt.Sprint(s))
		} else {
			f.Wider = append(f.Wider, fmt.Sprint(s))
		}
	}
	if f.Tried == 0 {
		return nil
	}
	f.AtMinus1, f.At0 = study.SpreadOf(atMinus1), study.SpreadOf(at0)
	far := func(here study.Spread, paper float64) bool { return here.High < paper-.1 || here.Low > paper+.1 }
	f.Apart = far(f.AtMinus1, paperAtMinus1) || far(f.At0, paperAt0)
	f.Early = p.Study.Workload == "mf" && f.AtMinus1.High < paperAtMinus1
	return &f
}

// staleness is the S of ssp:S and essp:S, 0 of bsp; −1: the model has none.
func staleness(model string) int {
	k, s, _ := strings.Cut(model, ":")
	n, err := strconv.Atoi(s)
	switch {
	case k == "bsp":
		return 0
	case err != nil || k != "ssp" && k != "essp":
		return -1
	}
	return n
}

// trainingFacts are about how training went at one fraction of the data in a clock.
type trainingFacts struct {
	BSPFails  bool       // some run of bsp did not just fall
	Compared  bool       // both ssp and essp were tried
	SSP, ESSP []string   // staleness at which some run did not just fall
	Fewer     bool       // essp's are some of ssp's
	Ends      *endsFacts // nil: not every run has one
}

// endsFacts are the losses at the largest staleness.
type endsFacts struct {
	S              string
	SSP, ESSP, BSP study.Spread
	Apart          string
}

// Found is about how training went at one fraction.
func (t trained) Found() ([]string, error) {
	bad := map[string][]string{} // by kind: the s at which some run did not just fall
	tried := map[string]int{}
	for _, m := range t.Models {
		tried[kind(m)]++
		if unusual(t.Outcomes[m]) != "" {
			bad[kind(m)] = append(bad[kind(m)], fmt.Sprint(staleness(m)))
		}
	}
	f := trainingFacts{
		BSPFails: len(bad["bsp"]) > 0, Compared: tried["ssp"] > 0 && tried["essp"] > 0, SSP: bad["ssp"],
		ESSP:  bad["essp"],
		Fewer: len(bad["essp"]) < len(bad["ssp"]) && subset(bad["essp"], bad["ssp"]),
	}
	if f.Compared {
		f.Ends = t.ends()
	}
	return findings.Of("training", f)
}

// ends holds the losses at the largest staleness beside each other; nil: some run has none.
func (t trained) ends() *endsFacts {
	list := stalenesses(t.Models)
	if len(list) == 0 {
		return nil
	}
	s := list[len(list)-1]
	ssp, essp := t.Last["ssp:"+s], t.Last["essp:"+s]
	if !(ssp.High-ssp.Low >= 0 && essp.High-essp.Low >= 0) {
		return nil
	}
	return &endsFacts{S: s, SSP: ssp, ESSP: essp, BSP: t.Last["bsp"], Apart: apart(ssp, essp)}
}

func subset(a, b []string) bool {
	return !slices.ContainsFunc(a, func(s string) bool { return !slices.Contains(b, s) })
}

// splitFacts are about what the time goes to: communication's share of it, with clocks that
// compute for a while and with such that do not.
type splitFacts struct {
	Ways                           []splitWay
	PaperLow, PaperHigh, PaperESSP float64
}

type splitWay struct {
	Computes   bool
	ComputeMs  int
	SSP, ESSP  study.Spread
	Less, More bool // of essp, for certain
}

// SplitFound is about what the time goes to.
func (p *page) SplitFound() ([]string, error) {
	f := splitFacts{PaperLow: paperSSPLow, PaperHigh: paperHigh, PaperESSP: paperComm}
	for i, bars := range p.SplitOf {
		shares := map[string][]float64{} // by kind
		for _, b := range bars {
			shares[kind(b.Model)] = append(shares[kind(b.Model)], b.Share[2])
		}
		if len(shares["ssp"]) == 0 || len(shares["essp"]) == 0 {
			continue
		}
		w := splitWay{
			Computes: i == 0, ComputeMs: p.Study.ComputeMs, SSP: study.SpreadOf(shares["ssp"]),
			ESSP: study.SpreadOf(shares["essp"]),
		}
		w.Less, w.More = w.ESSP.High < w.SSP.Low, w.ESSP.Low > w.SSP.High
		f.Ways = append(f.Ways, w)
	}
	return findings.Of("split", f)
}

// raceFacts are about the time to one loss.
type raceFacts struct {
	Not       []string // models of which not every run reached it, and how many did
	BSP, Best *race    // Best is nil where it is bsp
	BestApart string
	Bounds    []boundFacts
}

// boundFacts compare a model that bounds values with essp:3.
type boundFacts struct {
	Model           string
	Seconds, Clocks float64 // of essp:3's
	Apart           string
}

// RaceFound is about the time to one loss.
func (p *page) RaceFound() ([]string, error) {
	reached := map[string]race{}
	var f raceFacts
	var best race
	for _, r := range p.Races {
		if r.Reached < r.Runs {
			f.Not = append(f.Not, fmt.Sprintf("%s (%d of %d)", r.Model, r.Reached, r.Runs))
			continue
		}
		reached[r.Model] = r
		if best.Model == "" || r.Seconds.Mid < best.Seconds.Mid {
			best = r
		}
	}
	if bsp, has := reached["bsp"]; has {
		f.BSP = &bsp
		if best.Model != "bsp" {
			f.Best, f.BestApart = &best, apart(best.Seconds, bsp.Seconds)
		}
	}
	beside, has := reached["essp:3"]
	for _, r := range p.Races {
		if has && kind(r.Model) == "vap" && r.Reached == r.Runs {
			f.Bounds = append(f.Bounds, boundFacts{
				Model: r.Model, Seconds: r.Seconds.Mid / beside.Seconds.Mid, Clocks: r.Clocks.Mid / beside.Clocks.Mid,
				Apart: apart(r.Seconds, beside.Seconds),
			})
		}
	}
	return findings.Of("race", f)
}

// apart says whether the seeds tell two settings apart.
func apart(a, b study.Spread) string {
	if a.High < b.Low || b.High < a.Low {
		return "The ranges of the seeds do not overlap."
	}
	return "The ranges of the seeds overlap: that is no clear difference."
}
