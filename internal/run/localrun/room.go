package localrun

import (
	"fmt"
	"runtime"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/recovery"
	"github.com/perdure/perdure/internal/proc/machine"
	"github.com/perdure/perdure/internal/run/screen"
	"github.com/perdure/perdure/internal/run/settings"
)

// What a process of a job takes in memory, as was measured with the three workloads: an amount
// by itself, and a multiple of what it works on, which counts copies, buffers and what the
// garbage collector leaves.
const (
	workerBytes     = 32e6
	workerPerData   = 2
	workerPerModel  = 12
	serverBytes     = 24e6
	serverPerModel  = 4
	manyProcesses   = 64 // from here on people are told what a job takes
	surelyTooLittle = 0.75
)

// needs is about what the job's processes take together, in bytes. Of programs of the
// user's own neither their number nor the model is known.
func needs(s *settings.Run, workers bool) float64 {
	model := 4 * float64(s.Trained.Parameters)
	all := float64(s.Job.Servers)*serverBytes +
		serverPerModel*model*float64(recovery.Of(s.Job.Recovery).Traits().Copies)
	if workers {
		_, most := s.PlannedSlots()
		all += float64(most) * (workerBytes + workerPerData*float64(s.Trained.DataBytes) + workerPerModel*model)
	}
	return all
}

// room refuses a job that this machine's memory cannot hold, and says what a large one takes;
// "" of others.
func room(s *settings.Run, workers bool) (says string, err error) {
	free, known := machine.FreeMemory()
	bytes := needs(s, workers)
	processes, what := s.Job.Servers, fmt.Sprintf("%d servers", s.Job.Servers)
	if workers {
		_, most := s.PlannedSlots()
		processes, what = processes+most, fmt.Sprintf("%d workers and %s", most, what)
	}
	if known && bytes*surelyTooLittle > free {
		return "", fmt.Errorf("%w: %s take about %.0f GB of memory, and this machine has %.0f GB free; choose fewer "+
			"--workers or --servers, or smaller --data",
			perdure.ErrUsage, what, bytes/1e9, free/1e9)
	}
	if processes < manyProcesses && (!known || bytes < free/2) {
		return "", nil
	}
	says = fmt.Sprintf("%s on %d cores take about %.1f GB of memory", what, runtime.NumCPU(), bytes/1e9)
	if known {
		says += fmt.Sprintf(", of %.1f GB that are free", free/1e9)
	}
	return says + "; starting them may take a while", nil
}

// findRoom refuses a job that has none, and tells people of a large one.
func findRoom(s *settings.Run, workers bool, v screen.View) error {
	says, err := room(s, workers)
	if says != "" {
		v.Say(says)
	}
	return err
}
