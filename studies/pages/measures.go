package main

import (
	"math"
	"slices"
	"strconv"

	"github.com/perdure/perdure/internal/run/plot"
	"github.com/perdure/perdure/internal/run/rundir"
)

// A measure computes a number from a trial. It is NaN if the run did not record it.
type measure func(*trial) float64

// figure returns the measure for a figure in study.json.
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

// Shares of the workers' time.
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

// Resource usage: CPU time and storage of all processes, and peak memory of all processes of one role.
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

// ratio divides one measure by another.
func ratio(a, b measure) measure { return func(t *trial) float64 { return a(t) / b(t) } }

// histogram summarizes a histogram.
type histogram struct{ n, mean, deviation, lowest, highest float64 }

// differential and missing summarize how stale reads were, in clocks and in missing updates.
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

// differentialAt returns the share of reads with the clock differential key.
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

// points returns the values of a column of series.csv over the time in seconds.
func (t *trial) points(column string) plot.Points {
	p, _ := plot.ReadPoints(t.series.Columns, t.series.Rows, column)
	return p
}

// valueAt returns p[i], or NaN if i is out of range.
func valueAt(p []float64, i int) float64 {
	if i < 0 || i >= len(p) {
		return math.NaN()
	}
	return p[i]
}

// aboveMin returns the last value of a column minus its minimum.
func aboveMin(column string) measure {
	return func(t *trial) float64 {
		p := t.points(column)
		if len(p.Y) == 0 {
			return math.NaN()
		}
		return p.Y[len(p.Y)-1] - slices.Min(p.Y)
	}
}

// around returns the last value of a column measured at or before a time, the first value after it, and the time
// between the two.
func (t *trial) around(column string, at float64) (before, next, gap float64) {
	p := t.points(column)
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

// change returns the first value of a column after a time minus the last one before it.
func change(column string, at float64) measure {
	return func(t *trial) float64 { v, w, _ := t.around(column, at); return w - v }
}

// changeBy returns the first value of a column at or after the time later, minus the last one measured at or before the
// time at.
func changeBy(column string, later, at float64) measure {
	return func(t *trial) float64 {
		p := t.points(column)
		v, _, _ := t.around(column, at)
		return valueAt(p.Y, slices.IndexFunc(p.X, func(x float64) bool { return x >= later })) - v
	}
}

// timeToReach returns the time in seconds at which a column first reached a value, or +Inf if it never did.
func timeToReach(column string, value float64) measure {
	return func(t *trial) float64 {
		p := t.points(column)
		if i := slices.IndexFunc(p.Y, func(y float64) bool { return y >= value }); i >= 0 {
			return p.X[i]
		}
		if len(p.Y) == 0 {
			return math.NaN()
		}
		return math.Inf(1)
	}
}

// costTo returns the cost incurred until the column first reaches the value, at a constant rate.
func costTo(by measure, column string, value float64) measure {
	return func(t *trial) float64 { return by(t) / seconds(t) * timeToReach(column, value)(t) }
}

// regretOf returns the excess of a column over a value, summed over the clocks with linear interpolation.
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
				was = y // extend the first measurement back to clock 0
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
