package recovery_test

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/perdure/perdure/internal/core/recovery"
)

// page shows users what each strategy promises.
const page = "../../../docs/guide/recovery.md"

// rowsOf returns the rows of the first table after a heading, cell by cell, without the header.
func rowsOf(text, heading string) (rows [][]string) {
	_, text, _ = strings.Cut(text, "\n## "+heading+"\n")
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		switch {
		case !strings.HasPrefix(line, "|") && rows != nil:
			return rows[min(2, len(rows)):]
		case strings.HasPrefix(line, "|"):
			cells := strings.Split(strings.Trim(line, "|"), "|")
			for i := range cells {
				cells[i] = strings.TrimSpace(cells[i])
			}
			rows = append(rows, cells)
		}
	}
	return rows
}

// kept returns the cell that says until when a worker keeps an update.
func kept(t recovery.Traits) string {
	switch {
	case t.Safe == recovery.Logged:
		return "in the log"
	case t.Safe == recovery.Saved:
		return "in a checkpoint"
	case t.EarlyAck:
		return "acknowledged by the head alone"
	}
	return "acknowledged"
}

// saved returns the cell that says what is saved, and whether training continues meanwhile.
func saved(t recovery.Traits) string {
	switch {
	case t.SaveMode == recovery.SavePaused:
		return "every C clocks; shards pause while it is written"
	case t.SaveMode == recovery.SaveInBackground:
		return "every C clocks, while training continues"
	case t.SaveMode == recovery.SaveRows:
		return "R of the rows every R·C clocks, while training continues"
	case t.UsesLog():
		return "no checkpoint, but the log and snapshots"
	}
	return "nothing"
}

// backAll describes a rollback.
const backAll = "all roll back to the last checkpoint"

// afterServer returns the cell about the death of a server.
func afterServer(s recovery.Strategy) string {
	t := s.Traits()
	orphaned := map[recovery.ActionKind]string{
		recovery.Reinitialize: "its shards start with their initial rows; their updates are lost and counted",
		recovery.RestoreRows: "its rows are restored as last saved, without a rollback; later updates are lost and " +
			"counted",
		recovery.Restore:  "its shards return to the last checkpoint, and workers resend the rest",
		recovery.Replay:   "its shards are read from the log again; workers keep writing, and reads wait",
		recovery.RollBack: backAll,
		recovery.Fail:     "the job ends",
	}[s.OnLostShards(recovery.Loss{Shards: 1, UnretainedSlot: -1}).Kind]
	if t.Copies == 1 {
		return orphaned
	}
	lost := ""
	if t.EarlyAck {
		lost = " updates that only the head had are lost and counted;"
	}
	return "the other replicas take over;" + lost + " if all N die: " + orphaned
}

// afterWorker returns the cell about the death of a worker.
func afterWorker(s recovery.Strategy) string {
	switch {
	case s.OnWorkerDeath(recovery.Death{}).Kind != recovery.Continue:
		return "?"
	case s.Traits().RetainsUpdates():
		return "a replacement continues; a checkpoint is made immediately"
	}
	return "a replacement continues"
}

// afterBoth returns the cell about the deaths of a worker and a server together.
func afterBoth(s recovery.Strategy) string {
	alone, both := s.OnLostShards(recovery.Loss{Shards: 1, UnretainedSlot: -1}),
		s.OnLostShards(recovery.Loss{Shards: 1})
	switch resent := s.OnWorkerDeath(recovery.Death{Needed: true}); {
	case both.Kind == recovery.RestorePartial && resent.Kind == recovery.RestorePartial &&
		s.OnTornClock().Kind == recovery.RestorePartial:
		return "its shards return to the last checkpoint, and workers resend the updates that they kept; the rest is " +
			"lost and counted"
	case both.Kind == recovery.RollBack && resent.Kind == recovery.RollBack:
		return backAll + " if no process has kept the updates that a shard lacks"
	case both.Kind != alone.Kind || resent.Kind != recovery.Continue:
		return "?"
	}
	return "as when a server dies"
}

// TestPage checks that the guide's tables agree with each strategy's answers and promise. It cannot check the cost,
// which no answer contains, nor promises that refer to another row.
func TestPage(t *testing.T) {
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	promises, costs := rowsOf(string(text), "What each promises"), rowsOf(string(text), "What each costs")
	if len(promises) != len(costs) {
		t.Fatalf("%s: %d rows of promises, %d of costs", page, len(promises), len(costs))
	}
	var names []string
	for i, row := range promises {
		if len(row) != 4 || len(costs[i]) != 4 || costs[i][0] != row[0] {
			t.Fatalf("%s: want four cells in the rows of one strategy: %q and %q", page, row, costs[i])
		}
		name := strings.Trim(row[0], "`")
		names = append(names, name)
		numbers := strings.NewReplacer("C", "20", "N", "2", "K", "5", "R,SELECTOR", "1/8,used")
		s := recovery.Of(parse(t, numbers.Replace(name)))
		want := []string{afterServer(s), afterBoth(s), kept(s.Traits()), saved(s.Traits())}
		if got := []string{row[2], row[3], costs[i][1], costs[i][2]}; !slices.Equal(got, want) {
			t.Errorf("%s: %s has\n%q, want\n%q", page, name, got, want)
		}
		if text := strings.ToUpper(row[1][:1]) + row[1][1:] + "."; !strings.HasPrefix(row[1], "as `") {
			if got := recovery.Promise(parse(t, numbers.Replace(name))); got != text {
				t.Errorf("%s promises %q of %s, and Promise %q", page, text, name, got)
			}
		}
		if got, want := afterWorker(s), workerDies(name); got != want {
			t.Errorf("%s says of the death of a worker under %s: %q, want %q", page, name, want, got)
		}
	}
	if want := []string{
		"none", "resend:C", "resend:C,partial", "checkpoint:C", "checkpoint:C,async", "chain:N", "chain:N,checkpoint:C",
		"chain:N,checkpoint:C,async", "chain:N,async", "chain:N,every:K", "stateless",
		"scar:C,R,SELECTOR",
	}; !slices.Equal(names, want) {
		t.Errorf("%s has %q, want %q", page, names, want)
	}
}

// workerDies returns the page's sentence about the death of a worker, which is outside of the tables, for one strategy.
func workerDies(name string) string {
	if strings.HasPrefix(name, "resend") {
		return "a replacement continues; a checkpoint is made immediately"
	}
	return "a replacement continues"
}
