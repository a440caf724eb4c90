package page

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/perdure/perdure/internal/run/curves"
	"github.com/perdure/perdure/internal/run/study"
)

// A measure is what a template asks of a run, in words:
//
//	at COLUMN T            what series.csv has of a column at T seconds, between two that were measured
//	end COLUMN             the last of it
//	least COLUMN           the least of it; most COLUMN: the most
//	regret COLUMN V        what it has above V, summed over the clocks
//	before COLUMN T        the last that was measured by T
//	next COLUMN T          the first that was measured after T
//	change COLUMN T        next less before
//	back COLUMN T          the first that was measured from T on
//	gap COLUMN T           seconds between before and next
//	rise COLUMN V          seconds until it was V or more for the first time; ∞: never
//	fall COLUMN V          likewise V or less
//	count COLUMN           how often it was measured
//	mean HISTOGRAM         of a histogram of summary.json, as clock_differential is one; also deviation, lowest
//	                       and highest
//	share HISTOGRAM KEY    the share that has a key
//	sum PATH KEY           of KEY over all that is at a place of summary.json
//	NAME                   a figure of the study (accuracy, lost, cost …), else a number of summary.json, a place
//	                       in it written with dots: usage.server.mb_peak, failures.0.detected_after_ms
//	root NAME              its square root
//	X + Y, X - Y           of measures
//	X * Y, X / Y           likewise, and before sums
//
// What a run does not know is NaN.
func (t *Trial) measure(words []string) (float64, error) {
	for _, ops := range []string{"+-", "*/"} {
		for i := len(words) - 2; i > 0; i-- { // the last one first, since a - b - c is (a - b) - c
			op := words[i]
			if len(op) != 1 || !strings.Contains(ops, op) {
				continue
			}
			a, err := t.measure(words[:i])
			if err != nil {
				return 0, err
			}
			b, err := t.measure(words[i+1:])
			return map[string]float64{"+": a + b, "-": a - b, "*": a * b, "/": a / b}[op], err
		}
	}
	switch {
	case len(words) == 3 && words[0] == "share":
		of, _ := lookUp(t.summary, words[1]).(map[string]any)
		n, _ := of[words[2]].(float64)
		return n / histogramOf(of).n, nil
	case len(words) == 3 && words[0] == "sum":
		return sumOf(lookUp(t.summary, words[1]), words[2]), nil
	case len(words) == 3:
		v, err := strconv.ParseFloat(words[2], 64)
		if err != nil {
			return 0, fmt.Errorf("the measure %q: %s is no number", strings.Join(words, " "), words[2])
		}
		return t.inTime(words[0], words[1], v)
	case len(words) == 2 && words[0] == "root":
		v, err := t.measure(words[1:])
		return math.Sqrt(v), err
	case len(words) == 2 && slices.Contains([]string{"mean", "deviation", "lowest", "highest"}, words[0]):
		h := histogramOf(lookUp(t.summary, words[1]))
		return map[string]float64{
			"mean": h.mean, "deviation": h.deviation, "lowest": h.lowest, "highest": h.highest,
		}[words[0]], nil
	case len(words) == 2:
		return t.inTime(words[0], words[1], math.NaN())
	case len(words) == 1:
		if v, known := t.figures[words[0]]; known {
			return v, nil
		}
		if v, err := strconv.ParseFloat(words[0], 64); err == nil {
			return v, nil
		}
		if v, is := lookUp(t.summary, words[0]).(float64); is {
			return v, nil
		}
		return math.NaN(), nil
	}
	return 0, fmt.Errorf("the measure %q is none; docs/guide/studies.md lists them", strings.Join(words, " "))
}

// inTime is a measure of a column of the series.
func (t *Trial) inTime(what, column string, v float64) (float64, error) {
	p, _ := curves.Measured(t.columns, t.rows, column)
	n := len(p.X)
	next := 0
	for next < n && p.X[next] <= v {
		next++
	}
	value := func(i int) float64 {
		if i < 0 || i >= n {
			return math.NaN()
		}
		return p.Y[i]
	}
	switch what {
	case "at":
		y, ok := p.At(v, true)
		if !ok {
			return math.NaN(), nil
		}
		return y, nil
	case "end":
		return value(n - 1), nil
	case "least", "most":
		if n == 0 {
			return math.NaN(), nil
		}
		if what == "least" {
			return slices.Min(p.Y), nil
		}
		return slices.Max(p.Y), nil
	case "regret":
		return t.regret(column, v), nil
	case "count":
		return float64(n), nil
	case "before":
		return value(next - 1), nil
	case "next":
		return value(next), nil
	case "change":
		return value(next) - value(next-1), nil
	case "back":
		for i := range p.X {
			if p.X[i] >= v {
				return p.Y[i], nil
			}
		}
		return math.NaN(), nil
	case "gap":
		if next == 0 || next == n {
			return math.NaN(), nil
		}
		return p.X[next] - p.X[next-1], nil
	case "rise", "fall":
		for i, y := range p.Y {
			if what == "rise" && y >= v || what == "fall" && y <= v {
				return p.X[i], nil
			}
		}
		if n == 0 {
			return math.NaN(), nil
		}
		return math.Inf(1), nil
	}
	return 0, fmt.Errorf("the measure %q is none; docs/guide/studies.md lists them", what)
}

// lookUp finds a place in what JSON has; nil: it is not there.
func lookUp(v any, path string) any {
	for word := range strings.SplitSeq(path, ".") {
		switch of := v.(type) {
		case map[string]any:
			v = of[word]
		case []any:
			i, err := strconv.Atoi(word)
			if err != nil || i < 0 || i >= len(of) {
				return nil
			}
			v = of[i]
		default:
			return nil
		}
	}
	return v
}

// sumOf sums a key over the parts of an object or a list.
func sumOf(v any, key string) float64 {
	sum, any_ := 0.0, false
	add := func(part any) {
		if n, is := lookUp(part, key).(float64); is {
			sum, any_ = sum+n, true
		}
	}
	switch of := v.(type) {
	case map[string]any:
		for _, part := range of {
			add(part)
		}
	case []any:
		for _, part := range of {
			add(part)
		}
	}
	if !any_ {
		return math.NaN()
	}
	return sum
}

// regret is what a column has above a value, summed over the clocks, between two that were measured in proportion.
func (t *Trial) regret(column string, above float64) (sum float64) {
	at, in := slices.Index(t.columns, "clock"), slices.Index(t.columns, column)
	if at < 0 || in < 0 {
		return math.NaN()
	}
	clock, was, n := 0.0, 0.0, 0
	for _, row := range t.rows {
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

// histogram is what one comes to.
type histogram struct{ n, mean, deviation, lowest, highest float64 }

func histogramOf(v any) histogram {
	of, _ := v.(map[string]any)
	h := histogram{lowest: math.Inf(1), highest: math.Inf(-1)}
	squares := 0.0
	for key, n := range of {
		at, err := strconv.ParseFloat(key, 64)
		count, is := n.(float64)
		if err != nil || !is || count == 0 {
			continue
		}
		h.n += count
		h.mean += at * count
		squares += at * at * count
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

// spread is what a measure was in the trials of a cell that know it.
func (c *Cell) spread(measure string) (study.Spread, error) {
	var values []float64
	if c != nil {
		for _, t := range c.Trials {
			v, err := t.measure(strings.Fields(measure))
			if err != nil {
				return study.Spread{}, err
			}
			if !math.IsNaN(v) {
				values = append(values, v)
			}
		}
	}
	return study.SpreadOf(values), nil
}
