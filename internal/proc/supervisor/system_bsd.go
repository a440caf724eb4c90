//go:build unix && !linux

package supervisor

import "syscall"

// processAttributes puts each process into its own process group, so that Ctrl-C in the terminal reaches only the
// supervisor, which ends the others gracefully.
func processAttributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
