package machine

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Memory returns the memory of this machine in bytes, or the limit of this process's cgroup if that is lower. It
// returns 0 if the system does not report it.
func Memory() int64 {
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0
	}
	for line := range bytes.Lines(text) {
		var kb int64
		if n, _ := fmt.Sscanf(string(line), "MemTotal: %d kB", &kb); n == 1 {
			if most, limited := number(filepath.Join(cgroup(), "memory.max")); limited {
				return min(kb<<10, int64(most))
			}
			return kb << 10
		}
	}
	return 0
}

// FreeMemory returns how many bytes this machine, or this process's cgroup, can allocate without swapping. known
// reports whether the system provides the value.
func FreeMemory() (bytes float64, known bool) {
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0, false
	}
	for line := range strings.Lines(string(text)) {
		if _, err := fmt.Sscanf(line, "MemAvailable: %f kB", &bytes); err == nil {
			bytes, known = bytes*1024, true
			break
		}
	}
	group := cgroup()
	most, limited := number(filepath.Join(group, "memory.max"))
	if used, ok := number(filepath.Join(group, "memory.current")); known && limited && ok {
		bytes = min(bytes, max(0, most-used+cached(group)))
	}
	return bytes, known
}

// cached returns how many bytes of a cgroup's memory are file cache, which the kernel reclaims when processes need
// memory.
func cached(group string) (bytes float64) {
	text, _ := os.ReadFile(filepath.Join(group, "memory.stat")) // empty if the file is missing
	for line := range strings.Lines(string(text)) {
		var name string
		var n float64
		if _, err := fmt.Sscanf(line, "%s %f", &name, &n); err == nil &&
			(name == "active_file" || name == "inactive_file" || name == "slab_reclaimable") {
			bytes += n
		}
	}
	return bytes
}

// cgroup returns the directory of this process's cgroup (version 2).
func cgroup() string {
	text, _ := os.ReadFile("/proc/self/cgroup") // empty if the file is missing
	for line := range strings.Lines(string(text)) {
		if path, ok := strings.CutPrefix(strings.TrimSpace(line), "0::"); ok {
			return filepath.Join("/sys/fs/cgroup", path)
		}
	}
	return "/sys/fs/cgroup"
}

func number(file string) (float64, bool) {
	text, err := os.ReadFile(file)
	if err != nil {
		return 0, false
	}
	v, err := strconv.ParseFloat(strings.TrimSpace(string(text)), 64) // "max" means no limit
	return v, err == nil
}
