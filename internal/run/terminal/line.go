package terminal

import (
	"fmt"
	"io"
	"strings"

	"github.com/perdure/perdure/internal/proc/supervisor"
	"github.com/perdure/perdure/internal/run/humanize"
	"github.com/perdure/perdure/internal/run/rundir"
)

// LineView is a view that shows only how a run has ended, in one line.
type LineView struct {
	NopView
	Out io.Writer
}

// End implements View.
func (v LineView) End(s *rundir.Summary, dir string, missed []supervisor.Fault) {
	fmt.Fprintln(v.Out, line(s, dir, missed))
}

// line returns a run's result, its duration, and the cost of failures.
func line(s *rundir.Summary, dir string, missed []supervisor.Fault) string {
	parts := []string{resultLine(s)}
	if len(s.Failures) > 0 {
		parts = append(parts, failureLine(s, 0))
	}
	for _, f := range missed {
		parts = append(parts, fmt.Sprintf("did not happen: %s", f))
	}
	return "done: " + strings.Join(append(parts, dir), ", ")
}

// JSONView is a view that prints only the result of a run, as a document for programs.
type JSONView struct {
	NopView
	Out  io.Writer
	Warn func(line string) // reports to people what the document lacks
}

// End implements View.
func (v JSONView) End(s *rundir.Summary, _ string, missed []supervisor.Fault) {
	for _, f := range missed {
		v.Warn(fmt.Sprintf("did not happen: %s: the job had already ended", f))
	}
	_ = humanize.JSON(v.Out, s) // Out keeps the error
}
