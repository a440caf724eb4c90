package sim

import "fmt"

// Violation reports a broken guarantee.
type Violation struct {
	What string
	// Speaker reports whether the guarantee covers only the process that speaks for a slot. Other processes do not wait
	// for a process that was given up and does not know it yet.
	Speaker bool
}

func (v *Violation) Error() string { return "sim: guarantee violated: " + v.What }

func violated(format string, args ...any) error {
	return &Violation{What: fmt.Sprintf(format, args...)}
}
