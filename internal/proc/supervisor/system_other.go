//go:build !unix

package supervisor

import (
	"os"
	"syscall"
)

// Sending signals that the system does not have fails. Groups need inherited descriptors, which these systems also
// lack, so Start fails.
const (
	signalTerm = syscall.SIGTERM
	signalStop = syscall.Signal(-1)
	signalCont = syscall.Signal(-2)
)

func processAttributes() *syscall.SysProcAttr { return nil }

func signalOf(*os.ProcessState) string { return "" }

func closeOnExec(int) {}
