package main

import (
	"math"
	"strconv"

	"github.com/perdure/perdure/internal/run/study"
)

// group is one cell's trials, with failures or without.
type group struct {
	cell
	Killed bool
	Trials []*result // those that did not fail
	Failed []*result
}

// over is what a quantity was in the trials in which it is known.
func (g *group) over(of func(*result) float64) study.Spread {
	if g == nil {
		return study.SpreadOf(nil)
	}
	var values []float64
	for _, r := range g.Trials {
		if v := of(r); !math.IsNaN(v) {
			values = append(values, v)
		}
	}
	return study.SpreadOf(values)
}

// spreads that the page shows, in the order of its columns.

func (g *group) Last() study.Spread { return g.over(func(r *result) float64 { return r.Last }) }

func (g *group) Computed() study.Spread { return g.over(func(r *result) float64 { return r.Computed }) }
func (g *group) Kept() study.Spread     { return g.over(func(r *result) float64 { return r.Kept }) }
func (g *group) Redone() study.Spread   { return g.over(func(r *result) float64 { return r.Redone }) }
func (g *group) Lost() study.Spread     { return g.over(func(r *result) float64 { return r.Lost }) }

// Reach is when an accuracy was reached.
func (g *group) Reach(goal float64) study.Spread {
	return g.over(func(r *result) float64 { return r.reach(goal) })
}

// Before, Next, Change (from Before to Next), Back and Gap are about the i-th outage.
func (g *group) Before(i int) study.Spread {
	return g.over(func(r *result) float64 { v, _, _ := r.around(r.Outages[i]); return v })
}

func (g *group) Next(i int) study.Spread {
	return g.over(func(r *result) float64 { _, v, _ := r.around(r.Outages[i]); return v })
}

func (g *group) Change(i int) study.Spread {
	return g.over(func(r *result) float64 { before, next, _ := r.around(r.Outages[i]); return next - before })
}

func (g *group) Back(i int) study.Spread {
	return g.over(func(r *result) float64 { _, _, v := r.around(r.Outages[i]); return v })
}

func (g *group) Gap(i int) study.Spread {
	return g.over(func(r *result) float64 { return r.gap(r.Outages[i]) })
}

// CPU, Memory, Network and Stored are of all roles together: s, and 10⁶ bytes.
func (g *group) CPU() study.Spread {
	return g.over(func(r *result) float64 { return r.total(func(u role) float64 { return u.CPU }) })
}

func (g *group) Memory() study.Spread {
	return g.over(func(r *result) float64 { return r.total(func(u role) float64 { return u.Peak }) })
}

func (g *group) Network() study.Spread {
	return g.over(func(r *result) float64 { return r.total(role.network) })
}

func (g *group) Stored() study.Spread {
	return g.over(func(r *result) float64 { return r.total(func(u role) float64 { return orNaN(u.Stored) }) })
}

// Holders is the memory of those that hold the model: servers, and the update log.
func (g *group) Holders() study.Spread {
	return g.over(func(r *result) float64 {
		server, has := r.Roles["server"]
		if !has {
			return math.NaN()
		}
		return server.Peak + r.Roles["log"].Peak
	})
}

func orNaN(v *float64) float64 {
	if v == nil {
		return math.NaN()
	}
	return *v
}

// roleNames are the roles that have a part in costs, in the order of the bars.
var roleNames = []string{"worker", "server", "log", "coordinator"}

// part is the median of what one role used.
func (g *group) part(name string, of func(role) float64) float64 {
	v := g.over(func(r *result) float64 {
		u, has := r.Roles[name]
		if !has {
			return 0
		}
		return of(u)
	}).Mid
	if math.IsNaN(v) {
		return 0
	}
	return v
}

// curvePoint is what the trials had at one of the regular times.
type curvePoint struct {
	Seconds float64
	Value   study.Spread
}

// curve puts the trials' evaluations together: those at the same multiple of the
// time between two, to the nearest. Where no trial has one there is none.
func (g *group) curve() (curve []curvePoint) {
	if g == nil || len(g.Trials) == 0 {
		return nil
	}
	every := g.Trials[0].Eval
	at := map[int][]float64{}
	last := 0
	for _, r := range g.Trials {
		newest := map[int]float64{} // one for each trial
		for _, p := range r.Accuracy {
			newest[int(math.Round(p.Seconds/every))] = p.Value
		}
		for k, v := range newest {
			at[k] = append(at[k], v)
			last = max(last, k)
		}
	}
	for k := range last + 1 {
		if len(at[k]) > 0 {
			curve = append(curve, curvePoint{float64(k) * every, study.SpreadOf(at[k])})
		}
	}
	return curve
}

// accuracy writes accuracies, or differences of them.
func accuracy(v study.Spread) string {
	return v.Text(func(v float64) string {
		if math.IsNaN(v) {
			return study.Short(v)
		}
		return strconv.FormatFloat(v, 'f', 3, 64)
	})
}

// below reports whether all of a is below all of b: trials tell them apart.
func below(a, b study.Spread) bool { return a.High < b.Low }
