package localrun

import (
	"slices"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/supervisor"
	"github.com/perdure/perdure/internal/run/rundir"
)

// timeSpent is how workers spent their time.
type timeSpent struct{ compute, staleness, communication time.Duration }

func (s timeSpent) add(c *perdure.WorkerCounters) timeSpent {
	return timeSpent{
		s.compute + time.Duration(c.ComputeNs), s.staleness + time.Duration(c.StalenessNs),
		s.communication + time.Duration(c.CommNs),
	}
}

// minus returns the time spent after before. A wait counts as computing until it ends, so the computing time may seem
// to shrink; that counts as 0.
func (s timeSpent) minus(before timeSpent) timeSpent {
	return timeSpent{
		max(0, s.compute-before.compute), max(0, s.staleness-before.staleness),
		max(0, s.communication-before.communication),
	}
}

// shares returns each part as a fraction of the whole, or nil if the whole is 0.
func (s timeSpent) shares() (compute, staleness, communication *float64) {
	whole := s.compute + s.staleness + s.communication
	if whole <= 0 {
		return nil, nil, nil
	}
	share := func(d time.Duration) *float64 { return new(float64(d) / float64(whole)) }
	return share(s.compute), share(s.staleness), share(s.communication)
}

// spentBySlot sums the time of each slot's processes, living and dead. The caller must hold t.mu.
func (t *jobStats) spentBySlot() map[int]timeSpent {
	bySlot := map[int]timeSpent{}
	for _, w := range t.workers {
		bySlot[w.slot] = bySlot[w.slot].add(&w.WorkerCounters)
	}
	return bySlot
}

// spentInAll sums the time of all workers. The caller must hold t.mu.
func (t *jobStats) spentInAll() (s timeSpent) {
	for _, w := range t.workers {
		s = s.add(&w.WorkerCounters)
	}
	return s
}

// timeSplit returns the time part of the summary, or nil until a worker has reported any time. The caller must hold
// t.mu.
func (t *jobStats) timeSplit() *rundir.TimeSplit {
	compute, staleness, communication := t.spentInAll().shares()
	if compute == nil {
		return nil
	}
	split := &rundir.TimeSplit{Compute: *compute, Staleness: *staleness, Communication: *communication}
	for slot, s := range t.spentBySlot() {
		split.Workers = append(split.Workers, rundir.WorkerTime{
			Slot: slot, ComputeS: s.compute.Seconds(), StalenessS: s.staleness.Seconds(),
			CommunicationS: s.communication.Seconds(),
		})
	}
	slices.SortFunc(split.Workers, func(a, b rundir.WorkerTime) int { return a.Slot - b.Slot })
	return split
}

// roleUsage returns the resource usage part of the summary. The caller must hold t.mu.
func (t *jobStats) roleUsage(used map[wire.Role]supervisor.Usage) map[string]rundir.RoleUsage {
	byRole := map[string]rundir.RoleUsage{}
	for role, u := range used {
		r := rundir.RoleUsage{CPUSeconds: u.CPU.Seconds(), MBPeak: float64(t.peak[role]) / 1e6}
		if u.Written > 0 { // every process writes; 0 means that writes were not counted
			written, stored := float64(u.Written)/1e6, float64(u.Stored)/1e6
			r.MBWritten, r.MBStored = &written, &stored
		}
		byRole[string(role)] = r
	}
	return byRole
}
