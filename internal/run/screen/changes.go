package screen

import (
	"fmt"
	"io"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/words"
	"github.com/perdure/perdure/internal/run/plain"
)

// Change is a worker that joins or leaves.
type Change struct {
	Worker int           `json:"worker"`
	Joins  bool          `json:"joins"` // false: it leaves
	Clock  perdure.Clock `json:"clock"` // the first in which it takes part, or the last
}

// String says it in a line.
func (c Change) String() string {
	if c.Joins {
		return fmt.Sprintf("worker:%d joins; it takes part from clock %d on", c.Worker, c.Clock)
	}
	return fmt.Sprintf("worker:%d leaves; clock %d is its last", c.Worker, c.Clock)
}

// Changes says which workers join and which leave between two views.
func Changes(before, now []words.SlotView) (all []Change) {
	for i, s := range now {
		was := words.Span{Until: -1}
		if i < len(before) {
			was = before[i].Span
		}
		switch {
		case s.Span == was:
		case s.Until > 0:
			all = append(all, Change{i, false, s.Until - 1})
		default:
			all = append(all, Change{i, true, s.From})
		}
	}
	return all
}

// accepted is what a job has answered to what it was asked for, for programs.
type accepted struct {
	Accepted string   `json:"accepted,omitempty"` // what is to come
	Changes  []Change `json:"changes,omitempty"`  // what is decided
}

// Accepted shows what a job has answered: what is to come, in its words, or who joins and leaves.
func Accepted(out io.Writer, words string, changes []Change, asJSON bool) error {
	tell := plain.Tell(out, asJSON)
	if words != "" {
		tell.Line("%s", words)
	}
	for _, c := range changes {
		tell.Line("%s", c)
	}
	return tell.End(accepted{words, changes})
}
