package perdure

import "errors"

var (
	// ErrRolledBack is returned by Get, Inc and other calls of a worker after the
	// job was rolled back to an earlier clock and until Clock is called. What was
	// Inc'd since is dropped; the next Clock returns the clock to work on.
	ErrRolledBack = errors.New("perdure: the job was rolled back; call Clock and go on from the clock it returns")

	// ErrFenced is returned when this process's place (a worker's slot, a server's
	// shards) has been given to a newer process. It must end.
	ErrFenced = errors.New("perdure: this process's place has been taken by a newer one")

	// ErrStopped is returned when the job was stopped, or had ended before.
	ErrStopped = errors.New("perdure: the job is over")

	// ErrDone is the ErrStopped of who comes when everything is done.
	ErrDone error = doneError{}

	// ErrFailed is the ErrStopped of a job that cannot continue: its message says why.
	ErrFailed error = failedError{}

	// ErrLost is returned by a worker's calls when no process of the job has been heard
	// for long. The process must end: the job may be gone, and if it is not, another
	// process may have its slot.
	ErrLost = errors.New("perdure: lost sight of the job")

	// ErrRefused wraps every reason for which a peer turns a connection down for
	// good: retrying with the same parameters cannot succeed.
	ErrRefused = errors.New("perdure: refused")

	// ErrNonFinite is returned by Inc for a delta with NaN or ±Inf in it, unless
	// the table lets them through. Nothing of the delta is taken.
	ErrNonFinite = errors.New("perdure: NaN or Inf in an update")

	// ErrBound is returned by Get for rows that are staler than the table's
	// consistency model allows. It means that something is broken: nobody gives or
	// takes such rows knowingly.
	ErrBound = errors.New("perdure: a read broke its bound")

	// ErrUnkept is returned when a shard lacks updates that nobody has kept. It means that
	// something is broken: the job would have rolled back.
	ErrUnkept = errors.New("perdure: a shard lacks updates that nobody has kept")

	// ErrUsage wraps every mistake in what the user asked for.
	ErrUsage = errors.New("perdure: usage")
)

type doneError struct{}

func (doneError) Error() string { return "perdure: the job is done" }

func (doneError) Is(target error) bool { return target == ErrStopped }

type failedError struct{}

func (failedError) Error() string { return "perdure: the job has failed" }

func (failedError) Is(target error) bool { return target == ErrStopped }
