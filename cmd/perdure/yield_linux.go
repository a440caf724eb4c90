package main

import (
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// workerNice is the niceness of a process that trains: beside one of niceness 0 it has a
// tenth of a processor.
const workerNice = 10

// giveWay lets other roles' processes on this machine have the processors before this
// one, which goes on in outages: then a server has much to catch up with, while workers
// make more, and all gain from its doing so soon. On Linux each thread has a priority of its own, which those that it
// starts inherit. Where it is not allowed, nothing changes.
func giveWay() {
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return
	}
	for _, t := range tasks {
		if id, err := strconv.Atoi(t.Name()); err == nil {
			_ = unix.Setpriority(unix.PRIO_PROCESS, id, workerNice)
		}
	}
}
