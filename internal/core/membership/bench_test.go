package membership

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/weaken"
	"github.com/perdure/perdure/internal/core/words"
	"github.com/perdure/perdure/internal/data/wire"
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

	cost, coding     int64 // of what was measured so far, in ns: of the core; of writing and reading
	messages, bytes  int64 // of views' deltas
	words, wordBytes int64 // of servers
	speakers         []words.ServerSpeaker
}

func newScaled(t testing.TB, job perdure.JobSpec) *scaled {
	job.Consistency = perdure.Consistency{Kind: perdure.SSP, Staleness: 2}
	if job.Recovery.Kind == "" {
		job.Recovery = perdure.Recovery{Kind: perdure.RecoverChain, Replicas: 3}
	}
	job.Clocks = 1000
	f := Begin(job, 1, 0, nil)
	for i := range f.Slots {
		f.Slots[i] = Place{Process: fmt.Sprintf("w%d", i), PID: i + 1, Incarnation: 1}
		f.View.Slots[i] = words.SlotView{Incarnation: 1, Decided: true, Settled: true}
	}
	s := &scaled{TB: t, Core: New(f, 15, weaken.Set{})}
	for i := range job.Servers {
		s.Join(Server, i, Newcomer{Process: fmt.Sprintf("s%d", i), PID: i + 1})
	}
	for i := range f.Slots {
		s.Join(Worker, i, Newcomer{Process: f.Slots[i].Process, PID: i + 1})
		s.WorkerStatus(i, f.Slots[i].Process, words.WorkerStatus{Generation: 1})
	}
	for i := range job.Servers {
		s.report(i)
	}
	s.Ready()
	s.cost, s.coding, s.messages, s.bytes, s.words, s.wordBytes = 0, 0, 0, 0, 0, 0
	if len(s.agenda.Open.All()) > 0 || !s.Serving() {
		t.Fatalf("%d shards are not as they should be", len(s.agenda.Open.All()))
	}
	return s
}

// well is the status of a server that is as the view wants it.
func (s *scaled) well(server int) (st words.ServerStatus) {
	for _, shard := range slices.Sorted(s.job.spread.Held(server)) {
		sv := &s.facts.View.Shards[shard]
		one := words.ShardStatus{Shard: perdure.ShardID(shard), Generation: 1, Epoch: sv.Epoch, Ready: true}
		if j := sv.Joining; j != nil && j.Server == server {
			one.Ready, one.Joined, one.Since = false, true, j.Since
		}
		for _, slot := range s.fenced {
			sl := &s.facts.View.Slots[slot]
			one.Fences = append(one.Fences,
				words.Fence{Slot: perdure.Slot(slot), Incarnation: sl.Incarnation, Carried: sl.Decided})
		}
		st.Shards = append(st.Shards, one)
	}
	return st
}

func (s *scaled) report(server int) {
	st := s.well(server)
	s.says(server, &st, true)
}

// measure does something to the core and counts what it costs, with what everybody is
// told of it.
func (s *scaled) measure(do func()) Ready {
	start := time.Now()
	do()
	r := s.Ready()
	s.cost += time.Since(start).Nanoseconds()
	s.told(r.Delta, len(s.job.servers))
	s.told(r.WorkerDelta, len(s.job.slots))
	return r
}

// told counts what n of them are told.
func (s *scaled) told(d *words.ViewDelta, hear int) {
	if d == nil {
		return
	}
	start := time.Now()
	f := wire.Control(wire.KindViewDelta, d) // once for all
	var got words.ViewDelta                  // each
	if err := wire.ParseControl(&f, &got); err != nil {
		s.Fatal(err)
	}
	s.coding += time.Since(start).Nanoseconds()
	s.messages += int64(hear)
	s.bytes += int64(hear) * int64(wire.HeaderBytes+f.PayloadBytes())
}

// says has a server say what is new of its status, over the wire.
func (s *scaled) says(server int, st *words.ServerStatus, counts bool) {
	for len(s.speakers) < len(s.job.servers) {
		s.speakers = append(s.speakers, words.ServerSpeaker{})
	}
	start := time.Now()
	d, _ := s.speakers[server].Delta(st, s.facts.View.End, counts)
	f := wire.Control(wire.KindStatus, &d)
	var got words.ServerDelta
	if err := wire.ParseControl(&f, &got); err != nil {
		s.Fatal(err)
	}
	s.coding += time.Since(start).Nanoseconds()
	s.words++
	s.wordBytes += int64(wire.HeaderBytes + f.PayloadBytes())
	s.measure(func() {
		if !s.ServerSays(server, s.facts.Servers[server].Process, &got) {
			s.Fatal("a server's word does not fit")
		}
	})
}

// die has a server die, and returns how many replicas it held and whom to heal with.
func (s *scaled) die(victim int) (replicas int, near map[int]struct{}) {
	near = map[int]struct{}{victim: {}}
	for shard := range s.job.spread.Held(victim) {
		for _, h := range s.facts.View.Shards[shard].Members() {
			near[h.Server] = struct{}{}
		}
	}
	replicas = s.job.spread.Load(victim)
	s.measure(func() { s.Gone(Server, victim, s.facts.Servers[victim].PID, "exited") })
	return replicas, near
}

// heal has another process take a dead server's place and everybody concerned report,
// until all chains are whole.
func (s *scaled) heal(victim int, near map[int]struct{}) {
	for _, i := range slices.Sorted(maps.Keys(near)) {
		if st := s.well(i); i != victim {
			s.says(i, &st, true)
		}
	}
	s.processes++
	s.measure(func() {
		s.Join(Server, victim, Newcomer{Process: fmt.Sprintf("n%d", s.processes), PID: 100000 + s.processes})
	})
	s.speakers[victim] = words.ServerSpeaker{}
	for round := 0; len(s.agenda.Open.All()) > 0; round++ {
		report := map[int]struct{}{}
		for _, shard := range s.agenda.Open.All() {
			sv := &s.facts.View.Shards[shard]
			report[sv.Server] = struct{}{}
			if sv.Joining != nil {
				report[sv.Joining.Server] = struct{}{}
			}
		}
		for _, i := range slices.Sorted(maps.Keys(report)) {
			st := s.well(i)
			s.says(i, &st, true)
		}
		if round == 100 {
			s.Fatalf("%d shards are never whole", len(s.agenda.Open.All()))
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
		for i := range s.job.servers {
			st := s.well(i)
			s.says(i, &st, true)
		}
	}
	if !s.facts.View.Slots[slot].Settled {
		s.Fatalf("slot %d is never settled", slot)
	}
	s.measure(func() { s.WorkerStatus(slot, name, words.WorkerStatus{Generation: 1}) })
	s.fenced = nil
	for i := range s.job.servers {
		s.report(i)
	}
}

// each runs a benchmark at every scale. It reports the core's time alone, without what
// sets all up again.
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

// BenchmarkDeath is a server's death, of which the core is told at once, until there is
// the view without it: 24 shards are touched.
func BenchmarkDeath(b *testing.B) {
	each(b, func(s *scaled, n int) {
		victim := n * 37 % len(s.job.servers)
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
		victim := n * 37 % len(s.job.servers)
		cost, messages, bytes := s.cost, s.messages, s.bytes
		_, near := s.die(victim)
		s.cost, s.messages, s.bytes = cost, messages, bytes
		s.heal(victim, near)
	})
}

// BenchmarkWorkerDeath is a worker's, until another process speaks for its slot: every
// shard has refused its predecessor, and carried out what was decided.
func BenchmarkWorkerDeath(b *testing.B) {
	each(b, func(s *scaled, n int) { s.replace(n * 37 % len(s.job.slots)) })
}

// BenchmarkStatus is a server's word, of which some facts are new: of each of a number of
// shards one fence. It is written, read, and taken by the core. "cores" is what all the
// servers' words take, of one core, if each says so much ten times a second.
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
					said := [2]words.ServerStatus{s.well(7), s.well(7)} // in turn
					for i := range news {
						said[1].Shards[i].Fences = []words.Fence{{Slot: 3, Incarnation: 1, Carried: true}}
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

// BenchmarkWorkerHeartbeat is a worker's word that it is at its next clock.
func BenchmarkWorkerHeartbeat(b *testing.B) {
	each(b, func(s *scaled, n int) {
		s.measure(func() {
			s.WorkerStatus(7, s.facts.Slots[7].Process,
				words.WorkerStatus{Generation: 1, Clock: perdure.Clock(n % 900)})
		})
	})
}
