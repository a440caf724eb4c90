package settings

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/protocol"
	"github.com/perdure/perdure/internal/core/recovery"
	"github.com/perdure/perdure/internal/run/workload"
)

// validate returns an error, with the key in run.json, for a setting that no run can have. The workload and its data
// are validated later, when they are opened.
func (s *Run) validate() error {
	for _, n := range []struct {
		key                string
		value, least, most int64
	}{
		{"job.clocks", int64(s.Job.Clocks), 1, math.MaxInt32},
		{"job.suspend_ms", s.Job.SuspendMs, 0, math.MaxInt64 / 1_000_000},
		{"checkpoints.max_failures", int64(s.Checkpoints.MaxFailures), 0, maxFailures},
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
			return fmt.Errorf("%s is %d; it must be from %d to %d", n.key, n.value, n.least, n.most)
		}
	}
	for _, part := range []struct {
		key   string
		check func() error
	}{
		{"job", s.Job.Validate},
		{"", s.validateParams},
		{"until", s.validateGoal},
		{"zones", s.validateZones},
		{"resumed", s.validateResumed},
		{"saved", s.validateSaved},
		{"checkpoints.init", func() error { return s.Checkpoints.Init.validate(&s.Job) }},
		{"checkpoints.store", s.validateStore},
		{"", s.validateLog},
		{"scale", func() error { _, err := s.InitialState(); return err }},
		{"faults", func() error { _, err := s.ParseFaults(); return err }},
		{"delay, bandwidth", func() error { _, err := s.Link(); return err }},
	} {
		switch err := part.check(); {
		case err != nil && part.key != "":
			return fmt.Errorf("%s: %w", part.key, err)
		case err != nil: // the error itself names the key
			return err
		}
	}
	return nil
}

// validateParams checks that values stored twice are equal.
func (s *Run) validateParams() error {
	switch {
	case s.Params.Seed != s.Job.Seed:
		return fmt.Errorf("params.Seed is %d, but job.seed is %d; they must be equal", s.Params.Seed, s.Job.Seed)
	case s.Params.Slots != s.Job.Slots:
		return fmt.Errorf("params.Slots is %d, but job.slots is %d; they must be equal", s.Params.Slots, s.Job.Slots)
	case s.Job.Workload == OwnWorkload:
		return nil
	}
	rule := s.Params.Rule
	if info, err := workload.Find(s.Job.Workload); err == nil && len(info.Rates) == 0 && rule.Rate == 0 {
		rule.Rate = 1 // the workload has no default rate, and itself checks whether one is required
	}
	if err := rule.Validate(); err != nil {
		return fmt.Errorf("params.Rule: %w", err)
	}
	return nil
}

func (s *Run) validateGoal() error {
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

func (s *Run) validateZones() error {
	if len(s.Zones) > s.Job.Servers {
		return fmt.Errorf("%d zones for %d servers; give at most one per server", len(s.Zones), s.Job.Servers)
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

// validateResumed checks that only a resumed run starts later than at clock 0.
func (s *Run) validateResumed() error {
	tables := len(s.Tables) > 0 && s.Checkpoints.Init == nil
	past := s.Checkpoints.PastClocks
	if s.Resumed == "" && (s.Generation != 0 || s.Cut != 0 || tables || len(s.Slots) > 0 || past != 0) {
		return errors.New("it is missing, but generation, cut, tables or slots are set, which only a resumed " +
			"run has")
	}
	for _, t := range s.Tables {
		if err := t.Validate(s.Job.Shards); err != nil {
			return fmt.Errorf("tables: %w", err)
		}
	}
	odd := func(interval protocol.Interval) bool {
		return interval.From < 0 || interval.Until < 0 || interval.Until > 0 && interval.Until < interval.From
	}
	if i := slices.IndexFunc(s.Slots, odd); i >= 0 || len(s.Slots) > perdure.MaxSlots {
		return fmt.Errorf("slots: of %d slots, slot %d has an invalid interval, from clock %d to %d",
			len(s.Slots), i,
			s.Slots[max(i, 0)].From, s.Slots[max(i, 0)].Until)
	}
	return nil
}

func (s *Run) validateLog() error {
	l := s.Log
	if l == nil || !recovery.Of(s.Job.Recovery).Traits().UsesLog() {
		return nil
	}
	if key, wrong := l.invalid(&s.Job); key != "" {
		return fmt.Errorf("log.%s is %s", key, wrong)
	}
	return CheckPair(l.Cert, l.Key)
}
