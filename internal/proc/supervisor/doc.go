// Package supervisor starts, watches, faults and ends the processes of a job on
// one machine. It knows nothing of training: what a death means, and whether
// the dead are replaced, is for its caller to say.
//
// A [Group] keeps one process at each place (a role and a number). Invariants:
//
//   - a place has at most one process, and its exit is told (OnExit) before the
//     next one starts;
//   - no process outlives its Group: not Stop, and not the supervisor's own
//     death by SIGKILL;
//   - every signal reaches the process it was meant for or none: a process
//     number that the system has given to another is never used.
//
// A [Fault] is a planned failure, and a [Schedule] says when which is due; both
// are pure. A Group is safe for concurrent use; OnExit is called from the
// places' own goroutines, for different places at once.
package supervisor
