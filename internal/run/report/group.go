package report

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strings"

	"github.com/perdure/perdure/internal/run/humanize"
	"github.com/perdure/perdure/internal/run/plot"
	"github.com/perdure/perdure/internal/run/rundir"
	"github.com/perdure/perdure/internal/run/runs"
)

// trial is a run with its measurements.
type trial struct {
	*runs.Run
	line     runs.Line
	series   rundir.Series
	settings map[string]string
}

func (t *trial) done() bool { return t.State == runs.Done && t.Summary != nil }

// group is a set of runs whose settings differ only in the seed.
type group struct {
	Name   string
	Trials []*trial
	Style  plot.Style
}

// done returns the trials that have a result.
func (g *group) done() []*trial { return plot.Where(g.Trials, (*trial).done) }

// spread returns the spread of a number over the trials that have a result and that number.
func (g *group) spread(of func(t *trial) *float64) plot.Spread {
	var values []float64
	for _, t := range g.done() {
		if v := of(t); v != nil {
			values = append(values, *v)
		}
	}
	return plot.SpreadOf(values)
}

func result(t *trial) *float64 { return t.line.Result }
func wall(t *trial) *float64   { return t.line.WallSeconds }
func lost(t *trial) *float64   { return number(t.line.Lost) }
func redone(t *trial) *float64 { return number(t.line.Redone) }

func faults(t *trial) *float64  { return new(float64(len(t.Summary.Failures))) }
func awayFor(t *trial) *float64 { return new(t.Summary.OutageSeconds()) }

func number(n *int64) *float64 {
	if n == nil {
		return nil
	}
	return new(float64(*n))
}

// identitySettings lists settings that identify a run or follow from other settings.
var identitySettings = []string{
	"job.seed", "params.Seed", "params.Slots", "job.log", "job.log_secret", "job.alarms", "job.fixed_end",
	"job.await_export", "generation", "cut", "tables", "slots", "schema",
}

// setting is a setting with its name and the format of its value in a group's name.
type setting struct{ path, name, format string }

// settingOrder lists settings in the order in which they appear in group names. All other settings follow.
var settingOrder = []setting{
	{"job.workload", "workload", "%s"},
	{"params.Data", "data", "%s"},
	{"job.consistency", "consistency", "%s"},
	{"job.recovery", "recovery", "%s"},
	{"job.on_outage", "in an outage", "on outage %s"},
	{"job.slots", "workers", "%s workers"},
	{"job.servers", "servers", "%s servers"},
	{"job.shards", "shards", "%s shards"},
	{"job.clocks", "clocks", "%s clocks"},
	{"params.Rule.kind", "rule", "%s"},
	{"params.Rule.rate", "learning rate", "rate %s"},
	{"params.Batch", "examples per worker and clock", "batch %s"},
	{"params.Topics.Rebuild", "counts rebuilt", "rebuild %s"},
	{"compute_ms", "minimum compute, ms per clock", "%s ms per clock"},
	{"faults", "faults planned", "%s"},
	{failuresSetting, "failures", "failures %s"},
	{"scale", "scaled", "%s"},
	{"eval_every", "clocks between evaluations", "evaluated every %s"},
	{"version", "version", "version %s"},
	{"resumed", "went on from", "from %s"},
}

func settingOf(path string) setting {
	if i := slices.IndexFunc(settingOrder, func(c setting) bool { return c.path == path }); i >= 0 {
		return settingOrder[i]
	}
	return setting{path, path, path + " %s"}
}

// rank returns the position of a setting in names and tables.
func rank(path string) int {
	if i := slices.IndexFunc(settingOrder, func(c setting) bool { return c.path == path }); i >= 0 {
		return i
	}
	return len(settingOrder)
}

// text formats a setting's value: lists without brackets, files by their base name.
func (s setting) text(value string) string {
	var list []string
	if json.Unmarshal([]byte(value), &list) == nil {
		value = strings.Join(list, ", ")
	}
	switch {
	case value == "" && s.path == "faults":
		return "no faults"
	case value == "" && s.path == "params.Data":
		return "embedded data"
	case value == "":
		return "none"
	case s.path == "params.Data" || s.path == "resumed":
		return filepath.Base(value)
	}
	return value
}

// groupsOf groups trials, and returns the paths of the settings that differ between groups.
func groupsOf(trials []*trial) (groups []*group, differ []string) {
	differ = differing(trials)
	keys, by := groupBy(trials, func(t *trial) string {
		var values []string
		for _, path := range differ {
			values = append(values, t.settings[path])
		}
		return strings.Join(values, "\x00")
	})
	naming := distinguishing(trials, differ)
	for i, k := range keys {
		g := &group{Trials: by[k], Style: plot.SeriesStyle(i)}
		var parts []string
		for _, path := range naming {
			parts = append(parts, namePart(path, g.Trials[0].settings[path], trials))
		}
		g.Name = cmp.Or(strings.Join(parts, ", "), "all runs")
		groups = append(groups, g)
	}
	return groups, differ
}

// distinguishing returns the first differing settings that distinguish all groups. Group names contain only these.
func distinguishing(trials []*trial, differ []string) (paths []string) {
	apart := func(paths []string) int {
		keys, _ := groupBy(trials, func(t *trial) string {
			key := ""
			for _, path := range paths {
				key += t.settings[path] + "\x00"
			}
			return key
		})
		return len(keys)
	}
	for _, path := range differ {
		if more := append(slices.Clone(paths), path); apart(more) > apart(paths) {
			paths = more
		}
	}
	return paths
}

// differing returns the settings whose values differ between trials, in order.
func differing(trials []*trial) (paths []string) {
	seen := map[string]bool{}
	for _, t := range trials {
		for path := range t.settings {
			if !seen[path] && !slices.Contains(identitySettings, path) &&
				slices.ContainsFunc(trials, func(o *trial) bool {
					return o.settings[path] != trials[0].settings[path]
				}) {
				paths = append(paths, path)
			}
			seen[path] = true
		}
	}
	slices.SortFunc(paths, func(a, b string) int { return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(a, b)) })
	return paths
}

// namePart returns the part of a group's name that a setting contributes. Faults are only counted if the counts differ
// between groups.
func namePart(path, value string, trials []*trial) string {
	s := settingOf(path)
	if path == "faults" {
		count := func(v string) int {
			var list []string
			_ = json.Unmarshal([]byte(v), &list) // no list: none
			return len(list)
		}
		apart := !slices.ContainsFunc(trials, func(t *trial) bool {
			return t.settings[path] != value && count(t.settings[path]) == count(value)
		})
		if n := count(value); apart && n > 0 {
			return plural(float64(n), "fault")
		}
		return s.text(value)
	}
	switch {
	case value == "" && path != "params.Data":
		return "no " + s.name
	case value == "none":
		return s.name + " none"
	}
	return fmt.Sprintf(s.format, s.text(value))
}

// plural formats a count with its noun.
func plural(n float64, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return counted(n) + " " + noun + "s"
}

// counted formats a count with thousands separators.
func counted(n float64) string {
	s := fmt.Sprintf("%.0f", math.Abs(n))
	if n != math.Trunc(n) {
		return humanize.Short(n)
	}
	for at := len(s) - 3; at > 0; at -= 3 {
		s = s[:at] + "," + s[at:]
	}
	return s
}

// groupBy groups results by key, in the order in which the keys appear.
func groupBy[T any, K comparable](results []T, key func(T) K) (keys []K, groups map[K][]T) {
	groups = map[K][]T{}
	for _, r := range results {
		k := key(r)
		if groups[k] == nil {
			keys = append(keys, k)
		}
		groups[k] = append(groups[k], r)
	}
	return keys, groups
}
