package supervisor

import (
	"slices"
	"strings"

	"github.com/perdure/perdure/internal/data/wire"
)

// ExitUsage is how a program ends that was used wrongly: it would end so again.
const ExitUsage = 2

// usageError begins the last line of a Python program that did not catch Perdure's own error of wrong usage.
const usageError = "perdure.errors.UsageError: "

// notItsFault begin the last line of a Python program that ends since something else did: another process was given its
// slot, its agent was killed, or the coordinator was not heard.
var notItsFault = []string{
	"perdure.errors.Fenced: ", "perdure.errors.AgentDied: ", "perdure.errors.Lost: ", "perdure.errors.Stopped: ",
	"perdure.errors.Done: ",
}

// ownSignals end a process because of what it did itself. All others came from outside: from the fault injector, from
// an operator, or from the system, which may have needed the memory.
var ownSignals = []string{"SIGSEGV", "SIGABRT", "SIGBUS", "SIGFPE", "SIGILL", "SIGSYS", "SIGTRAP"}

// outside are the codes by which shells and programs say that a signal from outside ended them or a process of theirs:
// SIGHUP, SIGINT, SIGQUIT, SIGKILL and SIGTERM.
var outside = []int{128 + 1, exitSignal, 128 + 3, 128 + 9, 128 + 15}

// Worker is what the coordinator is told of a worker's end that nobody here has brought about. The coordinator counts
// failures, since it knows the slot's clock and all hosts. own says that it is a program of
// the user's, whose codes are its own.
func (e *Exit) Worker(own bool) wire.Exited {
	x := wire.Exited{Role: e.Role, Index: e.Index, PID: e.PID, How: e.How}
	foreign := func(start string) bool { return strings.HasPrefix(e.LastLine, start) }
	switch {
	case e.PID == 0, !own && e.Code == exitFenced, slices.Contains(outside, e.Code),
		e.Signal != "" && !slices.Contains(ownSignals, e.Signal), slices.ContainsFunc(notItsFault, foreign):
		return x
	}
	x.Failed, x.Code, x.Why, x.Said = true, e.Code, strings.TrimPrefix(e.LastLine, "perdure: "), e.Tail
	// a Go program that panics has that code, too
	x.Final = e.Code == ExitUsage && !goPanic(e.LastLine) || foreign(usageError)
	x.Why = strings.TrimPrefix(x.Why, usageError)
	return x
}
