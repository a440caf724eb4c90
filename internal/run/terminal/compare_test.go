package terminal

import (
	"regexp"
	"strings"
	"testing"

	"github.com/perdure/perdure/internal/run/rundir"
)

// TestCompare checks that two runs are printed side by side, followed by the second run's failures.
func TestCompare(t *testing.T) {
	sum := func(lost int64, hash string, failures ...rundir.Failure) *rundir.Summary {
		return &rundir.Summary{
			WallSeconds: 1.5, ClocksRedone: new(2 * lost), UpdatesLost: &lost, TestAccuracy: new(0.75),
			ModelSHA256: new(strings.Repeat(hash, 64)), Failures: failures,
		}
	}
	var out strings.Builder
	PrintComparison(&out, sum(0, "a"), sum(3, "b",
		rundir.Failure{Kind: "kill", Target: "server:0", AtClock: 60, DetectedAfterMs: new(2.25)},
		rundir.Failure{Kind: "kill", Target: "worker:2", AtClock: 90, ServingAgainAfterMs: new(7.0)}))
	for _, want := range []string{
		`\n  +undisturbed +disturbed\n`, `processes killed +0 +2\n`, `clocks done again +0 +6\n`,
		`updates lost +0 +3\n`, `accuracy +0.7500 +0.7500\n`, `\) +a{16} +b{16}\n`,
		`clock  60: kill of server:0, noticed after 2.2 ms\n`, `clock  90: kill of worker:2, works again after 7 ms\n$`,
	} {
		if !regexp.MustCompile(want).MatchString(out.String()) {
			t.Errorf("no %s in\n%s", want, out.String())
		}
	}
}
