package membership

import (
	"fmt"
	"slices"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/weaken"
	"github.com/perdure/perdure/internal/core/words"
)

// threeServers is a job of three shards on three servers, each shard on two of them:
// every two servers share one.
func threeServers(t *testing.T, recovery perdure.Recovery) Facts {
	t.Helper()
	job := perdure.JobSpec{
		ID: "last", Slots: 1, Servers: 3, Shards: 3, Clocks: 9,
		Consistency: perdure.Consistency{Kind: perdure.BSP}, Recovery: recovery,
	}
	c := New(Begin(job, 1, 0, nil), 15, weaken.Set{})
	for i := range job.Servers {
		come(t, c, i, process(i), Granted)
	}
	facts := c.Ready().Facts
	if facts == nil {
		t.Fatal("three servers have come, and nothing is to be recorded")
	}
	for i := range facts.View.Shards {
		if sv := &facts.View.Shards[i]; sv.Replicas() != 2 {
			t.Fatalf("shard %d has %d replicas", i, sv.Replicas())
		}
	}
	return *facts
}

var (
	chain2 = perdure.Recovery{Kind: perdure.RecoverChain, Replicas: 2}
	saved2 = perdure.Recovery{Kind: perdure.RecoverChain, Replicas: 2, Every: 5, Checkpoints: true}
)

func process(server int) string { return fmt.Sprintf("process %d", server) }

func come(t *testing.T, c *Core, server int, process string, want Admission) {
	t.Helper()
	if _, _, got := c.Join(Server, server, Newcomer{Process: process, Addr: process}); got != want {
		t.Fatalf("%s asks for server:%d: admission %d, want %d", process, server, got, want)
	}
}

// Whoever ends once all may go is not told of as dead.
func TestEndsWhenDone(t *testing.T) {
	for _, done := range []bool{false, true} {
		c := New(threeServers(t, chain2), 15, weaken.Set{})
		come(t, c, 0, process(0), Granted)
		if done {
			c.Finish()
		}
		c.Ready()
		c.Gone(Worker, 0, 0, "ended with code 0")
		c.Gone(Server, 0, 0, "ended with code 0")
		told := slices.ContainsFunc(c.Ready().Events, func(e Event) bool { return e.Kind == "detected" })
		if told == done {
			t.Errorf("processes end, all may go: %v; are they told of as dead: %v", done, told)
		}
	}
}

// A coordinator that has come back does not know who lives: a server's place is not
// given away while its process may have the last rows of a shard.
func TestPlaceOfLast(t *testing.T) {
	c := New(threeServers(t, chain2), 15, weaken.Set{})
	come(t, c, 2, "another", Taken)
	come(t, c, 0, process(0), Granted)
	come(t, c, 2, "another", Taken) // its shard with server:1 may be nowhere else
	come(t, c, 1, process(1), Granted)
	come(t, c, 2, "another", Granted)
}

// Of two servers that share a shard, and are silent, neither is killed, though each is
// dropped from the shard that it shares with one that lives; nor does a newcomer get
// the place of one of them.
func TestLastIsNotKilled(t *testing.T) {
	c := New(threeServers(t, chain2), 15, weaken.Set{})
	come(t, c, 1, process(1), Granted)
	for range 40 {
		c.Tick()
		c.ServerStatus(1, process(1), words.ServerStatus{})
	}
	r := c.Ready()
	if !slices.ContainsFunc(r.Events, func(e Event) bool { return e.Kind == "dropped" }) {
		t.Error("nobody was dropped: there is nothing to test")
	}
	if len(r.Kills) > 0 {
		t.Errorf("killed: %+v; their shard is nowhere else", r.Kills)
	}
	if at, _, admission := c.Join(Server, -1, Newcomer{Process: "another", Addr: "another"}); at != 3 ||
		admission != Granted {
		t.Errorf("a newcomer gets server:%d, admission %d; want a place of its own, server:3", at, admission)
	}
}

// Two servers that share a shard are silent, though their connections have not broken.
// The place of one goes to another process that asks for it only where all can roll back:
// then both are killed, too.
func TestPlaceOfSilent(t *testing.T) {
	for _, recovery := range []perdure.Recovery{chain2, saved2} {
		c := New(threeServers(t, recovery), 15, weaken.Set{})
		for i := range 3 {
			come(t, c, i, process(i), Granted)
			c.ServerStatus(i, process(i), words.ServerStatus{})
		}
		come(t, c, 2, "another", Taken)
		for range 40 {
			c.Tick()
			c.ServerStatus(1, process(1), words.ServerStatus{})
		}
		want, killed := Taken, 0
		if traitsOf(recovery).Saves() {
			want, killed = Granted, 2
		}
		if r := c.Ready(); len(r.Kills) != killed {
			t.Errorf("%s: killed: %+v, want %d", recovery, r.Kills, killed)
		}
		come(t, c, 2, "another", want)
		if v := c.Facts().View; v.Generation != 1 {
			t.Errorf("%s: all roll back though server:0 may be heard again", recovery)
		}
		come(t, c, 0, "third", want)
		if v := c.Facts().View; v.Generation > 1 != traitsOf(recovery).Saves() {
			t.Errorf("%s: generation %d when both servers of a shard have other processes", recovery, v.Generation)
		}
	}
}

// A word that comes after a silence may have been long on its way, and its sender may be
// dead: those who are silent are dropped for its sake once there is another.
func TestLateWord(t *testing.T) {
	c := New(threeServers(t, chain2), 15, weaken.Set{})
	for i := range 3 {
		come(t, c, i, process(i), Granted)
		c.ServerStatus(i, process(i), words.ServerStatus{})
	}
	for range 100 {
		c.Tick()
	}
	dropped := func() bool {
		return slices.ContainsFunc(c.Ready().Events, func(e Event) bool { return e.Kind == "dropped" })
	}
	if dropped() {
		t.Fatal("somebody was dropped while nobody was heard")
	}
	c.ServerStatus(1, process(1), words.ServerStatus{})
	c.ServerStatus(1, process(1), words.ServerStatus{})
	if dropped() {
		t.Error("those who are silent were dropped at once, for the sake of one who may be dead")
	}
	c.Tick()
	c.ServerStatus(1, process(1), words.ServerStatus{})
	if !dropped() {
		t.Error("nobody was dropped, though server:1 lives and has what the others hold")
	}
}
