package study

import (
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/perdure/perdure"
)

// maxInUse is the maximum fraction of a machine's cores that may be in use when a study starts that measures time.
const maxInUse = 0.25

// Idle returns an error if other processes keep the machine busy. It observes the machine for a second. Systems without
// /proc/stat count as idle.
func Idle() error {
	first, _ := os.ReadFile("/proc/stat")
	time.Sleep(time.Second)
	second, _ := os.ReadFile("/proc/stat")
	return idle(string(first), string(second))
}

func idle(first, second string) error {
	work0, all0 := ticks(first)
	work, all := ticks(second)
	if inUse := (work - work0) / (all - all0); inUse > maxInUse && all > all0 {
		return perdure.Usagef("other programs use %.0f%% of this machine's cores, which would distort the runs' "+
			"times; wait, or add --busy", 100*inUse)
	}
	return nil
}

// ticks returns the CPU ticks that all cores spent working, and all ticks, from the first line of /proc/stat.
func ticks(stat string) (work, all float64) {
	line, _, _ := strings.Cut(stat, "\n")
	for i, field := range strings.Fields(line) {
		v, err := strconv.ParseFloat(field, 64)
		if i == 0 || i > 8 || err != nil { // later fields are guest times, which the first ones include
			continue
		}
		all += v
		if i != 4 && i != 5 { // not idle or waiting for a disk
			work += v
		}
	}
	return work, all
}
