//go:build !js

package disk

import "syscall"

// noWait opens a pipe without waiting for who would write to it.
const noWait = syscall.O_NONBLOCK
