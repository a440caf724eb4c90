package bench

import (
	"encoding/json"
	"fmt"
	"strings"
)

// sample holds the figures of one round by name. Figures that were not measured are missing.
type sample map[string]float64

// RecoveryResult is one line of the results: the measurements of a strategy.
type RecoveryResult struct {
	Recovery string `json:"recovery"`
	Trained  string `json:"train_workload"` // workload for the training speed
	Fault    string `json:"fault"`          // "": faults were not measured
	Rounds   int    `json:"rounds"`
	Servers  int    `json:"servers"`
	Workers  int    `json:"workers"`
	Shards   int    `json:"shards"`
	MB       int    `json:"mb"`

	samples []sample
}

// resultKeys are the keys of a line in the results file, as docs/formats/output.md describes them. A key is the name
// of a figure: its median over the rounds, or with the suffix _min or _max its extremes. A dot separates an object and
// a key in it.
var resultKeys = strings.Fields(`
	detected_ms_median
	serving_again_ms_median serving_again_ms_max
	longest_get_ms_median longest_get_ms_max
	longest_clock_ms_median longest_clock_ms_max
	train_ratio train_ratio_min train_ratio_max
	push_ratio push_ratio_min push_ratio_max
	catch_up_gb_per_s catch_up_read_ratio catch_up_clock_ratio
	catch_up_raw_gb_per_s catch_up_raw_read_ratio catch_up_raw_clock_ratio
	catch_up_of_raw
	save.train_ratio save.train_ratio_min save.train_ratio_max
	save.lost save.lost_min save.lost_max
	save.pause_ms save.calm_ms save.copy_ms save.pause_of_copy
	save.mb_per_s save.raw_mb_per_s save.of_raw
	rows.lost rows.lost_min rows.lost_max
	rows.mb rows.stood_ms rows.stood_of_copy rows.pause_ms rows.copy_ms rows.pause_of_copy
	drain.mb drain.seconds drain.seconds_min drain.seconds_max drain.updates_lost
	drain.tcp_mb_per_s drain.file_mb_per_s drain.tcp_seconds drain.file_seconds
	replay_serving_ms replay_serving_ms_min replay_serving_ms_max
	replay_empty_ms replay_empty_ms_min replay_empty_ms_max
	replay_mb
	replay_mb_per_s replay_mb_per_s_min replay_mb_per_s_max
	replay_bare_mb_per_s replay_of_bare`)

// spread returns the spread of a figure over the rounds in which it was measured. ok is false without such a round. A
// speed of replay counts only if every round has one.
func (r *RecoveryResult) spread(name string) (s spread, ok bool) {
	var values []float64
	for _, one := range r.samples {
		if v, measured := one[name]; measured {
			values = append(values, v)
		}
	}
	if len(values) == 0 || strings.HasPrefix(name, "replay_") && len(values) < len(r.samples) {
		return s, false
	}
	return newSpread(values), true
}

// of returns the spread of a figure that was measured.
func (r *RecoveryResult) of(name string) spread {
	s, _ := r.spread(name)
	return s
}

// value returns the value for a key of the results file, or nil if it was not measured.
func (r *RecoveryResult) value(key string) any {
	name, isMin := strings.CutSuffix(key, "_min")
	name, isMax := strings.CutSuffix(name, "_max")
	s, ok := r.spread(strings.TrimSuffix(name, "_median"))
	switch {
	case !ok:
		return nil
	case isMin:
		return s.Min
	case isMax || key == "drain.updates_lost": // of all rounds
		return s.Max
	}
	return s.Median
}

// MarshalJSON implements json.Marshaler.
func (r *RecoveryResult) MarshalJSON() ([]byte, error) {
	type fields RecoveryResult // without this method
	text, err := json.Marshal((*fields)(r))
	if err != nil {
		return nil, err
	}
	tree := map[string]any{}
	if err := json.Unmarshal(text, &tree); err != nil {
		return nil, err
	}
	for _, key := range resultKeys {
		group, name, nested := strings.Cut(key, ".")
		switch v := r.value(key); {
		case !nested:
			tree[key] = v
		case tree[group] == nil && v == nil:
			tree[group] = nil
		case tree[group] == nil:
			tree[group] = map[string]any{name: v}
		default:
			tree[group].(map[string]any)[name] = v
		}
	}
	return json.Marshal(tree)
}

const faultColumns = "%-21s  %-16s  %8s  %-18s  %-18s  %-18s  %s"

// faultLine formats the result of a failure.
func (r *RecoveryResult) faultLine() string {
	noticed := "-"
	if s, ok := r.spread("detected_ms"); ok {
		noticed = fmt.Sprintf("%.1f", s.Median)
	}
	pair := func(name string) string { return fmt.Sprintf("%.1f (%.1f)", r.of(name).Median, r.of(name).Max) }
	return strings.TrimRight(fmt.Sprintf(faultColumns, r.Recovery, r.Fault, noticed, pair("serving_again_ms"),
		pair("longest_get_ms"), pair("longest_clock_ms"), r.joining()), " ") + r.drain()
}

// joining formats the speed of servers that joined, or "" if it was not measured.
func (r *RecoveryResult) joining() string {
	speed, ok := r.spread("catch_up_gb_per_s")
	if !ok {
		return ""
	}
	s := fmt.Sprintf("%.3f; %.2f, %.2f", speed.Median, r.of("catch_up_read_ratio").Median,
		r.of("catch_up_clock_ratio").Median)
	if raw, ok := r.spread("catch_up_raw_gb_per_s"); ok {
		s += fmt.Sprintf(" (%.2f of a plain copy: %.3f; %.2f, %.2f)", r.of("catch_up_of_raw").Median, raw.Median,
			r.of("catch_up_raw_read_ratio").Median, r.of("catch_up_raw_clock_ratio").Median)
	}
	return s
}

// drain formats the cost of handing over, or "" if it was not measured.
func (r *RecoveryResult) drain() string {
	took, ok := r.spread("drain.seconds")
	if !ok {
		return ""
	}
	s := fmt.Sprintf("\n  hands over %.1f MB in %.2f s (%.2f to %.2f); %.0f updates lost", r.of("drain.mb").Median,
		took.Median, took.Min, took.Max, r.of("drain.updates_lost").Max)
	if tcp, ok := r.spread("drain.tcp_mb_per_s"); ok {
		s += fmt.Sprintf("; plain TCP %.0f MB/s, %.2f s; a plain file %.0f MB/s, %.2f s", tcp.Median,
			r.of("drain.tcp_seconds").Median, r.of("drain.file_mb_per_s").Median, r.of("drain.file_seconds").Median)
	}
	return s
}

// saveLine formats the result of a checkpoint.
func (r *RecoveryResult) saveLine() string {
	middle := func(name string) float64 { return r.of("save." + name).Median }
	speed, lost := r.of("save.train_ratio"), r.of("save.lost")
	return fmt.Sprintf("%-21s  %.3f (%.3f to %.3f)  %.1f %% (%.1f to %.1f)  pause %.1f ms (%.1f), "+
		"%.2f of a copy's %.1f ms  %.0f MB/s, %.2f of a plain file's %.0f",
		r.Recovery, speed.Median, speed.Min, speed.Max, 100*lost.Median, 100*lost.Min, 100*lost.Max,
		middle("pause_ms"), middle("calm_ms"), middle("pause_of_copy"), middle("copy_ms"), middle("mb_per_s"),
		middle("of_raw"), middle("raw_mb_per_s"))
}

// rowsLine formats the result of saving rows individually.
func (r *RecoveryResult) rowsLine() string {
	middle := func(name string) float64 { return r.of("rows." + name).Median }
	lost := r.of("rows.lost")
	return fmt.Sprintf("%-21s  %.1f %% (%.1f to %.1f)  %.0f MB  paused %.1f ms, %.2f of a copy's %.1f ms; longest "+
		"clock +%.1f ms",
		r.Recovery, 100*lost.Median, 100*lost.Min, 100*lost.Max, middle("mb"), middle("stood_ms"),
		middle("stood_of_copy"), middle("copy_ms"), middle("pause_ms"))
}

// replayLine formats the result of reading the log back.
func (r *RecoveryResult) replayLine() string {
	bare, serving, empty := r.of("replay_bare_mb_per_s"), r.of("replay_serving_ms"), r.of("replay_empty_ms")
	rate := fmt.Sprintf("no MB/s: a round took no longer than one with nothing to read; a bare reader reaches %.0f",
		bare.Median)
	if s, ok := r.spread("replay_mb_per_s"); ok {
		rate = fmt.Sprintf("%.0f MB/s (%.0f to %.0f), %.2f of a bare reader's %.0f", s.Median, s.Min, s.Max,
			r.of("replay_of_bare").Median, bare.Median)
	}
	return fmt.Sprintf("%-21s  %.1f ms (%.1f to %.1f), with nothing to read %.1f (%.1f to %.1f)  %.1f MB, %s",
		r.Recovery, serving.Median, serving.Min, serving.Max, empty.Median, empty.Min, empty.Max,
		r.of("replay_mb").Median, rate)
}
