package main

import (
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

const (
	// workerNicer is how much nicer a process is that trains: beside one that is not it has
	// a tenth of a processor.
	workerNicer = 10
	// nicest is the most that there is.
	nicest = 19
)

// giveWay lets other roles' processes on this machine have the processors before this
// one, which goes on in outages: then a server has much to catch up with, while workers
// make more, and all gain from its doing so soon. On Linux each thread has a priority of its own, which those that it
// starts inherit. Where it is not allowed, nothing changes.
func giveWay() {
	before, err := unix.Getpriority(unix.PRIO_PROCESS, 0)
	if err != nil {
		return
	}
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return
	}
	for _, t := range tasks {
		if id, err := strconv.Atoi(t.Name()); err == nil {
			_ = unix.Setpriority(unix.PRIO_PROCESS, id, nicer(before))
		}
	}
}

// nicer returns the niceness that gives way to one who has the given priority, as the
// system call tells it: 20 less the niceness.
func nicer(priority int) int { return min(20-priority+workerNicer, nicest) }
