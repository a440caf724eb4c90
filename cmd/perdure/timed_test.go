package main

import (
	"encoding/csv"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
)

// TestByTime: a job with a time limit, whose server is down for a while, evaluates its model at regular times but not
// while the server is down. It ends when its time is over and has lost no update.
func TestByTime(t *testing.T) {
	t.Parallel()
	for _, model := range []string{"bsp", "asp"} {
		t.Run(model, func(t *testing.T) {
			s, dir := trained(t, small("--consistency", model, "--servers", "1", "--clocks", "10000000", "--compute-ms",
				"5",
				"--eval-every", "50ms", "--until", "time:2200ms", "--fault", "kill:server:0@600ms+1s")...)
			checkFailures(t, s, 1)
			if s.WallSeconds < 2.2 || *s.UpdatesLost != 0 {
				t.Errorf("ended after %.2f s; the model lacks %d updates\n%s", s.WallSeconds, *s.UpdatesLost, logs(dir))
			}
			if u := s.Usage["server"]; u.CPUSeconds <= 0 || u.MBPeak <= 0 {
				t.Errorf("the servers' resource use is %+v", u)
			}
			f, err := os.Open(filepath.Join(dir, "series.csv"))
			must(t, err)
			defer f.Close()
			rows, err := csv.NewReader(f).ReadAll()
			must(t, err)
			away := s.Failures[0]
			back := away.AtSeconds + *away.ServingAgainAfterMs/1000
			const margin = .25
			before, after := 0, 0
			for _, row := range rows[1:] {
				at, err := strconv.ParseFloat(row[0], 64)
				must(t, err)
				// A read may have been answered just before the server was killed, and a shard may serve just before
				// the coordinator reports it.
				if backlog := row[slices.Index(rows[0], "backlog")]; (row[4] == "") != (backlog == "") ||
					backlog != "" && backlog != "0" && backlog != "1" {
					t.Errorf("at %.3f s the accuracy is %q, but the backlog is %q", at, row[4], backlog)
				}
				switch {
				case row[4] == "":
				case at > away.AtSeconds+margin && at < back-margin:
					t.Errorf("evaluated at %.3f s, but no server ran from %.3f s to %.3f s", at, away.AtSeconds, back)
				case at < back:
					before++
				default:
					after++
				}
			}
			if before == 0 || after == 0 {
				t.Errorf("evaluated %d times before and %d times after the server was down\n%s", before, after,
					logs(dir))
			}
		})
	}
}
