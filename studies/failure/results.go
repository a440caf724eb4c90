package main

import (
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
	"time"

	"github.com/perdure/perdure/internal/run/study"
)

// point is a value at a time, in s since the first clock began.
type point struct{ Seconds, Value float64 }

// role is what the processes of one role used.
type role struct {
	CPU     float64  `json:"cpu_seconds"`
	Peak    float64  `json:"mb_peak"`
	Written *float64 `json:"mb_written"`
	Stored  *float64 `json:"mb_stored"`
}

// network returns about how many bytes went over connections, in 10⁶: what was handed to
// the system by writes, but for what of it were files that went to storage.
func (u role) network() float64 { return max(0, orNaN(u.Written)-orNaN(u.Stored)) }

// outage is a time without a server, in s since the first clock began.
type outage struct{ From, To float64 }

// result is what a run's folder says.
type result struct {
	run
	Program   string // the version of perdure that ran it
	Failed    string // why it has no summary; "": it has
	Accuracy  []point
	Gradients []point // computed so far
	Outages   []outage
	Eval      float64 // s between two evaluations

	Last                  float64 // accuracy of the model that was exported; NaN: none
	Computed, Kept, Lost  float64 // gradients; kept: that the model contains
	Redone                float64 // clocks
	Serving               []float64
	Roles                 map[string]role
	BytesPushed, Received float64
}

// Cell is the setting that the run is of.
func (r *result) Cell() string { return r.cell.String() }

// line is what the screen says of it.
func (r *result) line() string {
	if r.Failed != "" {
		return fmt.Sprintf("%s  failed: %s", r.run, r.Failed)
	}
	return fmt.Sprintf("%s  accuracy %s, %s gradients", r.run, study.Short(r.Last), study.Short(r.Computed))
}

// summary is what this study needs of summary.json.
type summary struct {
	Shards   float64  `json:"shards"`
	Accuracy *float64 `json:"test_accuracy"`
	Sent     *float64 `json:"updates_sent"`
	Applied  *float64 `json:"updates_applied"`
	Lost     *float64 `json:"updates_lost"`
	Redone   *float64 `json:"clocks_redone"`
	Pushed   *float64 `json:"bytes_pushed"`
	Pulled   *float64 `json:"bytes_pulled"`
	Failures []struct {
		Kind    string   `json:"kind"`
		At      float64  `json:"at_seconds"`
		Serving *float64 `json:"serving_again_after_ms"`
	} `json:"failures"`
	Usage map[string]role `json:"usage"`
}

// read reads the folder of a run that has ended; os.ErrNotExist: it has not.
func (s settings) read(r run) (*result, error) {
	folder := s.folder(r)
	res := &result{run: r, Last: math.NaN(), Eval: s.scaled(s.Eval).Seconds()}
	end, err := os.ReadFile(filepath.Join(folder, endFile))
	if err == nil {
		res.Failed = strings.TrimSpace(string(end))
	} else if err := res.readSummary(filepath.Join(folder, "summary.json")); err != nil {
		return nil, err
	}
	if res.Program, err = study.Version(folder); err != nil {
		return nil, err
	}
	res.Outages = s.outages(res.Outages)
	file, err := os.Open(filepath.Join(folder, "series.csv"))
	if errors.Is(err, os.ErrNotExist) && res.Failed != "" {
		return res, nil
	}
	if err != nil {
		return nil, err
	}
	defer file.Close()
	if err := res.readSeries(file, s.Batch); err != nil {
		return nil, fmt.Errorf("%s: %w", file.Name(), err)
	}
	return res, nil
}

// outages are the times without a server: from when it was killed, or where none was,
// from when one is in the other runs.
func (s settings) outages(killed []outage) (all []outage) {
	for i, at := range s.Kills {
		from := s.scaled(at).Seconds()
		if i < len(killed) {
			from = killed[i].From
		}
		all = append(all, outage{from, from + s.scaled(s.Outage).Seconds()})
	}
	return all
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
	known := func(v *float64, unit float64) float64 {
		if v == nil || unit == 0 {
			return math.NaN()
		}
		return *v / unit
	}
	r.Last = known(s.Accuracy, 1)
	r.Computed, r.Kept, r.Lost = known(s.Sent, s.Shards), known(s.Applied, s.Shards), known(s.Lost, s.Shards)
	r.Redone, r.BytesPushed, r.Received = known(s.Redone, 1), known(s.Pushed, 1), known(s.Pulled, 1)
	r.Roles = s.Usage
	for _, f := range s.Failures {
		if f.Kind == "kill" {
			r.Outages = append(r.Outages, outage{From: f.At})
			r.Serving = append(r.Serving, known(f.Serving, 1000))
		}
	}
	return nil
}

// readSeries takes evaluations and gradients from series.csv, its columns by name.
func (r *result) readSeries(in io.Reader, batch int) error {
	rows, err := csv.NewReader(in).ReadAll()
	if err != nil || len(rows) == 0 {
		return err
	}
	column := func(name string) int { return slices.Index(rows[0], name) }
	seconds, accuracy, rate := column("seconds"), column("test_accuracy"), column("samples_per_second")
	if seconds < 0 || accuracy < 0 || rate < 0 {
		return errors.New("no columns seconds, test_accuracy and samples_per_second")
	}
	backlog := column("backlog") // before there was one, nobody looked
	samples, last := 0.0, 0.0
	for _, row := range rows[1:] {
		at, err := strconv.ParseFloat(row[seconds], 64)
		if err != nil {
			return err
		}
		// An evaluation whose rows lacked updates is of no state of the training.
		if v, err := strconv.ParseFloat(row[accuracy], 64); err == nil && !math.IsNaN(v) &&
			(backlog < 0 || row[backlog] != "1") {
			r.Accuracy = append(r.Accuracy, point{at, v})
		}
		if v, err := strconv.ParseFloat(row[rate], 64); err == nil && batch > 0 {
			samples, last = samples+v*max(0, at-last), at
			r.Gradients = append(r.Gradients, point{at, samples / float64(batch)})
		}
	}
	slices.SortStableFunc(r.Accuracy, bySeconds)
	return nil
}

func bySeconds(a, b point) int {
	return int(time.Duration((a.Seconds - b.Seconds) * float64(time.Second)))
}

// around returns the last accuracy before an outage began, the next one after that,
// and the first one after the outage's end; NaN: there is none. Rows that were read
// just after a kill may still be those of before: the next is a little later.
func (r *result) around(o outage) (before, next, back float64) {
	before, next, back = math.NaN(), math.NaN(), math.NaN()
	for _, p := range r.Accuracy {
		switch {
		case p.Seconds < o.From:
			before = p.Value
		case p.Seconds < o.From+r.Eval/10:
			continue
		case math.IsNaN(next):
			next = p.Value
		}
		if p.Seconds >= o.To && math.IsNaN(back) {
			back = p.Value
		}
	}
	return before, next, back
}

// gap is the longest time without an evaluation that lies in or across an outage.
func (r *result) gap(o outage) (longest float64) {
	for i := 1; i < len(r.Accuracy); i++ {
		a, b := r.Accuracy[i-1].Seconds, r.Accuracy[i].Seconds
		if b > o.From && a < o.To {
			longest = max(longest, b-a)
		}
	}
	return longest
}

// reach is when an evaluation first had an accuracy; +Inf: never.
func (r *result) reach(goal float64) float64 {
	i := slices.IndexFunc(r.Accuracy, func(p point) bool { return p.Value >= goal })
	if i < 0 {
		return math.Inf(1)
	}
	return r.Accuracy[i].Seconds
}

// total sums what all roles used; NaN where one is not known.
func (r *result) total(of func(role) float64) (sum float64) {
	if len(r.Roles) == 0 {
		return math.NaN()
	}
	for _, u := range r.Roles {
		sum += of(u)
	}
	return sum
}
