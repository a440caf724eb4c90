package settings

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/recovery"
	"github.com/perdure/perdure/internal/core/words"
	"github.com/perdure/perdure/internal/run/workload"
)

// odd says what no run can have, by the key of run.json. What the workload and its data
// have to say comes later, when they are opened.
func (s *Run) odd() error {
	for _, n := range []struct {
		key                string
		value, least, most int64
	}{
		{"job.clocks", int64(s.Job.Clocks), 1, math.MaxInt32},
		{"job.suspend_ms", s.Job.SuspendMs, 0, math.MaxInt64 / 1_000_000},
		{"checkpoints.max_failures", int64(s.Checkpoints.MaxFailures), 0, mostFailures},
		{"job.take_over_ms", s.Job.TakeOverMs, 0, math.MaxInt64 / 1_000_000},
		{"job.outage_bytes", s.Job.OutageBytes, 0, MaxOutageMB << 20},
		{"eval_every", int64(s.EvalEvery), 0, math.MaxInt32},
		{"eval_ms", s.EvalMs, 0, math.MaxInt64 / 1_000_000},
		{"compute_ms", int64(s.ComputeMs), 0, maxComputeMs},
		{"retain_mb", int64(s.RetainMB), 1, maxCacheMB},
		{"checkpoints.keep", int64(s.Checkpoints.Keep), 0, maxKept},
		{"cache_mb", int64(s.CacheMB), 1, maxCacheMB},
		{"generation", int64(min(s.Generation, math.MaxInt64)), 0, math.MaxInt32},
		{"cut", int64(s.Cut), 0, math.MaxInt32},
		{"checkpoints.past_clocks", s.Checkpoints.PastClocks, 0, math.MaxInt64},
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
		{"saved", s.oddSaved},
		{"checkpoints.init", func() error { return s.Checkpoints.Init.odd(&s.Job) }},
		{"checkpoints.store", s.oddStore},
		{"", s.oddLog},
		{"scale", func() error { _, err := s.Begin(); return err }},
		{"faults", func() error { _, err := s.ParseFaults(); return err }},
		{"delay, bandwidth", func() error { _, err := s.Link(); return err }},
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
func (s *Run) oddParams() error {
	switch {
	case s.Params.Seed != s.Job.Seed:
		return fmt.Errorf("params.Seed is %d, and job.seed %d; they are one", s.Params.Seed, s.Job.Seed)
	case s.Params.Slots != s.Job.Slots:
		return fmt.Errorf("params.Slots is %d, and job.slots %d; they are one", s.Params.Slots, s.Job.Slots)
	case s.Job.Workload == OwnWorkload:
		return nil
	}
	rule := s.Params.Rule
	if info, err := workload.Find(s.Job.Workload); err == nil && len(info.Rates) == 0 && rule.Rate == 0 {
		rule.Rate = 1 // it has none: the workload says whether it must have one
	}
	if err := rule.Validate(); err != nil {
		return fmt.Errorf("params.Rule: %w", err)
	}
	return nil
}

func (s *Run) oddGoal() error {
	switch g := s.Until; {
	case g == Goal{}:
		return nil
	case g.Metric == OverTime && g.Value > 0 && g.Value < math.MaxInt64/1e9:
		return nil
	case g.Metric == OverTime:
		return fmt.Errorf("value is %v; it must be a number of seconds above 0", g.Value)
	}
	_, err := parseGoal(s.Until.Metric+":"+strconv.FormatFloat(s.Until.Value, 'g', -1, 64), s.Job.Workload)
	return err
}

func (s *Run) oddZones() error {
	if len(s.Zones) > s.Job.Servers {
		return fmt.Errorf("%d of them for %d servers", len(s.Zones), s.Job.Servers)
	}
	for _, z := range s.Zones {
		if z == "" {
			continue
		}
		if err := CheckZone(z); err != nil {
			return err
		}
	}
	return nil
}

// oddResumed: only a run that went on from another begins later than at clock 0.
func (s *Run) oddResumed() error {
	tables := len(s.Tables) > 0 && s.Checkpoints.Init == nil
	past := s.Checkpoints.PastClocks
	if s.Resumed == "" && (s.Generation != 0 || s.Cut != 0 || tables || len(s.Slots) > 0 || past != 0) {
		return errors.New("it is not there, but generation, cut, tables or slots are, which only a run has that " +
			"went on from another")
	}
	for _, t := range s.Tables {
		if err := t.Validate(s.Job.Shards); err != nil {
			return fmt.Errorf("tables: %w", err)
		}
	}
	odd := func(span words.Span) bool {
		return span.From < 0 || span.Until < 0 || span.Until > 0 && span.Until < span.From
	}
	if i := slices.IndexFunc(s.Slots, odd); i >= 0 || len(s.Slots) > perdure.MaxSlots {
		return fmt.Errorf("slots: there are %d, and number %d takes part from clock %d to %d", len(s.Slots), i,
			s.Slots[max(i, 0)].From, s.Slots[max(i, 0)].Until)
	}
	return nil
}

func (s *Run) oddLog() error {
	l := s.Log
	if l == nil || !recovery.Of(s.Job.Recovery).Traits().Logged() {
		return nil
	}
	if key, wrong := l.odd(&s.Job); key != "" {
		return fmt.Errorf("log.%s %s", key, wrong)
	}
	return CheckPair(l.Cert, l.Key)
}
