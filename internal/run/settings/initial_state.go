package settings

import (
	"strconv"
	"strings"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/membership"
)

// InitialWorkers returns how many workers take part when the run starts.
func (s *Run) InitialWorkers() (workers int) {
	if len(s.Slots) == 0 {
		return s.Job.Slots
	}
	for i, interval := range s.Slots {
		if interval.Has(s.Checkpoints.Clocks.Of(perdure.Slot(i), s.Cut)) {
			workers++
		}
	}
	return workers
}

// scalePlan is a --scale option of train: a number of workers and the clock at which it takes effect.
type scalePlan struct {
	workers int
	at      perdure.Clock
}

func parseScale(text string) (p scalePlan, err error) {
	workers, at, ok := strings.Cut(text, "@clock:")
	if ok {
		if p.workers, err = strconv.Atoi(workers); err == nil {
			var clock int64
			clock, err = strconv.ParseInt(at, 10, 32)
			p.at = perdure.Clock(clock)
		}
	}
	if !ok || err != nil {
		return p, perdure.Usagef("invalid --scale %q; write WORKERS@clock:CLOCK, for example 4@clock:100", text)
	}
	return p, nil
}

// InitialState returns the coordinator's initial state of the job.
func (s *Run) InitialState() (membership.JobRecord, error) {
	f := membership.NewJobRecord(s.Job, s.Generation+1, s.Cut, s.Tables)
	if s.Resumed != "" { // the slots include the changes that were planned then
		f.Resume(s.Slots, s.Checkpoints.Clocks, s.Checkpoints.PastClocks)
		if sv := s.Saved; sv != nil {
			f.Running = membership.ResumeRunningCheckpoint(sv.Number, sv.Files, sv.States)
		}
		return f, nil
	}
	if sv := s.Saved; sv != nil { // of the model that the run starts with
		f.Running = membership.ForkRunningCheckpoint(sv.Number, sv.Files, sv.States)
	}
	for _, text := range s.Scale {
		p, err := parseScale(text)
		if err == nil {
			err = f.Plan(p.workers, p.at)
		}
		if err != nil {
			return f, err
		}
	}
	return f, nil
}

// PlannedSlots returns how many slots the job will have according to its plans, and the largest number that work at the
// same time.
func (s *Run) PlannedSlots() (all, most int) {
	f, err := s.InitialState()
	if err != nil {
		return s.Job.Slots, s.Job.Slots // checkFlags reports the error
	}
	for i := range f.View.Slots {
		_, of := f.View.Rank(0, max(f.View.Slots[i].From, f.View.Cut))
		most = max(most, of)
	}
	return len(f.View.Slots), most
}
