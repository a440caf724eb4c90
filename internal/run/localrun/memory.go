package localrun

import (
	"fmt"
	"runtime"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/recovery"
	"github.com/perdure/perdure/internal/proc/machine"
	"github.com/perdure/perdure/internal/run/settings"
	"github.com/perdure/perdure/internal/run/terminal"
)

// Memory of one process of a job, as measured with the three workloads: a fixed amount, plus a multiple of the data it
// works on. The multiple covers copies, buffers and garbage.
const (
	workerBytes    = 32e6
	workerPerData  = 2
	workerPerModel = 12
	serverBytes    = 24e6
	serverPerModel = 4
	manyProcesses  = 64 // from this number on, users are told how much memory a job needs
	minNeededShare = 0.75
)

// memoryNeeded returns about how much memory the job's processes need together, in bytes. For the user's own programs
// neither their number nor the size of the model is known.
func memoryNeeded(s *settings.Run, workers bool) float64 {
	model := 4 * float64(s.Trained.Parameters)
	all := float64(s.Job.Servers)*serverBytes +
		serverPerModel*model*float64(recovery.Of(s.Job.Recovery).Traits().Copies)
	if workers {
		_, most := s.PlannedSlots()
		all += float64(most) * (workerBytes + workerPerData*float64(s.Trained.DataBytes) + workerPerModel*model)
	}
	return all
}

// checkMemory returns an error if the job does not fit into this machine's memory. For a large job it returns a line
// about the memory it needs.
func checkMemory(s *settings.Run, workers bool) (says string, err error) {
	free, known := machine.FreeMemory()
	bytes := memoryNeeded(s, workers)
	processes, what := s.Job.Servers, fmt.Sprintf("%d servers", s.Job.Servers)
	if workers {
		_, most := s.PlannedSlots()
		processes, what = processes+most, fmt.Sprintf("%d workers and %s", most, what)
	}
	if known && bytes*minNeededShare > free {
		return "", perdure.Usagef("%s need about %.0f GB of memory, but this machine has only %.0f GB free; reduce "+
			"--workers or --servers, or choose a smaller --data", what, bytes/1e9, free/1e9)
	}
	if processes < manyProcesses && (!known || bytes < free/2) {
		return "", nil
	}
	says = fmt.Sprintf("%s on %d cores need about %.1f GB of memory", what, runtime.NumCPU(), bytes/1e9)
	if known {
		says += fmt.Sprintf("; %.1f GB are free", free/1e9)
	}
	return says + "; starting them may take a while", nil
}

// checkAndShowMemory returns an error if the job does not fit into memory, and shows the memory needed by a large job.
func checkAndShowMemory(s *settings.Run, workers bool, v terminal.View) error {
	says, err := checkMemory(s, workers)
	if says != "" {
		v.Message(says)
	}
	return err
}
