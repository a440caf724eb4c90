package study

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/perdure/perdure"
)

// Limits of what else a machine may do while a study measures times on it: of the load of the last minute, per
// core, and of the cores that are at work now. Both must be passed: the load alone is still high when what made it
// has just ended.
const (
	mostLoad  = 0.5
	mostInUse = 0.25
	lookFor   = 300 * time.Millisecond
)

// Idle says in an error when the machine is busy with others. Where the system does not tell, nothing is said.
func Idle() error {
	load, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return nil
	}
	first, _ := os.ReadFile("/proc/stat")
	time.Sleep(lookFor)
	second, _ := os.ReadFile("/proc/stat")
	return idle(string(load), string(first), string(second), runtime.NumCPU())
}

func idle(load, first, second string, cores int) error {
	fields := strings.Fields(load)
	if len(fields) == 0 {
		return nil
	}
	average, err := strconv.ParseFloat(fields[0], 64)
	if err != nil {
		return nil
	}
	work, all := ticks(second)
	work0, all0 := ticks(first)
	inUse := 1.0
	if all > all0 {
		inUse = (work - work0) / (all - all0)
	}
	if per := average / float64(cores); per > mostLoad && inUse > mostInUse {
		return fmt.Errorf("%w: the machine is busy with something else, and the times of runs would be wrong: load "+
			"%.2f on each of %d cores, %.0f%% of them at work now; wait, or add --busy", perdure.ErrUsage, per, cores,
			100*inUse)
	}
	return nil
}

// ticks are those that all cores have worked, and all that there were, of the first line of /proc/stat.
func ticks(stat string) (work, all float64) {
	line, _, _ := strings.Cut(stat, "\n")
	for i, field := range strings.Fields(line) {
		v, err := strconv.ParseFloat(field, 64)
		if i == 0 || i > 8 || err != nil { // what guests have is in the others, too
			continue
		}
		all += v
		if i != 4 && i != 5 { // idle, or waiting for a disk
			work += v
		}
	}
	return work, all
}
