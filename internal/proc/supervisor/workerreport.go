package supervisor

import (
	"slices"
	"strings"

	"github.com/perdure/perdure/internal/data/wire"
)

// ExitUsage is the exit code of a program that was used wrongly. A restart would fail in the same way.
const ExitUsage = 2

// usageError is the prefix of the last line of a Python program that did not catch Perdure's usage error.
const usageError = "perdure.errors.UsageError: "

// consequences lists prefixes of the last line of a Python program that ended because of something else: its slot was
// given to another process, its agent was killed, or it lost the coordinator.
var consequences = []string{
	"perdure.errors.Fenced: ", "perdure.errors.AgentDied: ", "perdure.errors.Lost: ", "perdure.errors.Stopped: ",
	"perdure.errors.Done: ",
}

// ownSignals are the signals that a process causes by itself. All others come from outside: from the fault injector, an
// operator, or the system, for example when it runs out of memory.
var ownSignals = []string{"SIGSEGV", "SIGABRT", "SIGBUS", "SIGFPE", "SIGILL", "SIGSYS", "SIGTRAP"}

// outsideCodes lists the exit codes that shells and programs use after a signal from outside ended them or a child:
// SIGHUP, SIGINT, SIGQUIT, SIGKILL and SIGTERM.
var outsideCodes = []int{128 + 1, exitSignal, 128 + 3, 128 + 9, 128 + 15}

// WorkerReport returns the report to the coordinator about a worker's exit that the supervisor did not cause. The
// coordinator counts the failures, because it knows the slot's clock and all hosts. own reports whether the worker is a
// user's program, which defines its own exit codes.
func (e *Exit) WorkerReport(own bool) wire.Exited {
	x := wire.Exited{Role: e.Role, Index: e.Index, PID: e.PID, How: e.Description}
	foreign := func(start string) bool { return strings.HasPrefix(e.LastLine, start) }
	switch {
	case e.PID == 0, !own && e.Code == exitFenced, slices.Contains(outsideCodes, e.Code),
		e.Signal != "" && !slices.Contains(ownSignals, e.Signal), slices.ContainsFunc(consequences, foreign):
		return x
	}
	x.Failed, x.Code, x.Detail, x.Output = true, e.Code, strings.TrimPrefix(e.LastLine, "perdure: "), e.Tail
	// a Go panic exits with the same code
	x.Final = e.Code == ExitUsage && !goPanic(e.LastLine) || foreign(usageError)
	x.Detail = strings.TrimPrefix(x.Detail, usageError)
	return x
}
