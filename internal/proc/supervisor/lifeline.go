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
	// lifelineEnv tells a process which of its descriptors is the lifeline, the read
	// end of a pipe whose write end only the supervisor has; and after a colon the
	// supervisor's process ID. A program that the supervisor starts hands the variable
	// on to what it starts itself, and not the descriptor.
	lifelineEnv = "PERDURE_LIFELINE_FD"
	// firstFile is the descriptor of the first of exec.Cmd's ExtraFiles.
	firstFile = 3
)

var hasParent atomic.Bool

// HasParent reports whether a supervisor started this process, once DieWithParent was
// called.
func HasParent() bool { return hasParent.Load() }

// DieWithParent makes this process end, as if by SIGKILL, when the supervisor
// that started it is gone, on every system; on Linux the kernel sees to it too,
// also for a frozen process. It does nothing in a process that no supervisor
// has started. Call it once, first thing in main.
func DieWithParent() error {
	value, ok := os.LookupEnv(lifelineEnv)
	if !ok {
		return nil
	}
	// Whoever this process starts has another parent.
	if err := os.Unsetenv(lifelineEnv); err != nil {
		return fmt.Errorf("supervisor: %w", err)
	}
	number, parent, _ := strings.Cut(value, ":")
	if pid, err := strconv.Atoi(parent); err == nil && pid != os.Getppid() && lives(pid) {
		return nil // of a process that this one's parent is a child of
	}
	hasParent.Store(true)
	fd, err := strconv.ParseUint(number, 10, 31)
	if err != nil {
		return fmt.Errorf("supervisor: %s=%q is no descriptor", lifelineEnv, value)
	}
	closeOnExec(int(fd))
	pipe := os.NewFile(uintptr(fd), "lifeline")
	info, err := pipe.Stat()
	if err != nil {
		return fmt.Errorf("supervisor: %s=%q: %w", lifelineEnv, value, err)
	}
	if info.Mode()&fs.ModeNamedPipe == 0 {
		return fmt.Errorf("supervisor: %s=%q is no pipe", lifelineEnv, value)
	}
	self, err := os.FindProcess(os.Getpid())
	if err != nil {
		return fmt.Errorf("supervisor: %w", err)
	}
	go func() { // until the end of the process, which it brings about
		_, _ = io.Copy(io.Discard, pipe) // nobody writes: it returns when nobody can
		_ = self.Kill()                  // there is nobody left to tell
	}()
	return nil
}

// lives reports whether there is a process of that number.
func lives(pid int) bool {
	p, err := os.FindProcess(pid)
	return err == nil && !errors.Is(p.Signal(syscall.Signal(0)), os.ErrProcessDone)
}
