//go:build unix

package supervisor

import (
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

const (
	signalTerm = syscall.SIGTERM
	signalStop = syscall.SIGSTOP
	signalCont = syscall.SIGCONT
)

// signalOf returns the name of the signal that ended a process, or "".
func signalOf(s *os.ProcessState) string {
	if status, ok := s.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return unix.SignalName(status.Signal())
	}
	return ""
}

func closeOnExec(fd int) { syscall.CloseOnExec(fd) }
