// Package supervisor starts, watches, faults and ends the processes of a job on one machine. It does not interpret
// deaths: its caller decides whether a dead process is replaced.
//
// A [Group] keeps one process at each place (a role and an index). Invariants:
//
//   - A place has at most one process, and its exit is reported (OnExit) before the next one starts.
//   - No process outlives its Group: neither after Stop, nor if the supervisor itself is killed by SIGKILL.
//   - Every signal reaches the intended process or none: a process ID that the system has reused is never signalled.
//
// A [Fault] is a planned failure, and a [Schedule] determines when each is due; both are pure. A Group is safe for
// concurrent use. OnExit is called from one goroutine per place, for several places at the same time.
package supervisor
