package main

import (
	"math"
	"slices"
	"strconv"

	"github.com/perdure/perdure/internal/run/plot"
	"github.com/perdure/perdure/internal/run/rundir"
)

// A measure is a number of a run; NaN: the run does not know it.
type measure func(*trial) float64

// figure is a figure of the study.
func figure(name string) measure {
	return func(t *trial) float64 {
		if v, known := t.figures[name]; known {
			return v
		}
		return math.NaN()
	}
}

var (
	accuracy, loss, rmse      = figure("accuracy"), figure("loss"), figure("rmse")
	seconds, clocks           = figure("seconds"), figure("clocks")
	faults, lost              = figure("faults"), figure("lost")
	redone, away              = figure("redone"), figure("away")
	cost, costSpot, costMonth = figure("cost"), figure("cost-spot"), figure("cost-month")
)

// Parts of the workers' time.
var (
	computing = split(func(s *rundir.TimeSplit) float64 { return s.Compute })
	waiting   = split(func(s *rundir.TimeSplit) float64 { return s.Staleness })
	moving    = split(func(s *rundir.TimeSplit) float64 { return s.Communication })
)

func split(part func(*rundir.TimeSplit) float64) measure {
	return func(t *trial) float64 {
		if t.summary.TimeSplit == nil {
			return math.NaN()
		}
		return part(t.summary.TimeSplit)
	}
}

// Counts of updates.
var (
	beyondBound  = count(func(s *rundir.Summary) *int64 { return s.BeyondBound })
	missingBound = count(func(s *rundir.Summary) *int64 { return s.MissingBound })
	applied      = count(func(s *rundir.Summary) *int64 { return s.UpdatesApplied })
)

func count(of func(*rundir.Summary) *int64) measure {
	return func(t *trial) float64 {
		if n := of(&t.summary); n != nil {
			return float64(*n)
		}
		return math.NaN()
	}
}

// What processes used: all of them together, and the memory of those of one role.
var (
	cpuSeconds = used(func(u *rundir.RoleUsage) *float64 { return &u.CPUSeconds })
	mbStored   = used(func(u *rundir.RoleUsage) *float64 { return u.MBStored })
	serverMB   = memory("server")
	logMB      = memory("log")
)

func used(of func(*rundir.RoleUsage) *float64) measure {
	return func(t *trial) float64 {
		sum, any := 0.0, false
		for _, u := range t.summary.Usage {
			if v := of(&u); v != nil {
				sum, any = sum+*v, true
			}
		}
		if !any {
			return math.NaN()
		}
		return sum
	}
}

func memory(role string) measure {
	return func(t *trial) float64 {
		if u, known := t.summary.Usage[role]; known {
			return u.MBPeak
		}
		return math.NaN()
	}
}

// over is one measure divided by another.
func over(a, b measure) measure { return func(t *trial) float64 { return a(t) / b(t) } }

// histogram is what one comes to.
type histogram struct{ n, mean, deviation, lowest, highest float64 }

// differential and missing are histograms over reads of rows, by clocks and by updates.
func differential(part func(histogram) float64) measure {
	return func(t *trial) float64 { return part(histogramOf(t.summary.ClockDifferential)) }
}

func missing(part func(histogram) float64) measure {
	return func(t *trial) float64 { return part(histogramOf(t.summary.MissingUpdates)) }
}

func mean(h histogram) float64      { return h.mean }
func deviation(h histogram) float64 { return h.deviation }
func lowest(h histogram) float64    { return h.lowest }
func highest(h histogram) float64   { return h.highest }

// differentialAt is the share of reads that have a clock differential.
func differentialAt(key string) measure {
	return func(t *trial) float64 {
		h := t.summary.ClockDifferential
		return float64(h[key]) / histogramOf(h).n
	}
}

func histogramOf(counts map[string]int64) histogram {
	h := histogram{lowest: math.Inf(1), highest: math.Inf(-1)}
	squares := 0.0
	for key, n := range counts {
		at, err := strconv.ParseFloat(key, 64)
		if err != nil || n == 0 {
			continue
		}
		h.n += float64(n)
		h.mean += at * float64(n)
		squares += at * at * float64(n)
		h.lowest, h.highest = min(h.lowest, at), max(h.highest, at)
	}
	if h.n == 0 {
		nan := math.NaN()
		return histogram{nan, nan, nan, nan, nan}
	}
	h.mean /= h.n
	h.deviation = math.Sqrt(max(0, squares/h.n-h.mean*h.mean))
	return h
}

// measured are what series.csv has of a column over seconds.
func (t *trial) measured(column string) plot.Points {
	p, _ := plot.Measured(t.series.Columns, t.series.Rows, column)
	return p
}

// valueAt returns a value by its index; NaN: there is none.
func valueAt(p []float64, i int) float64 {
	if i < 0 || i >= len(p) {
		return math.NaN()
	}
	return p[i]
}

// atEnd is the last value of a column.
func atEnd(column string) measure {
	return func(t *trial) float64 {
		p := t.measured(column)
		return valueAt(p.Y, len(p.Y)-1)
	}
}

// aboveLeast is the last value of a column less the least.
func aboveLeast(column string) measure {
	return func(t *trial) float64 {
		p := t.measured(column)
		if len(p.Y) == 0 {
			return math.NaN()
		}
		return p.Y[len(p.Y)-1] - slices.Min(p.Y)
	}
}

// around are the last value of a column that was measured by a time and the first one after it, and how far apart in
// time these are.
func (t *trial) around(column string, at float64) (before, next, gap float64) {
	p := t.measured(column)
	i := 0
	for i < len(p.X) && p.X[i] <= at {
		i++
	}
	return valueAt(p.Y, i-1), valueAt(p.Y, i), valueAt(p.X, i) - valueAt(p.X, i-1)
}

func before(column string, at float64) measure {
	return func(t *trial) float64 { v, _, _ := t.around(column, at); return v }
}

func next(column string, at float64) measure {
	return func(t *trial) float64 { _, v, _ := t.around(column, at); return v }
}

func gap(column string, at float64) measure {
	return func(t *trial) float64 { _, _, v := t.around(column, at); return v }
}

// change is the next value less the one before.
func change(column string, at float64) measure {
	return func(t *trial) float64 { v, w, _ := t.around(column, at); return w - v }
}

// changeBy is the first value of a column from a later time on, less the last that was measured by a time.
func changeBy(column string, later, at float64) measure {
	return func(t *trial) float64 {
		p := t.measured(column)
		v, _, _ := t.around(column, at)
		return valueAt(p.Y, slices.IndexFunc(p.X, func(x float64) bool { return x >= later })) - v
	}
}

// rise is the time in seconds at which a column first reached a value; ∞: it never did.
func rise(column string, value float64) measure {
	return func(t *trial) float64 {
		p := t.measured(column)
		if i := slices.IndexFunc(p.Y, func(y float64) bool { return y >= value }); i >= 0 {
			return p.X[i]
		}
		if len(p.Y) == 0 {
			return math.NaN()
		}
		return math.Inf(1)
	}
}

// costTo is the cost, at constant rate, until a column reached a value for the first time.
func costTo(by measure, column string, value float64) measure {
	return func(t *trial) float64 { return by(t) / seconds(t) * rise(column, value)(t) }
}

// regretOf is the excess of a column over a value, summed over the clocks; between two measurements it is interpolated.
func regretOf(column string, above float64) measure {
	return func(t *trial) float64 {
		at, in := slices.Index(t.series.Columns, "clock"), slices.Index(t.series.Columns, column)
		if at < 0 || in < 0 {
			return math.NaN()
		}
		sum, clock, was, n := 0.0, 0.0, 0.0, 0
		for _, row := range t.series.Rows {
			c, err := strconv.ParseFloat(row[at], 64)
			y, err2 := strconv.ParseFloat(row[in], 64)
			if err != nil || err2 != nil {
				continue
			}
			if y -= above; n == 0 {
				was = y // as it was from the beginning on
			}
			sum += (c - clock) * (y + was) / 2
			clock, was, n = c, y, n+1
		}
		if n < 2 {
			return math.NaN()
		}
		return sum
	}
}
