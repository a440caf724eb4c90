//go:build !js

package disk

import "syscall"

// noWait opens a pipe without waiting for a writer.
const noWait = syscall.O_NONBLOCK
