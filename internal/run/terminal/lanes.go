package terminal

import (
	"fmt"
	"slices"
	"strings"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/wire"
)

const (
	maxLanes   = 12
	laneName   = 10 // columns of a worker's name
	laneFigure = 18 // columns of its clock
	laneClocks = 10 // fewest clocks that a lane spans, so that a skew of one clock does not fill it
)

// lanes draws a line for each worker, with a sign at its clock between those of the slowest and the fastest worker. The
// distance between workers is what a consistency model bounds. Workers that do not fit share the last line.
func lanes(places []wire.MemberProgress, width, most int) (lines []string) {
	var workers []wire.MemberProgress
	for _, p := range places {
		if p.Role == wire.RoleWorker && p.State != "left" {
			workers = append(workers, p)
		}
	}
	most = min(most, maxLanes)
	track := width - laneName - laneFigure
	if len(workers) == 0 || most < 1 || track < laneClocks {
		return nil
	}
	byClock := func(a, b wire.MemberProgress) int { return int(a.Clock - b.Clock) }
	low := slices.MinFunc(workers, byClock).Clock
	interval := max(slices.MaxFunc(workers, byClock).Clock-low, laneClocks)
	alone := workers
	if len(workers) > most {
		alone = workers[:most-1]
	}
	for _, w := range alone {
		lines = append(lines, lane(&w, low, interval, track))
	}
	if rest := workers[len(alone):]; len(rest) > 0 {
		lines = append(lines, summaryLane(rest, byClock))
	}
	return lines
}

// lane draws the line of a worker; low is the clock at its start.
func lane(w *wire.MemberProgress, low, interval perdure.Clock, track int) string {
	at := int(int64(track-1) * int64(w.Clock-low) / int64(interval))
	figure := fmt.Sprintf("clock %d", w.Clock)
	if ahead := w.Clock - low; ahead > 0 {
		figure += fmt.Sprintf(" +%d", ahead)
	}
	return fmt.Sprintf("%-*s%s%s%s%s", laneName, fmt.Sprintf("worker %d", w.Index), strings.Repeat("─", at),
		sign(w.State), strings.Repeat(" ", track-at), figure)
}

// summaryLane draws one line for several workers.
func summaryLane(workers []wire.MemberProgress, byClock func(a, b wire.MemberProgress) int) string {
	signs := ""
	for _, w := range workers {
		signs += sign(w.State)
	}
	return fmt.Sprintf("%d more   clocks %d to %d  %s", len(workers), slices.MinFunc(workers, byClock).Clock,
		slices.MaxFunc(workers, byClock).Clock, signs)
}
