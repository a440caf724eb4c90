package supervisor

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/perdure/perdure/internal/data/wire"
)

// Usage is the resource usage of all processes of a role together.
type Usage struct {
	CPU time.Duration // CPU time so far, including ended processes
	RSS int64         // current resident memory in bytes
	// Bytes so far, including ended processes up to their last sample; 0 without /proc.
	Written int64 // passed to write system calls, for connections and files
	Stored  int64 // file data that the system had to bring to storage
}

// plus adds the usage of an ended process, except for its memory.
func (u Usage) plus(ended Usage) Usage {
	return Usage{
		CPU: u.CPU + ended.CPU, RSS: u.RSS, Written: u.Written + ended.Written,
		Stored: u.Stored + ended.Stored,
	}
}

// Usage samples the usage of each role's processes. Without /proc, running processes count as 0 until they end.
func (g *Group) Usage() map[wire.Role]Usage {
	g.mu.Lock()
	defer g.mu.Unlock()
	byRole := map[wire.Role]Usage{}
	maps.Copy(byRole, g.spent)
	for _, k := range g.children {
		u := byRole[k.spec.Role]
		if pid := k.pidLocked(); pid != 0 {
			// A process that just ended may be gone from /proc. Its last sample is then used, so that the sum never
			// decreases.
			if now, ok := processUsage(pid); ok && now.CPU >= k.used.CPU {
				now.Written, now.Stored = max(now.Written, k.used.Written), max(now.Stored, k.used.Stored)
				k.used = now
				u.RSS += now.RSS
			}
			u = u.plus(k.used)
		}
		byRole[k.spec.Role] = u
	}
	return byRole
}

// processUsage reads /proc/PID/stat and /proc/PID/io.
func processUsage(pid int) (Usage, bool) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return Usage{}, false
	}
	u, ok := parseStat(stat)
	if io, err := os.ReadFile(fmt.Sprintf("/proc/%d/io", pid)); err == nil {
		u.Written, u.Stored = parseIO(io)
	}
	return u, ok
}

// parseIO returns the bytes written in proc_pid_io(5); missing values are 0.
func parseIO(text []byte) (written, stored int64) {
	for line := range bytes.Lines(text) {
		name, value, _ := bytes.Cut(line, []byte(": "))
		n, err := strconv.ParseInt(string(bytes.TrimSpace(value)), 10, 64)
		if err != nil {
			continue
		}
		switch string(name) {
		case "wchar":
			written = n
		case "write_bytes":
			stored = n
		}
	}
	return written, stored
}

// wantsToRun reports whether a thread of a process is running, runnable, or waiting for a disk, according to
// /proc/PID/task/TID/stat. It is false without /proc.
func wantsToRun(pid int) bool {
	threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	return slices.ContainsFunc(threads, func(path string) bool {
		stat, err := os.ReadFile(path)
		end := bytes.LastIndexByte(stat, ')') // end of the program's name, which may contain any character
		if err != nil || end < 0 {
			return false
		}
		fields := bytes.Fields(stat[end+1:])
		return len(fields) > 0 && (string(fields[0]) == "R" || string(fields[0]) == "D")
	})
}

// clockTick is the unit of CPU time in /proc: 1/sysconf(_SC_CLK_TCK) s, which is 1/100 s on every architecture of Go's
// Linux port.
const clockTick = 10 * time.Millisecond

// parseStat returns the CPU time (fields 14 and 15, user and system) and the resident pages (field 24) of
// proc_pid_stat(5).
func parseStat(stat []byte) (u Usage, ok bool) {
	// Field 2 is the program's name in parentheses, and may contain any character.
	end := bytes.LastIndexByte(stat, ')')
	if end < 0 {
		return u, false
	}
	fields := bytes.Fields(stat[end+1:]) // starts with field 3
	const user, system, pages = 14 - 3, 15 - 3, 24 - 3
	if len(fields) <= pages {
		return u, false
	}
	var n [3]int64
	for i, field := range []int{user, system, pages} {
		v, err := strconv.ParseInt(string(fields[field]), 10, 64)
		if err != nil {
			return u, false
		}
		n[i] = v
	}
	return Usage{CPU: time.Duration(n[0]+n[1]) * clockTick, RSS: n[2] * int64(os.Getpagesize())}, true
}
