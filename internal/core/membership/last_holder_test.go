package membership

import (
	"fmt"
	"slices"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/mutation"
	"github.com/perdure/perdure/internal/core/protocol"
)

// threeServers returns a job of three shards on three servers. Each shard is on two of them, and every two servers
// share one.
func threeServers(t *testing.T, recovery perdure.Recovery) JobRecord {
	t.Helper()
	job := perdure.JobSpec{
		ID: "last", Slots: 1, Servers: 3, Shards: 3, Clocks: 9,
		Consistency: perdure.Consistency{Kind: perdure.BSP}, Recovery: recovery,
	}
	c := New(NewJobRecord(job, 1, 0, nil), 15, mutation.Set{})
	for i := range job.Servers {
		come(t, c, i, process(i), Granted)
	}
	record := c.Ready().Record
	if record == nil {
		t.Fatal("three servers have joined, but no facts are to be saved")
	}
	for i := range record.View.Shards {
		if sv := &record.View.Shards[i]; sv.Replicas() != 2 {
			t.Fatalf("shard %d has %d replicas", i, sv.Replicas())
		}
	}
	return *record
}

var (
	chain2 = perdure.Recovery{Kind: perdure.RecoverChain, Replicas: 2}
	saved2 = perdure.Recovery{Kind: perdure.RecoverChain, Replicas: 2, Every: 5, Checkpoints: true}
)

func process(server int) string { return fmt.Sprintf("process %d", server) }

func come(t *testing.T, c *Core, server int, process string, want Admission) {
	t.Helper()
	if _, _, got := c.Join(Server, server, Applicant{Process: process, Addr: process}); got != want {
		t.Fatalf("%s asks for server:%d: admission %d, want %d", process, server, got, want)
	}
}

// TestEndsWhenDone checks that processes which end after the job is done are not reported as dead.
func TestEndsWhenDone(t *testing.T) {
	for _, done := range []bool{false, true} {
		c := New(threeServers(t, chain2), 15, mutation.Set{})
		come(t, c, 0, process(0), Granted)
		if done {
			c.Finish()
		}
		c.Ready()
		c.ProcessDied(Worker, 0, 0, "ended with code 0")
		c.ProcessDied(Server, 0, 0, "ended with code 0")
		sent := slices.ContainsFunc(c.Ready().Events, func(e Event) bool { return e.Kind == "detected" })
		if sent == done {
			t.Errorf("processes end, job done: %v; reported as dead: %v", done, sent)
		}
	}
}

// TestPlaceOfLast checks that a restarted coordinator does not reassign a server index while its process may hold the
// last rows of a shard.
func TestPlaceOfLast(t *testing.T) {
	c := New(threeServers(t, chain2), 15, mutation.Set{})
	come(t, c, 2, "another", Taken)
	come(t, c, 0, process(0), Granted)
	come(t, c, 2, "another", Taken) // the shard that it shares with server:1 may exist nowhere else
	come(t, c, 1, process(1), Granted)
	come(t, c, 2, "another", Granted)
}

// TestLastIsNotKilled checks that of two silent servers that share a shard neither is killed, although each is dropped
// from the shard that it shares with a live one. A new server gets neither of their indices.
func TestLastIsNotKilled(t *testing.T) {
	c := New(threeServers(t, chain2), 15, mutation.Set{})
	come(t, c, 1, process(1), Granted)
	for range 40 {
		c.Tick()
		c.ServerStatus(1, process(1), protocol.ServerStatus{})
	}
	r := c.Ready()
	if !slices.ContainsFunc(r.Events, func(e Event) bool { return e.Kind == "dropped" }) {
		t.Error("no server was dropped: nothing to test")
	}
	if len(r.Kills) > 0 {
		t.Errorf("killed: %+v; their shard exists nowhere else", r.Kills)
	}
	if at, _, admission := c.Join(Server, -1, Applicant{Process: "another", Addr: "another"}); at != 3 ||
		admission != Granted {
		t.Errorf("a newcomer gets server:%d, admission %d; want a new index, server:3", at, admission)
	}
}

// TestPlaceOfSilent has two servers that share a shard fall silent, although their connections have not broken. Another
// process gets one of their indices only if the job can roll back; both servers are then killed.
func TestPlaceOfSilent(t *testing.T) {
	for _, recovery := range []perdure.Recovery{chain2, saved2} {
		c := New(threeServers(t, recovery), 15, mutation.Set{})
		for i := range 3 {
			come(t, c, i, process(i), Granted)
			c.ServerStatus(i, process(i), protocol.ServerStatus{})
		}
		come(t, c, 2, "another", Taken)
		for range 40 {
			c.Tick()
			c.ServerStatus(1, process(1), protocol.ServerStatus{})
		}
		want, killed := Taken, 0
		if traitsOf(recovery).SavesCuts() {
			want, killed = Granted, 2
		}
		if r := c.Ready(); len(r.Kills) != killed {
			t.Errorf("%s: killed: %+v, want %d", recovery, r.Kills, killed)
		}
		come(t, c, 2, "another", want)
		if v := c.Record().View; v.Generation != 1 {
			t.Errorf("%s: all roll back although server:0 may be heard from again", recovery)
		}
		come(t, c, 0, "third", want)
		if v := c.Record().View; v.Generation > 1 != traitsOf(recovery).SavesCuts() {
			t.Errorf("%s: generation %d when both servers of a shard have other processes", recovery, v.Generation)
		}
	}
}

// TestLateWord checks that the first message after a silence, which may have been delayed for long while its sender
// died, does not cause silent servers to be dropped. The next message does.
func TestLateWord(t *testing.T) {
	c := New(threeServers(t, chain2), 15, mutation.Set{})
	for i := range 3 {
		come(t, c, i, process(i), Granted)
		c.ServerStatus(i, process(i), protocol.ServerStatus{})
	}
	for range 100 {
		c.Tick()
	}
	dropped := func() bool {
		return slices.ContainsFunc(c.Ready().Events, func(e Event) bool { return e.Kind == "dropped" })
	}
	if dropped() {
		t.Fatal("a server was dropped although all are silent")
	}
	c.ServerStatus(1, process(1), protocol.ServerStatus{})
	c.ServerStatus(1, process(1), protocol.ServerStatus{})
	if dropped() {
		t.Error("silent servers were dropped after one message of a server that may be dead")
	}
	c.Tick()
	c.ServerStatus(1, process(1), protocol.ServerStatus{})
	if !dropped() {
		t.Error("no server was dropped, although server:1 is alive and has the same rows")
	}
}
