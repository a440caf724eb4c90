//go:build !unix

package main

import "os"

// lives reports whether a process runs. On these systems a process that has ended is not found.
func lives(pid int) bool {
	p, err := os.FindProcess(pid)
	if err != nil {
		return false
	}
	_ = p.Release() // only its existence matters
	return true
}
