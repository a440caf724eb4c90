package supervisor

import "syscall"

// withDeathSignal is disabled by the test of the lifeline alone.
var withDeathSignal = true

// processAttributes puts each process into its own process group, so that Ctrl-C in the terminal reaches only the
// supervisor, which ends the others gracefully. It also makes the kernel kill the process when the thread that started
// it ends (see Group.runThread).
func processAttributes() *syscall.SysProcAttr {
	a := &syscall.SysProcAttr{Setpgid: true}
	if withDeathSignal {
		a.Pdeathsig = syscall.SIGKILL
	}
	return a
}
