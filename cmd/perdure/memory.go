package main

import (
	"bytes"
	"fmt"
	"os"
)

// machineMemory returns the bytes of memory that this machine has; 0: it does not say.
func machineMemory() int64 {
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0
	}
	var kb int64
	for line := range bytes.Lines(text) {
		if n, _ := fmt.Sscanf(string(line), "MemTotal: %d kB", &kb); n == 1 {
			return kb << 10
		}
	}
	return 0
}
