package terminal

import (
	"fmt"
	"io"

	"github.com/perdure/perdure/internal/run/rundir"
)

// PrintComparison prints two runs of one job side by side, and the failures of the second, disturbed run.
func PrintComparison(out io.Writer, calm, storm *rundir.Summary) {
	row := func(name, a, b string) { fmt.Fprintf(out, "  %-28s %-20s %s\n", name, a, b) }
	fmt.Fprintln(out, "── side by side")
	row("", "undisturbed", "disturbed")
	row("processes killed", fmt.Sprint(len(calm.Failures)), fmt.Sprint(len(storm.Failures)))
	row("seconds", fmt.Sprintf("%.2f", calm.WallSeconds), fmt.Sprintf("%.2f", storm.WallSeconds))
	row("clocks done again", fmt.Sprint(*calm.ClocksRedone), fmt.Sprint(*storm.ClocksRedone))
	row("updates lost", fmt.Sprint(*calm.UpdatesLost), fmt.Sprint(*storm.UpdatesLost))
	row("test accuracy", fmt.Sprintf("%.4f", *calm.TestAccuracy), fmt.Sprintf("%.4f", *storm.TestAccuracy))
	row("model (16 of 64 digits)", (*calm.ModelSHA256)[:16], (*storm.ModelSHA256)[:16])
	fmt.Fprintln(out)
	for _, f := range storm.Failures {
		line := fmt.Sprintf("  clock %3d: %s of %s", f.AtClock, f.Kind, f.Target)
		if f.DetectedAfterMs != nil {
			line += fmt.Sprintf(", noticed after %.1f ms", *f.DetectedAfterMs)
		}
		if f.ServingAgainAfterMs != nil {
			line += fmt.Sprintf(", works again after %.0f ms", *f.ServingAgainAfterMs)
		}
		fmt.Fprintln(out, line)
	}
}
