package terminal

import (
	"fmt"
	"strings"

	"github.com/perdure/perdure/internal/core/protocol"
	"github.com/perdure/perdure/internal/data/dataset"
	"github.com/perdure/perdure/internal/run/humanize"
	"github.com/perdure/perdure/internal/run/rundir"
)

// resultLine returns a run's result as one line.
func resultLine(s *rundir.Summary) string {
	var parts []string
	add := func(format string, v *float64) {
		if v != nil {
			parts = append(parts, fmt.Sprintf(format, *v))
		}
	}
	add("test accuracy %.4f", s.TestAccuracy)
	add("test rmse %.4f", s.TestRMSE)
	add("test loss %.4f", s.TestLoss)
	line := fmt.Sprintf("%d clocks in %.1f s", s.Clocks, s.WallSeconds)
	if dataset.IsSynthetic(s.Data) {
		line += " on synthetic data"
	}
	if len(parts) > 0 {
		line = strings.Join(parts, ", ") + " after " + line
	}
	return line
}

// failureLine returns a run's failures and their cost as one line. died is the number of processes that failed, for a
// summary without failures.
func failureLine(s *rundir.Summary, died int) string {
	parts := []string{failureCounts(s.Failures)}
	if len(s.Failures) == 0 && died > 0 {
		parts[0] = fmt.Sprintf("failed processes: %d (see events.jsonl)", died)
	}
	for _, cost := range []struct {
		n    *int64
		what string
		of   string
	}{{s.UpdatesLost, "update", "lost"}, {s.ClocksRedone, "clock", "redone"}} {
		if cost.n == nil {
			parts = append(parts, fmt.Sprintf("%ss %s not known", cost.what, cost.of))
			continue
		}
		parts = append(parts, humanize.Count(int(*cost.n), cost.what)+" "+cost.of)
		if part := missingUpdatesNote(s.Saving); cost.n == s.UpdatesLost && part != "" {
			parts = append(parts, part)
		}
	}
	switch away := s.OutageSeconds(); {
	case away >= 1:
		parts = append(parts, fmt.Sprintf("%.1f s until all served again", away))
	case away > 0:
		parts = append(parts, fmt.Sprintf("%.0f ms until all served again", 1000*away))
	}
	return strings.Join(parts, ", ")
}

// missingUpdatesNote returns how many updates are missing from some of the restored rows, or "" if none are.
func missingUpdatesNote(all *protocol.Saving) string {
	if all == nil || all.Rows == nil || all.Rows.PartlyLost == 0 {
		return ""
	}
	return fmt.Sprintf("%d lost in part", all.Rows.PartlyLost)
}

// failureCounts counts faults and deaths by kind.
func failureCounts(failures []rundir.Failure) string {
	if len(failures) == 0 {
		return "no faults"
	}
	var kinds []string
	counts := map[string]int{}
	for _, f := range failures {
		kind, _, _ := strings.Cut(f.Kind, "*") // slow*2: without the factor
		if counts[kind]++; counts[kind] == 1 {
			kinds = append(kinds, kind)
		}
	}
	for i, kind := range kinds {
		kinds[i] = humanize.Count(counts[kind], kind)
	}
	return strings.Join(kinds, ", ")
}
