package supervisor

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
)

const (
	// lifelineEnv holds the descriptor of the lifeline, a colon, and the supervisor's process ID. The lifeline is the
	// read end of a pipe whose write end only the supervisor has. A program passes the variable to its own children,
	// but not the descriptor.
	lifelineEnv = "PERDURE_LIFELINE_FD"
	// firstFile is the descriptor of the first of exec.Cmd's ExtraFiles.
	firstFile = 3
)

var hasParent atomic.Bool

// HasParent reports whether a supervisor started this process. It is valid after DieWithParent.
func HasParent() bool { return hasParent.Load() }

// DieWithParent makes this process end, as if by SIGKILL, when the supervisor that started it is gone. This works on
// every system. On Linux, the kernel additionally kills the process, even if it is frozen. DieWithParent does nothing
// in a process without a supervisor. Call it once, at the start of main.
func DieWithParent() error {
	value, ok := os.LookupEnv(lifelineEnv)
	if !ok {
		return nil
	}
	// Children of this process have another parent.
	if err := os.Unsetenv(lifelineEnv); err != nil {
		return fmt.Errorf("supervisor: %w", err)
	}
	number, parent, _ := strings.Cut(value, ":")
	if pid, err := strconv.Atoi(parent); err == nil && pid != os.Getppid() && processExists(pid) {
		return nil // the lifeline of an ancestor
	}
	hasParent.Store(true)
	fd, err := strconv.ParseUint(number, 10, 31)
	if err != nil {
		return fmt.Errorf("supervisor: invalid descriptor in %s=%q", lifelineEnv, value)
	}
	closeOnExec(int(fd))
	pipe := os.NewFile(uintptr(fd), "lifeline")
	info, err := pipe.Stat()
	if err != nil {
		return fmt.Errorf("supervisor: %s=%q: %w", lifelineEnv, value, err)
	}
	if info.Mode()&fs.ModeNamedPipe == 0 {
		return fmt.Errorf("supervisor: the descriptor in %s=%q is not a pipe", lifelineEnv, value)
	}
	self, err := os.FindProcess(os.Getpid())
	if err != nil {
		return fmt.Errorf("supervisor: %w", err)
	}
	go func() { // runs until it ends the process
		_, _ = io.Copy(io.Discard, pipe) // no process writes to the pipe; Copy returns when the write end is closed
		_ = self.Kill()                  // no error handling: the supervisor is gone
	}()
	return nil
}

// processExists reports whether a process with this ID exists.
func processExists(pid int) bool {
	p, err := os.FindProcess(pid)
	return err == nil && !errors.Is(p.Signal(syscall.Signal(0)), os.ErrProcessDone)
}
