package main

import (
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// TestStatusOfNewCoordinator: a coordinator that has just started reports no older clock than its predecessor.
func TestStatusOfNewCoordinator(t *testing.T) {
	t.Parallel()
	dir := newFolder(t)
	p := atClock30(t, dir)
	look := func() (clock, pid int) {
		for {
			code, out, errs := invoke(t, "status", "--run", dir)
			m := regexp.MustCompile(`clock (\d+) of(?s:.*)coordinator  pid (\d+)`).FindStringSubmatch(out)
			if code != 0 && strings.Contains(errs, "try again") {
				continue // the coordinator is being replaced
			}
			if m == nil {
				t.Fatalf("status: exit code %d: %s%s", code, out, errs)
			}
			clock, _ = strconv.Atoi(m[1])
			pid, _ = strconv.Atoi(m[2])
			return clock, pid
		}
	}
	for range 3 {
		clock, pid := look()
		// The process that should answer may die before it does.
		invoke(t, "fault", "kill:coordinator@0s", "--run", dir)
		for {
			now, next := look()
			if now < clock {
				t.Errorf("process %d reported clock %d, then process %d reported clock %d", pid, clock, next, now)
			}
			if next != pid {
				break
			}
		}
	}
	invoke(t, "stop", "--run", dir)
	p.Wait()
}
