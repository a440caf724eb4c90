package sim

import "fmt"

// Violation reports a broken guarantee.
type Violation struct {
	Text string
	// CurrentOnly reports whether the guarantee covers only the process that speaks for a slot. Other processes do not
	// wait for a process that was given up and does not know it yet.
	CurrentOnly bool
}

func (v *Violation) Error() string { return "sim: guarantee violated: " + v.Text }

func violated(format string, args ...any) error {
	return &Violation{Text: fmt.Sprintf(format, args...)}
}
