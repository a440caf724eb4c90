package main

import (
	"bufio"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/perdure/perdure/internal/run/study"
)

// How a run ended.
const (
	falls    = "falls"       // it goes down, and stays there
	swings   = "swings"      // it ends at its least loss, or nearly, but was swinging times above it before
	rises    = "turns up"    // it ends above rising times its least loss
	diverged = "diverges"    // a loss or an update was no finite number, or it ends above its first loss
	timedOut = "is too slow" // it was ended
	ran      = "ran"         // its losses were not looked at
)

// rising is how far a run must end above its least loss to count as rising. It
// ends where the median of its last evaluations is: a single one may be high or low
// where the loss swings.
const (
	rising   = 1.05
	swinging = 1.1 // times the least loss before: the loss swings
	lastFew  = evaluations / 10
)

// endFile says why a run has no summary: its first line is how it ended.
const endFile = "end.txt"

// point is one evaluation of a run.
type point struct {
	Clock         int
	Seconds, Loss float64
}

// result is what a run's folder says.
type result struct {
	run
	Program      string // the version of perdure that ran it
	Outcome      string
	Cut          bool    // it has no summary, see endFile
	Seconds      float64 // from the first clock's beginning to the last one's end
	Column       string  // that the loss is from; "": none
	Points       []point // with finite losses only
	Differential map[int]int64
	Split        split    // of all workers together; zero: not known
	SplitWorkers []split  // and of each
	Missing      *float64 // most updates that a read lacked
	MissingBound *float64 // and how many it might have lacked
}

// last is where the run ended, see rising; NaN where it has no finite losses up
// to its end.
func (r *result) last() float64 {
	if r.Cut || !complete(r.Points, r.Clocks) {
		return math.NaN()
	}
	return endOf(r.Points)
}

func endOf(points []point) float64 {
	var losses []float64
	for _, p := range points[max(0, len(points)-lastFew):] {
		losses = append(losses, p.Loss)
	}
	return study.SpreadOf(losses).Mid
}

// complete reports whether the points go on to the run's end. The last evaluation
// may be a little before it; one that is missing was not finite.
func complete(points []point, clocks int) bool {
	return len(points) > 0 && points[len(points)-1].Clock >= clocks-2*max(1, clocks/evaluations)
}

// summary is what this study needs of summary.json. Other fields are left alone,
// those that an older perdure does not write are nil.
type summary struct {
	WallSeconds  float64       `json:"wall_seconds"`
	Differential map[int]int64 `json:"clock_differential"`
	TimeSplit    struct {
		Compute       float64 `json:"compute"`
		Staleness     float64 `json:"staleness"`
		Communication float64 `json:"communication"`
		Workers       []struct {
			Compute       float64 `json:"compute_s"`
			Staleness     float64 `json:"staleness_s"`
			Communication float64 `json:"communication_s"`
		} `json:"workers"`
	} `json:"time_split"`
	Missing      map[int]int64 `json:"missing_updates"`
	MissingBound *float64      `json:"missing_bound"`
}

// split is the shares of a time by what it went to, in the order of splitKinds.
type split [3]float64

func (s split) known() bool { return s != split{} }

// shares makes seconds into shares.
func (s split) shares() split {
	if all := s[0] + s[1] + s[2]; all > 0 {
		return split{s[0] / all, s[1] / all, s[2] / all}
	}
	return split{}
}

// readResult reads the folder of a run that has ended; os.ErrNotExist: it has not.
// The loss is from the first of columns that series.csv has values in.
func readResult(folder string, r run, columns []string) (*result, error) {
	res := &result{run: r}
	end, err := os.ReadFile(filepath.Join(folder, endFile))
	if errors.Is(err, os.ErrNotExist) {
		err = res.readSummary(filepath.Join(folder, "summary.json"))
		if err == nil {
			err = res.readEnd(filepath.Join(folder, "events.jsonl"))
		}
	}
	if err != nil {
		return nil, err
	}
	if res.Program, err = study.Version(folder); err != nil {
		return nil, err
	}
	if err := res.readSeries(filepath.Join(folder, "series.csv"), columns); err != nil &&
		!errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	if word, _, ended := strings.Cut(string(end), "\n"); ended {
		res.Outcome, res.Cut = word, true
		if n := len(res.Points); n > 0 {
			res.Seconds = res.Points[n-1].Seconds
		}
		return res, nil
	}
	if res.Outcome = ran; r.judged() {
		res.Outcome = outcome(res.Points, r.Clocks)
	}
	return res, nil
}

func (r *result) readSummary(file string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var s summary
	if err := json.Unmarshal(text, &s); err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	r.Seconds, r.Differential = s.WallSeconds, s.Differential
	r.MissingBound = s.MissingBound
	for n, reads := range s.Missing {
		if v := float64(n); reads > 0 && (r.Missing == nil || v > *r.Missing) {
			r.Missing = &v
		}
	}
	r.Split = split{s.TimeSplit.Compute, s.TimeSplit.Staleness, s.TimeSplit.Communication}
	for _, w := range s.TimeSplit.Workers {
		r.SplitWorkers = append(r.SplitWorkers, split{w.Compute, w.Staleness, w.Communication}.shares())
	}
	return nil
}

// readEnd takes the time of the last clock's end, without that of writing the model
// and of judging it. An older perdure does not tell it.
func (r *result) readEnd(file string) error {
	text, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	for line := range strings.Lines(string(text)) {
		var e struct {
			Kind    string  `json:"kind"`
			Seconds float64 `json:"seconds"`
		}
		if json.Unmarshal([]byte(line), &e) == nil && e.Kind == "complete" {
			r.Seconds = e.Seconds
		}
	}
	return nil
}

// readSeries takes the evaluations from series.csv, its columns by name.
func (r *result) readSeries(file string, columns []string) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	r.Column, r.Points, err = parseSeries(bufio.NewReader(f), columns)
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	return nil
}

// parseSeries returns the points of the first of columns that has any, one for a
// clock, in order of clocks, and that column's name. What is no finite number is
// left out. Where rows have test results, only those rows count: the others repeat
// what was reported before.
func parseSeries(in io.Reader, columns []string) (string, []point, error) {
	rows, err := csv.NewReader(in).ReadAll()
	if err != nil || len(rows) == 0 {
		return "", nil, err
	}
	at := func(name string) int { return slices.Index(rows[0], name) }
	seconds, clock := at("seconds"), at("clock")
	if seconds < 0 || clock < 0 {
		return "", nil, errors.New("no columns seconds and clock")
	}
	evaluated := slices.DeleteFunc(slices.Clone(rows[1:]), func(row []string) bool { return !hasTest(rows[0], row) })
	if len(evaluated) == 0 {
		evaluated = rows[1:]
	}
	for _, name := range columns {
		column := at(name)
		if column < 0 {
			continue
		}
		var points []point
		for _, row := range evaluated {
			loss, err := strconv.ParseFloat(row[column], 64)
			if err != nil || math.IsNaN(loss) || math.IsInf(loss, 0) {
				continue
			}
			p := point{Loss: loss}
			if p.Seconds, err = strconv.ParseFloat(row[seconds], 64); err != nil {
				return "", nil, err
			}
			if p.Clock, err = strconv.Atoi(row[clock]); err != nil {
				return "", nil, err
			}
			if n := len(points); n == 0 || points[n-1].Clock < p.Clock {
				points = append(points, p)
			}
		}
		if len(points) > 0 {
			return name, points, nil
		}
	}
	return "", nil, nil
}

// hasTest reports whether a row has a result of the test set.
func hasTest(header, row []string) bool {
	for i, name := range header {
		if strings.HasPrefix(name, "test_") && row[i] != "" {
			return true
		}
	}
	return false
}

// outcome says how a run ended that was to have a number of clocks.
func outcome(points []point, clocks int) string {
	if !complete(points, clocks) {
		return diverged
	}
	end, least, swung := endOf(points), math.Inf(1), false
	for _, p := range points {
		least = min(least, p.Loss)
		swung = swung || p.Loss > swinging*least
	}
	switch {
	case end > points[0].Loss:
		return diverged
	case end > rising*least:
		return rises
	case swung:
		return swings
	}
	return falls
}
