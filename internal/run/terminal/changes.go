package terminal

import (
	"fmt"
	"io"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/protocol"
	"github.com/perdure/perdure/internal/run/humanize"
)

// Change is a worker that joins or leaves.
type Change struct {
	Worker int           `json:"worker"`
	Joins  bool          `json:"joins"` // false: it leaves
	Clock  perdure.Clock `json:"clock"` // first clock in which it takes part, or its last one
}

// String formats the change as one line.
func (c Change) String() string {
	if c.Joins {
		return fmt.Sprintf("worker:%d joins; it takes part from clock %d on", c.Worker, c.Clock)
	}
	return fmt.Sprintf("worker:%d leaves; clock %d is its last", c.Worker, c.Clock)
}

// Changes returns the workers that join or leave between two views.
func Changes(before, now []protocol.SlotView) (all []Change) {
	for i, s := range now {
		was := protocol.Interval{Until: -1}
		if i < len(before) {
			was = before[i].Interval
		}
		switch {
		case s.Interval == was:
		case s.Until > 0:
			all = append(all, Change{i, false, s.Until - 1})
		default:
			all = append(all, Change{i, true, s.From})
		}
	}
	return all
}

// acceptedReply is a job's reply to a request, for programs.
type acceptedReply struct {
	Accepted string   `json:"accepted,omitempty"` // planned changes
	Changes  []Change `json:"changes,omitempty"`  // decided changes
}

// PrintAccepted prints a job's reply to a request: words about planned changes, or the workers that join and leave.
func PrintAccepted(out io.Writer, words string, changes []Change, asJSON bool) error {
	tell := humanize.NewPrinter(out, asJSON)
	if words != "" {
		tell.Line("%s", words)
	}
	for _, c := range changes {
		tell.Line("%s", c)
	}
	return tell.End(acceptedReply{words, changes})
}
