//go:build unix && !linux

package supervisor

import "syscall"

// processAttributes gives each process a group of its own, so that Ctrl-C in
// the terminal reaches the supervisor only, which ends the others in order.
func processAttributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
