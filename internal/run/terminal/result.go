package terminal

import (
	"fmt"
	"io"
	"strconv"

	"github.com/perdure/perdure/internal/core/protocol"
	"github.com/perdure/perdure/internal/core/recovery"
	"github.com/perdure/perdure/internal/proc/supervisor"
	"github.com/perdure/perdure/internal/run/rundir"
)

// result is a run's result, for people.
type result struct {
	rundir.Summary
	dir    string
	missed []supervisor.Fault // planned faults for which the run ended too early
	died   int                // processes that failed, if the summary has no failures
}

func (r result) print(out io.Writer) {
	fmt.Fprintf(out, "done: %s\n%s\n", resultLine(&r.Summary), failureLine(&r.Summary, r.died))
	for _, row := range r.rows() {
		fmt.Fprintf(out, "  %-16s %s\n", row[0], row[1])
	}
	if len(r.ClockDifferential) > 0 {
		fmt.Fprintln(out, " clock differential: for rows read, the newest clock of each other worker in the row minus "+
			"the reader's")
		for _, line := range bars(numbers(r.ClockDifferential)) {
			fmt.Fprintln(out, "  "+line)
		}
	}
}

// orUnknown formats a value that may be unknown.
func orUnknown[T any](p *T, format func(v T) string) string {
	if p == nil {
		return "not known"
	}
	return format(*p)
}

func count(n int64) string { return fmt.Sprint(n) }

// maxFindings is how many lines of a workload's remarks are shown.
const maxFindings = 9

// findings returns the workload's remarks about its model.
func (r *result) findings() (rows [][2]string) {
	for i, line := range r.Findings {
		if i == maxFindings {
			return append(rows, [2]string{"", fmt.Sprintf("and %d more, in summary.json", len(r.Findings)-i)})
		}
		name := ""
		if i == 0 {
			name = "found"
		}
		rows = append(rows, [2]string{name, line})
	}
	return rows
}

func (r *result) rows() [][2]string {
	fine := func(v float64) string { return fmt.Sprintf("%.4f", v) }
	megabytes := func(n int64) string { return fmt.Sprintf("%.1f MB", float64(n)/1e6) }
	quality, files := [2]string{"test accuracy", orUnknown(r.TestAccuracy, fine)}, "model.safetensors, "
	if r.TestRMSE != nil {
		quality = [2]string{"test rmse", orUnknown(r.TestRMSE, fine)}
	}
	if r.ModelSHA256 == nil {
		files = ""
	}
	rows := append([][2]string{
		quality,
		{"test loss", orUnknown(r.TestLoss, fine)},
	}, r.findings()...)
	if r.TestAccuracy == nil && r.TestRMSE == nil && r.TestLoss != nil {
		rows = rows[1:] // it has no accuracy
	}
	rows = append(rows, [][2]string{
		{"updates applied", orUnknown(r.UpdatesApplied, count)},
		{"updates lost", orUnknown(r.UpdatesLost, count)},
		{"clocks redone", orUnknown(r.ClocksRedone, count)},
		{"pushed, pulled", orUnknown(r.BytesPushed, megabytes) + ", " + orUnknown(r.BytesPulled, megabytes)},
		{"time", timeLine(r.TimeSplit)},
		{"model sha256", orUnknown(r.ModelSHA256, func(s string) string { return s })},
		{"files", r.dir + ": " + files + "summary.json, series.csv, events.jsonl, run.json, logs/" +
			resumableDirs(r.Recovery, r.LogBytes != nil)},
	}...)
	rows = append(rows, savedRows(r.Saving)...)
	if line, differs := goalLine(&r.Summary); differs {
		rows = append(rows, line)
	}
	if r.OlderStates != nil {
		rows = append(rows, [2]string{
			"saved states",
			fmt.Sprintf("programs were given %d states older than the last one, by at most %d clocks", r.StatesLost,
				r.StatesOlder),
		})
	}
	if r.BeyondBound != nil {
		rows = append(rows, [2]string{"beyond vap's V", fmt.Sprintf("%d updates, which were sent alone",
			*r.BeyondBound)})
	}
	if o := r.Outage; o != nil {
		rows = append(rows, [2]string{
			"in outages",
			fmt.Sprintf("%d clocks, %d stale rows read, at most %.1f MB queued by a worker, %.1f s waited", o.Clocks,
				o.StaleRows, float64(o.QueuedBytes)/1e6, o.WaitedS),
		})
	}
	if s := r.Saving; s != nil && s.Interval > 0 {
		rows = append(rows, [2]string{
			"checkpoints",
			fmt.Sprintf("finally every %s; %s", recovery.FormatTime(s.Interval), s.Why),
		})
	}
	for _, f := range r.missed {
		rows = append(rows, [2]string{
			"did not happen",
			fmt.Sprintf("%s: the job had already ended; choose a larger --clocks to make it longer", f),
		})
	}
	return rows
}

// PrintResult prints the result of the run in a directory. died is the number of processes that failed according to the
// run's events. It is printed if the summary has no failures: the summary of a job on several hosts never has any.
func PrintResult(out io.Writer, folder string, s *rundir.Summary, died int) {
	fmt.Fprintf(out, "%s has ended: %s, %s, recovery %s: %d workers, %d servers, %d shards, seed %d\n",
		folder, s.Workload, s.Consistency, s.Recovery, s.Workers, s.Servers, s.Shards, s.Seed)
	result{Summary: *s, dir: folder, died: died}.print(out)
}

// numbers converts a histogram's keys from JSON texts to numbers.
func numbers(h map[string]int64) map[int64]int64 {
	out := make(map[int64]int64, len(h))
	for text, n := range h {
		k, _ := strconv.ParseInt(text, 10, 64) // it was written as a number
		out[k] = n
	}
	return out
}

// goalLine returns a line about the evaluation that reached the goal, if the final model has another value.
func goalLine(s *rundir.Summary) (line [2]string, differs bool) {
	g := s.Goal
	if g == nil || g.Met == nil || g.Final != nil && *g.Met == *g.Final {
		return line, false
	}
	return [2]string{
		"goal met",
		fmt.Sprintf("%s %.4f at clock %d; the model above is of clock %d, when all workers had stopped", g.Metric,
			*g.Met,
			g.Clock, s.Clocks),
	}, true
}

// savedRows returns lines about separately saved rows, and about those that were restored.
func savedRows(all *protocol.Saving) (rows [][2]string) {
	if all == nil || all.Rows == nil {
		return nil
	}
	s := all.Rows
	rows = append(rows, [2]string{
		"rows saved", fmt.Sprintf("%.1f MB; it paused training for %.3f s, summed over all shards",
			float64(s.Bytes)/1e6, s.PausedSeconds),
	})
	if s.Restored+s.Initial == 0 {
		return rows
	}
	back := fmt.Sprintf("%d as last saved, %d initial; saved %.1f clocks before on average, at most %d", s.Restored,
		s.Initial, s.MeanAge(), s.Oldest)
	return append(rows,
		[2]string{"rows back", back},
		[2]string{"lost in part", fmt.Sprintf("%d updates: only some of these rows contain them", s.PartlyLost)})
}
