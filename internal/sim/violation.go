package sim

import "fmt"

// Violation is a promise that was not kept.
type Violation struct {
	What string
	// Speaker says that it was promised only to who speaks for a slot: others do not
	// wait for a process that was given up, and does not know it yet.
	Speaker bool
}

func (v *Violation) Error() string { return "sim: promise broken: " + v.What }

func violated(format string, args ...any) error {
	return &Violation{What: fmt.Sprintf(format, args...)}
}
