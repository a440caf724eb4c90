package supervisor

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/perdure/perdure/wire"
)

// Usage is what the processes of a role use, together.
type Usage struct {
	CPU time.Duration // processor time so far, of those that have ended too
	RSS int64         // resident memory in bytes, now
}

// Usage samples what each role's processes use. Where there is no /proc, what
// runs counts 0 until it has ended.
func (g *Group) Usage() map[wire.Role]Usage {
	g.mu.Lock()
	defer g.mu.Unlock()
	byRole := map[wire.Role]Usage{}
	for role, cpu := range g.spent {
		byRole[role] = Usage{CPU: cpu}
	}
	for _, k := range g.places {
		u := byRole[k.spec.Role]
		if pid := k.pid(); pid != 0 {
			// One that has just ended may be gone from /proc: its last sample stands
			// in, so that the sum does not go back.
			if now, ok := processUsage(pid); ok && now.CPU >= k.cpu {
				k.cpu = now.CPU
				u.RSS += now.RSS
			}
			u.CPU += k.cpu
		}
		byRole[k.spec.Role] = u
	}
	return byRole
}

// processUsage reads /proc/PID/stat.
func processUsage(pid int) (Usage, bool) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return Usage{}, false
	}
	return parseStat(stat)
}

// clockTick is the unit of processor time in /proc: 1/sysconf(_SC_CLK_TCK) s,
// which is 1/100 s on every architecture that Go's Linux port has.
const clockTick = 10 * time.Millisecond

// parseStat reads the processor time (fields 14 and 15, user and system) and
// the resident pages (field 24) of proc_pid_stat(5).
func parseStat(stat []byte) (u Usage, ok bool) {
	// Field 2 is the program's name in parentheses, and may contain anything.
	end := bytes.LastIndexByte(stat, ')')
	if end < 0 {
		return u, false
	}
	fields := bytes.Fields(stat[end+1:]) // from field 3 on
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
