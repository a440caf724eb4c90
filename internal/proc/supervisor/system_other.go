//go:build !unix

package supervisor

import (
	"os"
	"syscall"
)

// Signals that the system does not have fail to be sent. Groups need inherited
// descriptors, which such systems do not have either: Start fails.
const (
	signalTerm = syscall.SIGTERM
	signalStop = syscall.Signal(-1)
	signalCont = syscall.Signal(-2)
)

func processAttributes() *syscall.SysProcAttr { return nil }

func signalOf(*os.ProcessState) string { return "" }

func closeOnExec(int) {}
