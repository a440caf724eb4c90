package study

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/perdure/perdure/internal/run/humanize"
)

// List prints what would be run: each cell with the command of its first run, the cells left out, and the notes on
// plans.
func (s *Study) List(out io.Writer) error {
	for _, c := range s.Cells {
		args, err := c.Args(s.Seeds[0])
		if err != nil {
			return err
		}
		fmt.Fprintf(out, "%s: perdure %s %s\n", c.Name, strings.Join(c.kind.Command, " "),
			strings.Join(quoted(args), " "))
	}
	for _, l := range s.LeftOut {
		fmt.Fprintf(out, "left out %s: %s\n", l.Name, l.Why)
	}
	for _, n := range s.Notes {
		fmt.Fprintln(out, "note     "+n)
	}
	text := fmt.Sprintf("%d cells, %d seeds: %d runs", len(s.Cells), len(s.Seeds), len(s.Cells)*len(s.Seeds))
	if t := s.time(); t > 0 {
		text += ", of " + humanize.Roughly(t) + " of training, one at a time"
	}
	_, err := fmt.Fprintln(out, text)
	return err
}

// time returns the total training time of all runs, or 0 if a job has no time limit.
func (s *Study) time() (all time.Duration) {
	for _, c := range s.Cells {
		if c.job.Time == 0 {
			return 0
		}
		all += c.job.Time * time.Duration(len(s.Seeds))
	}
	return all
}

// quoted quotes arguments for a shell.
func quoted(args []string) (all []string) {
	for _, a := range args {
		if strings.ContainsAny(a, " *±&?;'\"$") {
			a = "'" + strings.ReplaceAll(a, "'", `'\''`) + "'"
		}
		all = append(all, a)
	}
	return all
}
