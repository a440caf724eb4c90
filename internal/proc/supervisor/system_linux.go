package supervisor

import "syscall"

// withDeathSignal is switched off by the test that the lifeline alone does it.
var withDeathSignal = true

// processAttributes gives each process a group of its own, so that Ctrl-C in
// the terminal reaches the supervisor only, which ends the others in order; and
// lets the kernel kill it when the thread that started it ends (see
// Group.runThread).
func processAttributes() *syscall.SysProcAttr {
	a := &syscall.SysProcAttr{Setpgid: true}
	if withDeathSignal {
		a.Pdeathsig = syscall.SIGKILL
	}
	return a
}
