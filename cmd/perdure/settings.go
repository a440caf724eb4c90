package main

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/recovery"
	"github.com/perdure/perdure/internal/data/updatelog"
	"github.com/perdure/perdure/internal/run/rundir"
	"github.com/perdure/perdure/workload"
)

// retired are keys that older versions wrote into run.json, and that mean nothing any more.
var retired = []string{"params.Consistency", "params.Rate", "params.Schedule", "params.StepEvery", "params.StepFactor"}

// readSettings reads the run.json of a run.
func readSettings(path string) (s settings, err error) {
	s.CacheMB, s.RetainMB = defaultCacheMB, defaultRetainMB // of runs that do not say
	s.folder = filepath.Dir(path)
	return s, rundir.ReadRun(path, &s, retired...)
}

// readToRun reads a run.json of which a new run is to be made, and refuses one that no run
// can have written: people may have changed it. What is wrong is told with the file's name and
// the key's.
func readToRun(path string) (s settings, err error) {
	if s, err = readSettings(path); err != nil {
		return s, err
	}
	if err := s.odd(); err != nil {
		return s, fmt.Errorf("%w: %s: %w", perdure.ErrUsage, path, err)
	}
	return s, nil
}

// odd says what no run can have, by the key of run.json. What the workload and its data
// have to say comes later, when they are opened.
func (s *settings) odd() error {
	for _, n := range []struct {
		key                string
		value, least, most int64
	}{
		{"job.clocks", int64(s.Job.Clocks), 1, math.MaxInt32},
		{"job.suspend_ms", s.Job.SuspendMs, 0, math.MaxInt64 / 1_000_000},
		{"job.outage_bytes", s.Job.OutageBytes, 0, maxOutageMB << 20},
		{"eval_every", int64(s.EvalEvery), 0, math.MaxInt32},
		{"eval_ms", s.EvalMs, 0, math.MaxInt64 / 1_000_000},
		{"compute_ms", int64(s.ComputeMs), 0, maxComputeMs},
		{"retain_mb", int64(s.RetainMB), 1, maxCacheMB},
		{"cache_mb", int64(s.CacheMB), 1, maxCacheMB},
		{"generation", int64(min(s.Generation, math.MaxInt64)), 0, math.MaxInt32},
		{"cut", int64(s.Cut), 0, math.MaxInt32},
	} {
		if n.value < n.least || n.value > n.most {
			return fmt.Errorf("%s is %d; it must be %d to %d", n.key, n.value, n.least, n.most)
		}
	}
	for _, part := range []struct {
		key   string
		check func() error
	}{
		{"job", s.Job.Validate},
		{"", s.oddParams},
		{"until", s.oddGoal},
		{"zones", s.oddZones},
		{"resumed", s.oddResumed},
		{"", s.oddLog},
		{"scale", func() error { _, err := s.begin(); return err }},
		{"faults", func() error { _, err := s.faults(); return err }},
		{"delay, bandwidth", func() error { _, err := s.model(); return err }},
	} {
		switch err := part.check(); {
		case err != nil && part.key != "":
			return fmt.Errorf("%s: %w", part.key, err)
		case err != nil: // which names the key itself
			return err
		}
	}
	return nil
}

// oddParams: what is there twice must be the same.
func (s *settings) oddParams() error {
	switch {
	case s.Params.Seed != s.Job.Seed:
		return fmt.Errorf("params.Seed is %d, and job.seed %d; they are one", s.Params.Seed, s.Job.Seed)
	case s.Params.Slots != s.Job.Slots:
		return fmt.Errorf("params.Slots is %d, and job.slots %d; they are one", s.Params.Slots, s.Job.Slots)
	case s.Job.Workload == ownWorkload:
		return nil
	}
	if err := s.Params.Rule.Validate(); err != nil {
		return fmt.Errorf("params.Rule: %w", err)
	}
	return nil
}

func (s *settings) oddGoal() error {
	switch g := s.Until; {
	case g == goal{}:
		return nil
	case g.Metric == overTime && g.Value > 0 && g.Value < math.MaxInt64/1e9:
		return nil
	case g.Metric == overTime:
		return fmt.Errorf("value is %v; it must be a number of seconds above 0", g.Value)
	}
	_, err := parseGoal(s.Until.Metric+":"+strconv.FormatFloat(s.Until.Value, 'g', -1, 64), s.Job.Workload)
	return err
}

func (s *settings) oddZones() error {
	if len(s.Zones) > s.Job.Servers {
		return fmt.Errorf("%d of them for %d servers", len(s.Zones), s.Job.Servers)
	}
	for _, z := range s.Zones {
		if z == "" {
			continue
		}
		if err := checkZone(z); err != nil {
			return err
		}
	}
	return nil
}

// oddResumed: only a run that went on from another begins later than at clock 0.
func (s *settings) oddResumed() error {
	if s.Resumed == "" && (s.Generation != 0 || s.Cut != 0 || len(s.Tables) > 0 || len(s.Slots) > 0) {
		return errors.New("it is not there, but generation, cut, tables or slots are, which only a run has that went on from another")
	}
	for _, t := range s.Tables {
		if err := t.Validate(s.Job.Shards); err != nil {
			return fmt.Errorf("tables: %w", err)
		}
	}
	odd := func(span perdure.Span) bool {
		return span.From < 0 || span.Until < 0 || span.Until > 0 && span.Until < span.From
	}
	if i := slices.IndexFunc(s.Slots, odd); i >= 0 || len(s.Slots) > perdure.MaxSlots {
		return fmt.Errorf("slots: there are %d, and number %d takes part from clock %d to %d", len(s.Slots), i, s.Slots[max(i, 0)].From, s.Slots[max(i, 0)].Until)
	}
	return nil
}

func (s *settings) oddLog() error {
	l := s.Log
	if l == nil || !recovery.Of(s.Job.Recovery).Traits().Logged() {
		return nil
	}
	if err := l.checkSize(&s.Job); err != nil {
		return fmt.Errorf("log.mb: %w", err)
	}
	switch {
	case l.SnapshotMB < 1 || l.SnapshotMB > l.MB:
		return fmt.Errorf("log.snapshot_mb is %d; it must be 1 to %d", l.SnapshotMB, l.MB)
	case l.Sync != updatelog.SyncInterval && l.Sync != updatelog.SyncAlways:
		return fmt.Errorf("log.sync is %q; it must be interval or always", l.Sync)
	case l.Replicas < 0 || l.Replicas > mostReplicas:
		return fmt.Errorf("log.nats_replicas is %d; it must be 0 to %d", l.Replicas, mostReplicas)
	}
	return checkPair(l.Cert, l.Key)
}

// open opens the workload, and completes the settings with what it has to say: it refuses
// what cannot be trained. The seal is of what it then is.
func (s *settings) open() error {
	most := s.Params
	if _, most.Slots = s.slots(); most.Slots > s.Params.Slots { // there must be data for all
		if _, err := workload.New(s.Job.Workload, most); err != nil {
			return err
		}
	}
	w, err := workload.New(s.Job.Workload, s.Params)
	if err != nil {
		return err
	}
	s.trained = w.Describe()
	s.Params.Rule.Rate = s.trained.Rate // which it may have chosen
	if err := fitModels(&s.Job, w.Tables()); err != nil {
		return err
	}
	for _, t := range s.tables(w) {
		if err := t.Validate(s.Job.Shards); err != nil {
			return err
		}
	}
	s.Job.Seal, err = s.seal(w, w.Digest())
	return err
}

// tables are those that the job is to have for a workload.
func (s *settings) tables(w workload.Workload) []perdure.TableSpec {
	list := w.Tables()
	for i := range list {
		list[i].Consistency = cmp.Or(list[i].Consistency, s.Job.ConsistencyOf(list[i].Name))
	}
	return list
}
