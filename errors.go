package perdure

import (
	"errors"
	"fmt"
)

var (
	// ErrRolledBack is returned by Get, Inc and other calls of a worker from a rollback of the job until the worker
	// calls Clock. Deltas added since the cut are dropped. The next Clock returns the clock to work on.
	ErrRolledBack = errors.New("perdure: the job was rolled back; call Clock and continue from the clock it returns")

	// ErrFenced is returned when a newer process has taken over this process's slot or server index. The process must
	// end.
	ErrFenced = errors.New("perdure: a newer process has taken over this process's slot or server index")

	// ErrStopped is returned when the job was stopped, or had ended before.
	ErrStopped = errors.New("perdure: the job is over")

	// ErrDone is the ErrStopped for a process that joins after the job is done.
	ErrDone error = doneError{}

	// ErrFailed is the ErrStopped of a job that cannot continue; its message gives the reason.
	ErrFailed error = failedError{}

	// ErrLost is returned by a worker's calls when it has not received anything from any process of the job for too
	// long. The process must end: the job may be gone, and if it is not, another process may have taken the slot.
	ErrLost = errors.New("perdure: no process of the job is reachable")

	// ErrRefused wraps every reason for which a peer rejects a connection permanently: retrying with the same
	// parameters cannot succeed.
	ErrRefused = errors.New("perdure: refused")

	// ErrNonFinite is returned by Inc for a delta that contains NaN or ±Inf, unless the table allows them. No part of
	// the delta is applied.
	ErrNonFinite = errors.New("perdure: NaN or Inf in an update")

	// ErrBound is returned by Get for rows that are staler than the table's consistency model allows. It indicates a
	// bug: correct servers never send such rows.
	ErrBound = errors.New("perdure: a read violates its staleness bound")

	// ErrNoCopy is returned when a shard lacks updates and no process has a copy of them. It indicates a bug: the job
	// should have rolled back.
	ErrNoCopy = errors.New("perdure: a shard has lost updates, and no copy of them exists")

	// ErrUsage wraps every error in the user's input: flags, configuration and API arguments.
	ErrUsage = errors.New("perdure: usage")
)

// Usagef returns an error that wraps ErrUsage, formatted like fmt.Errorf. Name the offending value and a remedy.
func Usagef(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{ErrUsage}, args...)...)
}

type doneError struct{}

func (doneError) Error() string { return "perdure: the job is done" }

func (doneError) Is(target error) bool { return target == ErrStopped }

type failedError struct{}

func (failedError) Error() string { return "perdure: the job has failed" }

func (failedError) Is(target error) bool { return target == ErrStopped }
