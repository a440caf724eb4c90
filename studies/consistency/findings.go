package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/perdure/perdure/internal/run/study"
)

// This file turns numbers into sentences. Each says what was found, whichever
// way it came out, and what the paper (Dai et al., AAAI 2015) has beside it.

// What the paper reports.
const (
	paperAtMinus1, paperAt0           = .43, .30 // essp's share of reads at these differentials
	paperComm, paperSSPLow, paperHigh = .04, .17, .26
)

// ReadsFound is about the clock differentials.
func (p *page) ReadsFound() (found []string) {
	byName := map[string]readRow{}
	var older, wider, narrower, newer []string
	atMinus1, at0 := []float64{}, []float64{}
	for _, r := range p.Reads {
		byName[r.Model] = r
		if s := staleness(r.Model); s >= 0 && r.Oldest < -s-1 {
			older = append(older, r.Model)
		}
		if kind(r.Model) == "essp" && staleness(r.Model) > 0 {
			atMinus1, at0 = append(atMinus1, r.Shares[-1]), append(at0, r.Shares[0])
		}
	}
	if bsp, has := byName["bsp"]; has && bsp.Shares[-1] == 1 {
		found = append(found, "Under bsp every read has a differential of −1: all updates of the clocks before, none later. So it is in the paper.")
	} else if has {
		found = append(found, fmt.Sprintf("Under bsp only %s of the reads have a differential of −1, which must not be: look for a fault before believing the rest.", study.Percent0(bsp.Shares[-1])))
	}
	if len(older) == 0 {
		found = append(found, "No read under ssp or essp was older than its bound, −s − 1.")
	} else {
		found = append(found, "Reads were older than their bound, −s − 1, under "+strings.Join(older, ", ")+", which must not be.")
	}
	found = append(found, p.missingFound()...)
	for _, r := range p.Reads {
		e, has := byName[strings.Replace(r.Model, "ssp", "essp", 1)]
		if kind(r.Model) != "ssp" || !has || staleness(r.Model) == 0 {
			continue
		}
		if e.Mean > r.Mean {
			newer = append(newer, fmt.Sprint(staleness(r.Model)))
		}
		if e.Deviation < r.Deviation {
			narrower = append(narrower, fmt.Sprint(staleness(r.Model)))
		} else {
			wider = append(wider, fmt.Sprint(staleness(r.Model)))
		}
	}
	if len(narrower)+len(wider) == 0 {
		return found
	}
	switch tried := len(narrower) + len(wider); len(newer) {
	case tried:
		found = append(found, "At every s above 0 the reads of essp are newer in the mean than those of ssp.")
	case 0:
		found = append(found, "At no s above 0 are the reads of essp newer in the mean than those of ssp.")
	default:
		found = append(found, fmt.Sprintf("The reads of essp are newer in the mean than those of ssp at s = %s, not at the other s above 0.", strings.Join(newer, ", ")))
	}
	switch {
	case len(wider) == 0:
		found = append(found, "At every s above 0 the differentials of essp are closer together than those of ssp, as in the paper.")
	case len(narrower) == 0:
		found = append(found, "At no s are the differentials of essp closer together than those of ssp. In the paper they are at every s.")
	default:
		found = append(found, fmt.Sprintf("The differentials of essp are closer together than those of ssp at s = %s, and not at s = %s; in the paper they are at every s.",
			strings.Join(narrower, ", "), strings.Join(wider, ", ")))
	}
	m, z := study.SpreadOf(atMinus1), study.SpreadOf(at0)
	text := fmt.Sprintf("Over all s above 0, essp has %s to %s of its reads at −1 and %s to %s at 0; the paper has about %s and %s.",
		study.Percent0(m.Low), study.Percent0(m.High), study.Percent0(z.Low), study.Percent0(z.High), study.Percent0(paperAtMinus1), study.Percent0(paperAt0))
	if m.High < paperAtMinus1-.1 || m.Low > paperAtMinus1+.1 || z.High < paperAt0-.1 || z.Low > paperAt0+.1 {
		text += fmt.Sprintf(" How these differ depends on how evenly the workers go: here %d on one machine, disturbed by `%s`; there machines of a cluster, disturbed by themselves.", p.Study.Workers, p.Study.Jitter)
	}
	if p.Study.Workload == "mf" && m.High < paperAtMinus1 {
		text += " One cause may be that a clock of mf reads all its rows at its beginning, when what the others did in the clock before is just on its way: that is −2. The paper's clocks read as they go, and see it arrive."
	}
	return append(found, text)
}

// missingFound holds what reads lacked to the bound of the paper's theory.
func (p *page) missingFound() []string {
	var beyond []string
	known := false
	for _, r := range p.Reads {
		if r.Missing != nil && r.MissingBound != nil {
			known = true
			if *r.Missing > *r.MissingBound {
				beyond = append(beyond, r.Model)
			}
		}
	}
	switch {
	case !known:
		return nil
	case len(beyond) > 0:
		return []string{"Reads lacked more updates than P(2s + 1) under " + strings.Join(beyond, ", ") + ", which must not be."}
	}
	return []string{"No read lacked more updates than the P(2s + 1) of the paper's theory."}
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

// Found is about how training went at one fraction.
func (t trained) Found() []string {
	bad := map[string][]string{} // by kind: the s at which some run did not just fall
	tried := map[string]int{}
	for _, m := range t.Models {
		tried[kind(m)]++
		if unusual(t.Outcomes[m]) != "" {
			bad[kind(m)] = append(bad[kind(m)], fmt.Sprint(staleness(m)))
		}
	}
	var found []string
	if len(bad["bsp"]) > 0 {
		found = append(found, "Not every bsp run falls here. If it did in the search for the step size, this must not be: under bsp both are the same function of the seed.")
	}
	if tried["ssp"] == 0 || tried["essp"] == 0 {
		return found
	}
	found = append(found, t.endsFound()...)
	ssp, essp := strings.Join(bad["ssp"], ", "), strings.Join(bad["essp"], ", ")
	switch {
	case ssp == "" && essp == "":
		found = append(found, "Every run falls, at every s, under ssp and under essp. In the paper ssp does not at large s (10% of the data in a clock: s = 5 turns up, s = 10 diverges; 1%: s = 100 diverges). It has 64 machines: the most updates that a read may lack, P(2s + 1), grows with their number P.")
	case essp == "":
		found = append(found, "ssp does not just fall at s = "+ssp+"; essp falls at every s. So it is in the paper.")
	case ssp == "":
		found = append(found, "essp does not just fall at s = "+essp+", while ssp falls at every s: the contrary of the paper. "+lateAnyway)
	case len(bad["essp"]) < len(bad["ssp"]) && subset(bad["essp"], bad["ssp"]):
		found = append(found, "ssp does not just fall at s = "+ssp+", essp only at s = "+essp+". The paper's direction, but there essp falls at every s that was tried. "+lateAnyway)
	default:
		found = append(found, "ssp does not just fall at s = "+ssp+", essp at s = "+essp+". In the paper essp falls at every s that was tried. "+lateAnyway)
	}
	return found
}

// endsFound holds the losses at the largest staleness beside each other.
func (t trained) endsFound() []string {
	list := stalenesses(t.Models)
	if len(list) == 0 {
		return nil
	}
	s := list[len(list)-1]
	ssp, essp, bsp := t.Last["ssp:"+s], t.Last["essp:"+s], t.Last["bsp"]
	if !(ssp.High-ssp.Low >= 0 && essp.High-essp.Low >= 0) { // some run has none
		return nil
	}
	return []string{fmt.Sprintf("At s = %s the loss at the end is %s under ssp and %s under essp, beside %s under bsp. %s", s, ssp, essp, bsp, apart(ssp, essp))}
}

const lateAnyway = "One cause may be the straggler: if one worker is always the slowest, its updates come up to s clocks late under both, and pushing them cannot help."

func subset(a, b []string) bool {
	return !slices.ContainsFunc(a, func(s string) bool { return !slices.Contains(b, s) })
}

// SplitFound is about what the time goes to.
func (p *page) SplitFound() (found []string) {
	for i, name := range []string{fmt.Sprintf("With clocks of %d ms at least", p.Study.ComputeMs), "As fast as the cores go"} {
		var ssp, essp []float64
		for _, b := range p.SplitOf[i] {
			switch kind(b.Model) {
			case "ssp":
				ssp = append(ssp, b.Share[2])
			case "essp":
				essp = append(essp, b.Share[2])
			}
		}
		if len(ssp) == 0 || len(essp) == 0 {
			continue
		}
		a, b := study.SpreadOf(ssp), study.SpreadOf(essp)
		relation := "The two overlap, unlike in the paper."
		switch {
		case b.High < a.Low:
			relation = "essp has less of it, as in the paper."
		case b.Low > a.High:
			relation = "essp has more of it, the contrary of the paper."
		}
		found = append(found, fmt.Sprintf("%s, communication takes %s to %s of the time under ssp and %s to %s under essp, over all s. %s",
			name, percent1(a.Low), percent1(a.High), percent1(b.Low), percent1(b.High), relation))
	}
	if len(found) > 0 {
		found = append(found, fmt.Sprintf("The paper has %s to %s under ssp and about %s under essp, for LDA on 8 machines with a network between them. Here nothing leaves the machine, and ssp asks for rows ahead.",
			study.Percent0(paperSSPLow), study.Percent0(paperHigh), study.Percent0(paperComm)))
	}
	return found
}

func percent1(v float64) string { return fmt.Sprintf("%.1f%%", 100*v) }

// RaceFound is about the time to one loss.
func (p *page) RaceFound() (found []string) {
	reached := map[string]race{}
	var not []string
	var best race
	for _, r := range p.Races {
		if r.Reached < r.Runs {
			not = append(not, fmt.Sprintf("%s (%d of %d)", r.Model, r.Reached, r.Runs))
		}
		if r.Reached < r.Runs {
			continue
		}
		reached[r.Model] = r
		if best.Model == "" || r.Seconds.Mid < best.Seconds.Mid {
			best = r
		}
	}
	if len(not) > 0 {
		found = append(found, "Not every run reached the loss: "+strings.Join(not, ", ")+" did. One that did not counts as if it took for ever.")
	}
	if bsp, has := reached["bsp"]; has && best.Model != "bsp" {
		found = append(found, fmt.Sprintf("%s is first, in %s s against %s s of bsp. %s", best.Model, best.Seconds, bsp.Seconds, apart(best.Seconds, bsp.Seconds)))
	} else if has {
		found = append(found, "bsp is first: no other model gains from reading older rows here.")
	}
	beside, has := reached["essp:3"]
	if !has {
		return found
	}
	for _, r := range p.Races {
		if kind(r.Model) == "vap" && r.Reached == r.Runs {
			found = append(found, fmt.Sprintf("%s takes %.2f times the seconds of essp:3, and %.2f times its clocks. %s",
				r.Model, r.Seconds.Mid/beside.Seconds.Mid, r.Clocks.Mid/beside.Clocks.Mid, apart(r.Seconds, beside.Seconds)))
		}
	}
	return found
}

// apart says whether the seeds tell two settings apart.
func apart(a, b study.Spread) string {
	if a.High < b.Low || b.High < a.Low {
		return "The ranges of the seeds do not overlap."
	}
	return "The ranges of the seeds overlap: that is no clear difference."
}
