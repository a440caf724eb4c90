package main

import (
	"encoding/csv"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// TestByTime: a job evaluates its model at regular times, but not while it has no server.
func TestByTime(t *testing.T) {
	t.Parallel()
	for _, model := range []string{"bsp", "asp"} {
		t.Run(model, func(t *testing.T) {
			t.Parallel()
			dir := newFolder(t)
			job := start(t, append(endless(dir), "--consistency", model, "--servers", "1", "--compute-ms", "5",
				"--eval-every", "50ms")...)
			awaitEvaluation(t, dir, 0)
			wantOut(t, 0, []string{"fault", "--run", dir, "kill:server:0@0s+1s"}, "planned")
			awaitEvent(t, dir, "server:0 serves again", 1)
			awaitEvaluation(t, dir, secondsOf(t, dir, "server:0 serves again"))
			if code, _, errs := job.Stop(); code != exitSignal {
				t.Errorf("exit code %d: %s", code, errs)
			}
			// The server dies between these events, and the next one starts at least a second after the first.
			planned, dead := secondsOf(t, dir, "fault: kill:server:0"), secondsOf(t, dir, "server:0 is dead")
			without := slices.DeleteFunc(evaluations(t, dir), func(at float64) bool {
				return at < dead || at > planned+1
			})
			if len(without) > 1 { // the server may have answered one before it died
				t.Errorf("evaluated at %v s, but no server ran from %.3f s to %.3f s", without, dead, planned+1)
			}
		})
	}
}

// TestTimeLimit: a job with a time limit ends when its time is over. It has lost no update, although its server died.
func TestTimeLimit(t *testing.T) {
	t.Parallel()
	for _, model := range []string{"bsp", "asp"} {
		t.Run(model, func(t *testing.T) {
			t.Parallel()
			s, dir := trained(t, small("--consistency", model, "--servers", "1", "--clocks", "10000000", "--compute-ms",
				"5", "--until", "time:600ms", "--fault", "kill:server:0@300ms")...)
			checkFailures(t, s, 1)
			if s.WallSeconds < .6 || *s.UpdatesLost != 0 {
				t.Errorf("ended after %.2f s; the model lacks %d updates\n%s", s.WallSeconds, *s.UpdatesLost, logs(dir))
			}
			if u := s.Usage["server"]; u.CPUSeconds <= 0 || u.MBPeak <= 0 {
				t.Errorf("the servers' resource use is %+v", u)
			}
		})
	}
}

// evaluations returns the times of the evaluations of a run that may be live, in seconds after the first clock started.
func evaluations(t testing.TB, dir string) (at []float64) {
	t.Helper()
	text, _ := os.ReadFile(filepath.Join(dir, "series.csv")) // it may not exist yet
	rows, err := csv.NewReader(strings.NewReader(string(text[:strings.LastIndexByte(string(text), '\n')+1]))).ReadAll()
	must(t, err)
	for _, row := range rows[min(1, len(rows)):] {
		accuracy := row[slices.Index(rows[0], "test_accuracy")]
		if backlog := row[slices.Index(rows[0], "backlog")]; (accuracy == "") != (backlog == "") ||
			backlog != "" && backlog != "0" && backlog != "1" {
			t.Errorf("at %s s the accuracy is %q, but the backlog is %q", row[0], accuracy, backlog)
		}
		if accuracy != "" {
			seconds, err := strconv.ParseFloat(row[0], 64)
			must(t, err)
			at = append(at, seconds)
		}
	}
	return at
}

// awaitEvaluation waits for an evaluation after the given time.
func awaitEvaluation(t testing.TB, dir string, after float64) {
	t.Helper()
	await(t, func() bool {
		at := evaluations(t, dir)
		return len(at) > 0 && at[len(at)-1] > after
	}, func() string { return "no evaluation\n" + logs(dir) })
}

// secondsOf returns when a run's first event with that text occurred, in seconds after the first clock started.
func secondsOf(t testing.TB, dir, words string) float64 {
	t.Helper()
	m := regexp.MustCompile(`(?m)^\{"seconds":([^,]+),.*` + words).FindStringSubmatch(eventsOf(t, dir))
	if m == nil {
		t.Fatalf("no event with %q\n%s", words, eventsOf(t, dir))
	}
	seconds, err := strconv.ParseFloat(m[1], 64)
	must(t, err)
	return seconds
}
