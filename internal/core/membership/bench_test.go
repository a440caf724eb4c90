package membership

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/mutation"
	"github.com/perdure/perdure/internal/core/protocol"
	"github.com/perdure/perdure/internal/data/wire"
)

// scales are a job of 1,000 servers, 10,000 workers and 8,000 chains of three, and one of a tenth of that. A server
// holds 24 replicas in both.
var scales = []perdure.JobSpec{{Servers: 1000, Slots: 10000, Shards: 8000}, {Servers: 100, Slots: 1000, Shards: 800}}

// scaled is a job at a scale in which all processes have joined, are settled and have reported that.
type scaled struct {
	testing.TB
	*Core
	processes int   // started so far; numbers the processes
	fenced    []int // slots whose predecessors all shards have fenced

	cost, coding     int64 // measured so far, in ns: in the core; for encoding and decoding
	messages, bytes  int64 // of view deltas
	words, wordBytes int64 // of servers' statuses
	speakers         []protocol.ServerDeltaEncoder
}

func newScaled(t testing.TB, job perdure.JobSpec) *scaled {
	job.Consistency = perdure.Consistency{Kind: perdure.SSP, Staleness: 2}
	if job.Recovery.Kind == "" {
		job.Recovery = perdure.Recovery{Kind: perdure.RecoverChain, Replicas: 3}
	}
	job.Clocks = 1000
	f := NewJobRecord(job, 1, 0, nil)
	for i := range f.Slots {
		f.Slots[i] = Member{Process: fmt.Sprintf("w%d", i), PID: i + 1, Incarnation: 1}
		f.View.Slots[i] = protocol.SlotView{Incarnation: 1, Decided: true, Settled: true}
	}
	s := &scaled{TB: t, Core: New(f, 15, mutation.Set{})}
	for i := range job.Servers {
		s.Join(Server, i, Applicant{Process: fmt.Sprintf("s%d", i), PID: i + 1})
	}
	for i := range f.Slots {
		s.Join(Worker, i, Applicant{Process: f.Slots[i].Process, PID: i + 1})
		s.HandleWorkerStatus(i, f.Slots[i].Process, protocol.WorkerStatus{Generation: 1})
	}
	for i := range job.Servers {
		s.report(i)
	}
	s.Ready()
	s.cost, s.coding, s.messages, s.bytes, s.words, s.wordBytes = 0, 0, 0, 0, 0, 0
	if len(s.queue.Open.All()) > 0 || !s.Serving() {
		t.Fatalf("%d shards are not in their desired state", len(s.queue.Open.All()))
	}
	return s
}

// healthyStatus returns the status of a server that is in the state that the view wants.
func (s *scaled) healthyStatus(server int) (st protocol.ServerStatus) {
	for _, shard := range slices.Sorted(s.job.replicas.Shards(server)) {
		sv := &s.record.View.Shards[shard]
		one := protocol.ShardStatus{Shard: perdure.ShardID(shard), Generation: 1, Epoch: sv.Epoch, Ready: true}
		if j := sv.Joining; j != nil && j.Server == server {
			one.Ready, one.Joined, one.Since = false, true, j.Since
		}
		for _, slot := range s.fenced {
			sl := &s.record.View.Slots[slot]
			one.Fences = append(one.Fences,
				protocol.Fence{Slot: perdure.Slot(slot), Incarnation: sl.Incarnation, Carried: sl.Decided})
		}
		st.Shards = append(st.Shards, one)
	}
	return st
}

func (s *scaled) report(server int) {
	st := s.healthyStatus(server)
	s.says(server, &st, true)
}

// measure calls do and adds up its cost, including that of the messages that result.
func (s *scaled) measure(do func()) Ready {
	start := time.Now()
	do()
	r := s.Ready()
	s.cost += time.Since(start).Nanoseconds()
	s.told(r.Delta, len(s.job.servers))
	s.told(r.WorkerDelta, len(s.job.slots))
	return r
}

// told adds up the cost of sending a delta to hear receivers.
func (s *scaled) told(d *protocol.ViewDelta, hear int) {
	if d == nil {
		return
	}
	start := time.Now()
	f := wire.Control(wire.KindViewDelta, d) // encoded once for all
	var got protocol.ViewDelta               // decoded by each
	if err := wire.ParseControl(&f, &got); err != nil {
		s.Fatal(err)
	}
	s.coding += time.Since(start).Nanoseconds()
	s.messages += int64(hear)
	s.bytes += int64(hear) * int64(wire.HeaderBytes+f.PayloadBytes())
}

// says sends the changes of a server's status over the wire.
func (s *scaled) says(server int, st *protocol.ServerStatus, counts bool) {
	for len(s.speakers) < len(s.job.servers) {
		s.speakers = append(s.speakers, protocol.ServerDeltaEncoder{})
	}
	start := time.Now()
	d, _ := s.speakers[server].Delta(st, s.record.View.End, counts)
	f := wire.Control(wire.KindStatus, &d)
	var got protocol.ServerDelta
	if err := wire.ParseControl(&f, &got); err != nil {
		s.Fatal(err)
	}
	s.coding += time.Since(start).Nanoseconds()
	s.words++
	s.wordBytes += int64(wire.HeaderBytes + f.PayloadBytes())
	s.measure(func() {
		if !s.HandleServerDelta(server, s.record.Servers[server].Process, &got) {
			s.Fatal("a server's status delta does not apply")
		}
	})
}

// die kills a server. It returns how many replicas the server held, and the servers that must report to heal.
func (s *scaled) die(victim int) (replicas int, near map[int]struct{}) {
	near = map[int]struct{}{victim: {}}
	for shard := range s.job.replicas.Shards(victim) {
		for _, h := range s.record.View.Shards[shard].Members() {
			near[h.Server] = struct{}{}
		}
	}
	replicas = s.job.replicas.NumShards(victim)
	s.measure(func() { s.ProcessDied(Server, victim, s.record.Servers[victim].PID, "exited") })
	return replicas, near
}

// replaceServer has another process take a dead server's index. All servers concerned report until all chains are
// complete.
func (s *scaled) replaceServer(victim int, near map[int]struct{}) {
	for _, i := range slices.Sorted(maps.Keys(near)) {
		if st := s.healthyStatus(i); i != victim {
			s.says(i, &st, true)
		}
	}
	s.processes++
	s.measure(func() {
		s.Join(Server, victim, Applicant{Process: fmt.Sprintf("n%d", s.processes), PID: 100000 + s.processes})
	})
	s.speakers[victim] = protocol.ServerDeltaEncoder{}
	for round := 0; len(s.queue.Open.All()) > 0; round++ {
		report := map[int]struct{}{}
		for _, shard := range s.queue.Open.All() {
			sv := &s.record.View.Shards[shard]
			report[sv.Server] = struct{}{}
			if sv.Joining != nil {
				report[sv.Joining.Server] = struct{}{}
			}
		}
		for _, i := range slices.Sorted(maps.Keys(report)) {
			st := s.healthyStatus(i)
			s.says(i, &st, true)
		}
		if round == 100 {
			s.Fatalf("%d shards are never complete", len(s.queue.Open.All()))
		}
	}
}

// replace kills a worker and has another process take its slot, once all servers have fenced the first and carried out
// the decision.
func (s *scaled) replace(slot int) {
	s.measure(func() { s.ProcessDied(Worker, slot, s.record.Slots[slot].PID, "exited") })
	s.fenced = []int{slot}
	s.processes++
	name := fmt.Sprintf("n%d", s.processes)
	s.measure(func() { s.Join(Worker, slot, Applicant{Process: name, PID: 100000 + s.processes}) })
	for range 2 {
		for i := range s.job.servers {
			st := s.healthyStatus(i)
			s.says(i, &st, true)
		}
	}
	if !s.record.View.Slots[slot].Settled {
		s.Fatalf("slot %d is never settled", slot)
	}
	s.measure(func() { s.HandleWorkerStatus(slot, name, protocol.WorkerStatus{Generation: 1}) })
	s.fenced = nil
	for i := range s.job.servers {
		s.report(i)
	}
}

// each runs a benchmark at every scale. It reports only the core's time, without the time to restore the initial state.
func each(b *testing.B, run func(s *scaled, n int)) {
	for _, job := range scales {
		s := newScaled(b, job)
		b.Run(fmt.Sprintf("servers=%d", job.Servers), func(b *testing.B) {
			s.TB, s.cost, s.coding, s.messages, s.bytes = b, 0, 0, 0, 0
			n := 0
			for ; b.Loop(); n++ {
				run(s, n)
			}
			b.ReportMetric(float64(s.cost)/float64(n), "core-ns/op")
			b.ReportMetric(float64(s.coding)/float64(n), "coding-ns/op")
			b.ReportMetric(float64(s.messages)/float64(n), "msgs/op")
			b.ReportMetric(float64(s.bytes)/max(1, float64(s.messages)), "B/msg")
		})
	}
}

// BenchmarkDeath measures the death of a server that is reported immediately, until the view without it is ready. It
// touches 24 shards.
func BenchmarkDeath(b *testing.B) {
	each(b, func(s *scaled, n int) {
		victim := n * 37 % len(s.job.servers)
		_, near := s.die(victim)
		cost, messages, bytes := s.cost, s.messages, s.bytes
		s.replaceServer(victim, near)
		s.cost, s.messages, s.bytes = cost, messages, bytes
	})
}

// BenchmarkHealing measures everything after that, until the replacement has copied all replicas.
func BenchmarkHealing(b *testing.B) {
	each(b, func(s *scaled, n int) {
		victim := n * 37 % len(s.job.servers)
		cost, messages, bytes := s.cost, s.messages, s.bytes
		_, near := s.die(victim)
		s.cost, s.messages, s.bytes = cost, messages, bytes
		s.replaceServer(victim, near)
	})
}

// BenchmarkWorkerDeath measures the death of a worker, until another process speaks for its slot: every shard has
// fenced its predecessor and carried out the decision.
func BenchmarkWorkerDeath(b *testing.B) {
	each(b, func(s *scaled, n int) { s.replace(n * 37 % len(s.job.slots)) })
}

// BenchmarkStatus measures a server's status with one new fence for each of a number of shards. It is encoded, decoded,
// and processed by the core. "cores" is the share of one core that the statuses of all servers take if each sends as
// much ten times a second.
func BenchmarkStatus(b *testing.B) {
	for _, job := range []perdure.JobSpec{
		{Servers: 10, Slots: 50, Shards: 200},
		{Servers: 100, Slots: 500, Shards: 2000},
	} {
		s := newScaled(b, job)
		for _, news := range []int{0, 1, 10, 60} {
			b.Run(fmt.Sprintf("workers=%d/servers=%d/shards=%d/new=%d", job.Slots, job.Servers, job.Shards, news),
				func(b *testing.B) {
					s.TB = b
					said := [2]protocol.ServerStatus{s.healthyStatus(7), s.healthyStatus(7)} // alternately
					for i := range news {
						said[1].Shards[i].Fences = []protocol.Fence{{Slot: 3, Incarnation: 1, Carried: true}}
					}
					s.says(7, &said[1], true)
					s.cost, s.coding, s.words, s.wordBytes = 0, 0, 0, 0
					for n := 0; b.Loop(); n++ {
						s.says(7, &said[n%2], false)
					}
					words := float64(s.words)
					b.ReportMetric(float64(s.cost)/words, "core-ns/word")
					b.ReportMetric(float64(s.coding)/words, "coding-ns/word")
					b.ReportMetric(float64(s.wordBytes)/words, "B/word")
					b.ReportMetric(float64(s.cost+s.coding)/words*float64(10*job.Servers)/1e9, "cores")
				})
		}
	}
}

// BenchmarkWorkerHeartbeat measures a worker's status at its next clock.
func BenchmarkWorkerHeartbeat(b *testing.B) {
	each(b, func(s *scaled, n int) {
		s.measure(func() {
			s.HandleWorkerStatus(7, s.record.Slots[7].Process,
				protocol.WorkerStatus{Generation: 1, Clock: perdure.Clock(n % 900)})
		})
	})
}
