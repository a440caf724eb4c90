package membership

import (
	"encoding/json"
	"testing"

	"github.com/perdure/perdure"
)

// bill is the cost of an event: the shards, slots and servers that were checked, the views sent to servers and to
// workers, and the bytes of one of each.
type bill struct{ shards, slots, servers, views, workerViews, bytes int }

// costOf calls do and returns its cost.
func (s *scaled) costOf(do func()) (b bill) {
	s.Helper()
	before := s.job.visits
	do()
	r := s.Ready()
	b.shards, b.slots, b.servers = s.job.visits.shards-before.shards, s.job.visits.slots-before.slots,
		s.job.visits.servers-before.servers
	if r.Delta != nil {
		said, err := json.Marshal(r.Delta)
		if err != nil {
			s.Fatal(err)
		}
		b.views, b.bytes = 1, len(said)
	}
	if r.WorkerDelta != nil {
		b.workerViews = 1
	}
	return b
}

// TestWork checks that the cost of an event, in checked shards and slots and in messages, depends only on what it
// touches: it is the same in a job of ten times as many servers, workers and shards.
func TestWork(t *testing.T) {
	var bills []map[string]bill
	for _, job := range scales {
		s := newScaled(t, job)
		costs := map[string]bill{}
		if s.replace(70); s.messages != 3*int64(len(s.job.servers)) {
			t.Errorf("%d messages about a replaced worker, to %d servers", s.messages, len(s.job.servers))
		}
		victim := 50
		replicas := s.job.replicas.NumShards(victim)
		if replicas != 24 {
			t.Fatalf("server %d holds %d replicas", victim, replicas)
		}
		death := s.costOf(func() { s.ProcessDied(Server, victim, s.record.Servers[victim].PID, "exited") })
		costs["death"] = death
		costs["return"] = s.costOf(func() { s.Join(Server, victim, Applicant{Process: "n", PID: 99999}) })
		first := s.healthyStatus(victim)
		for i := range first.Shards[1:] {
			first.Shards[i+1].Joined = false
		}
		costs["joined"] = s.costOf(func() { s.ServerStatus(victim, "n", first) })
		costs["heartbeat"] = s.costOf(func() { s.ServerStatus(victim, "n", first) })
		slot := 70
		costs["worker"] = s.costOf(func() { s.ProcessDied(Worker, slot, s.record.Slots[slot].PID, "exited") })
		costs["next"] = s.costOf(func() { s.Join(Worker, slot, Applicant{Process: "m", PID: 99998}) })
		s.fenced = []int{slot}
		costs["refused"] = s.costOf(func() {
			st := s.healthyStatus(0)
			s.ServerStatus(0, s.record.Servers[0].Process,
				st)
		})
		bills = append(bills, costs)
	}
	large, small := bills[0], bills[1]
	for what, b := range large {
		if a := small[what]; b.bytes > a.bytes*11/10 || b.shards != a.shards || b.slots != a.slots ||
			b.servers != a.servers || b.views != a.views || b.workerViews != a.workerViews {
			t.Errorf("%s: %+v, in a job of a tenth %+v", what, b, a)
		}
	}
	if d := large["death"]; d.shards < 24 || d.shards > 24*12 || d.slots > 0 || d.views != 1 || d.workerViews != 1 ||
		d.bytes > 24*200 {
		t.Errorf("a death that touches 24 shards costs %+v", d)
	}
	if j := large["return"]; j.views != 1 || j.workerViews != 0 || j.shards < 24 || j.shards > 24*12 {
		t.Errorf("24 shards that start to be copied cost %+v", j)
	}
	if j := large["joined"]; j.views != 1 || j.workerViews != 1 || j.shards > 24*12 || j.bytes > 700 {
		t.Errorf("the report that one of 24 is copied costs %+v", j)
	}
	if h := large["heartbeat"]; h != (bill{}) {
		t.Errorf("no news cost %+v", h)
	}
	if w := large["worker"]; w.views != 1 || w.workerViews != 0 || w.slots > 2 || w.shards > 2 || w.bytes > 300 {
		t.Errorf("a worker's death costs %+v", w)
	}
}

// TestDeathLooksAtNoSlot checks that the cost of a server's death, under a chain and without state, does not depend on
// the number of workers: no slot is checked until its shards are held again.
func TestDeathLooksAtNoSlot(t *testing.T) {
	for _, recovery := range []string{"chain:2", "stateless"} {
		job := perdure.JobSpec{Servers: 4, Slots: 30, Shards: 12}
		var err error
		if job.Recovery, err = perdure.ParseRecovery(recovery); err != nil {
			t.Fatal(err)
		}
		s := newScaled(t, job)
		death := s.costOf(func() { s.ProcessDied(Server, 1, s.record.Servers[1].PID, "exited") })
		next := s.costOf(func() { s.Join(Server, 1, Applicant{Process: "n", PID: 99}) })
		if death.slots+next.slots > 0 || next.views != 1 {
			t.Errorf("%s: a death costs %+v, the next process %+v", recovery, death, next)
		}
	}
}
