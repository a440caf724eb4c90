package study

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/perdure/perdure"
)

// maxInUse is the part of a machine's cores that may be at work when a study that measures times starts.
const maxInUse = 0.25

// Idle returns an error if other processes keep the machine busy. It looks for a second. Systems without /proc/stat
// count as idle.
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
		return fmt.Errorf("%w: the machine is busy with something else, and the times of runs would be wrong: %.0f%% "+
			"of its cores are at work; wait, or add --busy", perdure.ErrUsage, 100*inUse)
	}
	return nil
}

// ticks are those that all cores have worked, and all that there were, of the first line of /proc/stat.
func ticks(stat string) (work, all float64) {
	line, _, _ := strings.Cut(stat, "\n")
	for i, field := range strings.Fields(line) {
		v, err := strconv.ParseFloat(field, 64)
		if i == 0 || i > 8 || err != nil { // the others are times of guests, which these contain
			continue
		}
		all += v
		if i != 4 && i != 5 { // idle, or waiting for a disk
			work += v
		}
	}
	return work, all
}
