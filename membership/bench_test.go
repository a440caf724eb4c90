package membership

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/perdure/perdure"
)

// scales are jobs of 1,000 servers, 10,000 workers and 8,000 chains of three, and of a
// tenth of that: a server holds 24 replicas in both.
var scales = []perdure.JobSpec{{Servers: 1000, Slots: 10000, Shards: 8000}, {Servers: 100, Slots: 1000, Shards: 800}}

// scaled is a job at a scale, in which everybody has joined, is settled and says so.
type scaled struct {
	testing.TB
	*Core
	processes int   // so far
	fenced    []int // slots whose predecessors all shards refuse

	cost, messages, bytes int64 // of what was measured so far: time of the core in ns; of deltas
}

func newScaled(t testing.TB, job perdure.JobSpec) *scaled {
	job.Consistency, job.Recovery = perdure.Consistency{Kind: perdure.SSP, Staleness: 2}, perdure.Recovery{Kind: perdure.RecoverChain, Replicas: 3}
	job.Clocks = 1000
	f := Begin(job, 1, 0, nil)
	for i := range f.Slots {
		f.Slots[i] = Place{Process: fmt.Sprintf("w%d", i), PID: i + 1, Incarnation: 1}
		f.View.Slots[i] = perdure.SlotView{Incarnation: 1, Decided: true, Settled: true}
	}
	s := &scaled{TB: t, Core: New(f, 15)}
	for i := range job.Servers {
		s.Join(Server, i, Newcomer{Process: fmt.Sprintf("s%d", i), PID: i + 1})
	}
	for i := range f.Slots {
		s.Join(Worker, i, Newcomer{Process: f.Slots[i].Process, PID: i + 1})
		s.WorkerStatus(i, f.Slots[i].Process, perdure.WorkerStatus{Generation: 1})
	}
	for i := range job.Servers {
		s.report(i)
	}
	s.Ready()
	if len(s.open.list) > 0 || !s.Serving() {
		t.Fatalf("%d shards are not as they should be", len(s.open.list))
	}
	return s
}

// well is the status of a server that is as the view wants it.
func (s *scaled) well(server int) (st perdure.ServerStatus) {
	for _, shard := range sorted(s.held[server]) {
		sv := &s.facts.View.Shards[shard]
		one := perdure.ShardStatus{Shard: perdure.ShardID(shard), Generation: 1, Epoch: sv.Epoch, Ready: true}
		if j := sv.Joining; j != nil && j.Server == server {
			one.Ready, one.Joined, one.Since = false, true, j.Since
		}
		for _, slot := range s.fenced {
			sl := &s.facts.View.Slots[slot]
			one.Fences = append(one.Fences, perdure.Fence{Slot: perdure.Slot(slot), Incarnation: sl.Incarnation, Carried: sl.Decided})
		}
		st.Shards = append(st.Shards, one)
	}
	return st
}

func (s *scaled) report(server int) {
	s.ServerStatus(server, s.facts.Servers[server].Process, s.well(server))
}

// measure does something to the core and counts what it costs, with what everybody is
// told of it.
func (s *scaled) measure(do func()) Ready {
	start := time.Now()
	do()
	r := s.Ready()
	s.cost += time.Since(start).Nanoseconds()
	s.told(r.Delta, len(s.servers))
	s.told(r.WorkerDelta, len(s.slots))
	return r
}

// told counts what so many are told.
func (s *scaled) told(d *perdure.ViewDelta, hear int) {
	if d == nil {
		return
	}
	b, err := json.Marshal(d)
	if err != nil {
		s.Fatal(err)
	}
	s.messages += int64(hear)
	s.bytes += int64(hear) * int64(len(b))
}

// die has a server die, and returns how many replicas it held and whom to heal with.
func (s *scaled) die(victim int) (replicas int, near map[int]struct{}) {
	near = map[int]struct{}{victim: {}}
	for shard := range s.held[victim] {
		for _, h := range members(&s.facts.View.Shards[shard]) {
			near[h.Server] = struct{}{}
		}
	}
	replicas = len(s.held[victim])
	s.measure(func() { s.Gone(Server, victim, s.facts.Servers[victim].PID, "exited") })
	return replicas, near
}

// heal has another process take a dead server's place and everybody concerned report,
// until all chains are whole.
func (s *scaled) heal(victim int, near map[int]struct{}) {
	for _, i := range sorted(near) {
		if st := s.well(i); i != victim {
			s.measure(func() { s.ServerStatus(i, s.facts.Servers[i].Process, st) })
		}
	}
	s.processes++
	s.measure(func() {
		s.Join(Server, victim, Newcomer{Process: fmt.Sprintf("n%d", s.processes), PID: 100000 + s.processes})
	})
	for round := 0; len(s.open.list) > 0; round++ {
		report := map[int]struct{}{}
		for _, shard := range s.open.list {
			sv := &s.facts.View.Shards[shard]
			report[sv.Server] = struct{}{}
			if sv.Joining != nil {
				report[sv.Joining.Server] = struct{}{}
			}
		}
		for _, i := range sorted(report) {
			st := s.well(i)
			s.measure(func() { s.ServerStatus(i, s.facts.Servers[i].Process, st) })
		}
		if round == 100 {
			s.Fatalf("%d shards are never whole", len(s.open.list))
		}
	}
}

// replace has a worker die and another process take its slot, once all servers have
// refused the first and carried out what was decided.
func (s *scaled) replace(slot int) {
	s.measure(func() { s.Gone(Worker, slot, s.facts.Slots[slot].PID, "exited") })
	s.fenced = []int{slot}
	s.processes++
	name := fmt.Sprintf("n%d", s.processes)
	s.measure(func() { s.Join(Worker, slot, Newcomer{Process: name, PID: 100000 + s.processes}) })
	for range 2 {
		for i := range s.servers {
			st := s.well(i)
			s.measure(func() { s.ServerStatus(i, s.facts.Servers[i].Process, st) })
		}
	}
	if !s.facts.View.Slots[slot].Settled {
		s.Fatalf("slot %d is never settled", slot)
	}
	s.measure(func() { s.WorkerStatus(slot, name, perdure.WorkerStatus{Generation: 1}) })
	s.fenced = nil
	for i := range s.servers {
		s.report(i)
	}
}

// each runs a benchmark at every scale. It reports the core's time alone, without what
// sets all up again.
func each(b *testing.B, run func(s *scaled, n int)) {
	for _, job := range scales {
		s := newScaled(b, job)
		b.Run(fmt.Sprintf("servers=%d", job.Servers), func(b *testing.B) {
			s.TB, s.cost, s.messages, s.bytes = b, 0, 0, 0
			n := 0
			for ; b.Loop(); n++ {
				run(s, n)
			}
			b.ReportMetric(float64(s.cost)/float64(n), "core-ns/op")
			b.ReportMetric(float64(s.messages)/float64(n), "msgs/op")
			b.ReportMetric(float64(s.bytes)/max(1, float64(s.messages)), "B/msg")
		})
	}
}

// BenchmarkDeath is a server's death, of which the core is told at once, until there is
// the view without it: 24 shards are touched.
func BenchmarkDeath(b *testing.B) {
	each(b, func(s *scaled, n int) {
		victim := n * 37 % len(s.servers)
		_, near := s.die(victim)
		cost, messages, bytes := s.cost, s.messages, s.bytes
		s.heal(victim, near)
		s.cost, s.messages, s.bytes = cost, messages, bytes
	})
}

// BenchmarkHealing is all that follows, until another process in its place has copied
// all that it held.
func BenchmarkHealing(b *testing.B) {
	each(b, func(s *scaled, n int) {
		victim := n * 37 % len(s.servers)
		cost, messages, bytes := s.cost, s.messages, s.bytes
		_, near := s.die(victim)
		s.cost, s.messages, s.bytes = cost, messages, bytes
		s.heal(victim, near)
	})
}

// BenchmarkWorkerDeath is a worker's, until another process speaks for its slot: every
// shard has refused its predecessor, and carried out what was decided.
func BenchmarkWorkerDeath(b *testing.B) {
	each(b, func(s *scaled, n int) { s.replace(n * 37 % len(s.slots)) })
}

// BenchmarkHeartbeat is a server's word that nothing has changed.
func BenchmarkHeartbeat(b *testing.B) {
	each(b, func(s *scaled, _ int) {
		st := s.well(7)
		s.measure(func() { s.ServerStatus(7, s.facts.Servers[7].Process, st) })
	})
}

// BenchmarkWorkerHeartbeat is a worker's word that it is at its next clock.
func BenchmarkWorkerHeartbeat(b *testing.B) {
	each(b, func(s *scaled, n int) {
		s.measure(func() {
			s.WorkerStatus(7, s.facts.Slots[7].Process, perdure.WorkerStatus{Generation: 1, Clock: perdure.Clock(n % 900)})
		})
	})
}
