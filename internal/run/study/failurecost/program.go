package failurecost

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
)

// RunProgram runs program with args, which contain folder, and returns its output. It first removes files that an
// earlier attempt left in folder. After timeout it asks the program to end and returns late. err is an error of the
// program or the system.
func RunProgram(
	ctx context.Context, program string, args []string, dir string, timeout time.Duration,
) (output string, late bool, err error) {
	if err := os.RemoveAll(dir); err != nil {
		return "", false, err
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o777); err != nil {
		return "", false, err
	}
	limited, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	command := exec.CommandContext(limited, program, args...)
	command.Cancel = func() error { return command.Process.Signal(syscall.SIGTERM) } // it ends its children
	command.WaitDelay = 10 * time.Second
	text, err := command.CombinedOutput()
	return string(text), limited.Err() != nil, err
}
