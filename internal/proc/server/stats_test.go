package server_test

import (
	"errors"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/proc/httpdebug"
	"github.com/perdure/perdure/internal/proc/server"
	"github.com/perdure/perdure/internal/testcluster"
)

// watched starts a server and returns a channel that delivers its Monitor when it has joined.
func watched(h *testcluster.Hosts, host string) <-chan server.Monitor {
	joined := make(chan server.Monitor, 1)
	h.StartServer(host, func(c *server.Config) { c.OnJoined = func(e server.Monitor, _ int) { joined <- e } })
	return joined
}

// TestLook checks that a server counts its work, and keeps counting when a shard moves away.
func TestLook(t *testing.T) {
	ctx, h := testcluster.NewForTest(t, time.Minute, testcluster.Options{Ended: func(*testcluster.Process, error) {}})
	_, err := h.StartCoordinator(testcluster.Job("bsp", "chain:2,checkpoint:2", 1, 3, 4))
	must(t, err)
	first, others := watched(h, "server:0"), [2]<-chan server.Monitor{watched(h, "server:1"), watched(h, "server:2")}
	w, err := h.NewProcess("worker:0").Dial(ctx, 0)
	must(t, err)
	defer w.Close()
	table, err := w.Table(ctx, perdure.TableSpec{Name: "t", Rows: 8, Dim: 2, Rule: perdure.Rule{Kind: perdure.RuleAdd}})
	must(t, err)
	clock := func() {
		must(t, table.GetRun(ctx, 0, make([]float32, 16)))
		must(t, table.IncRun(0, make([]float32, 16)))
		_, err := w.Clock(ctx)
		must(t, err)
	}
	for range 5 {
		clock()
	}
	all := []server.Monitor{<-first, <-others[0], <-others[1]}
	var updates, answers, rows, bytes int64
	parts := map[server.ChainRole]int{}
	for i, e := range all {
		l := e.Stats()
		if l.Index != i || l.NotReady != "" || l.Unready != 0 || l.SaveFailures != 0 {
			t.Errorf("server:%d: %+v", i, l)
		}
		updates, answers = updates+l.Updates, answers+l.Answers
		rows, bytes = rows+l.Tables["t"].Rows, bytes+l.Tables["t"].Bytes
		for part, n := range l.Shards {
			parts[part] += n
		}
	}
	// The read of the last clock needed the updates of four slots at one replica. The updates of the next clock may be
	// in flight.
	if updates < 4*4 || updates > 5*4*2 || answers < 5*4 || answers > 6*4 || rows != 2*8 || bytes != 2*8*8 {
		t.Errorf("%d updates, %d answers, %d rows of %d bytes", updates, answers, rows, bytes)
	}
	if parts[server.Head] != 4 || parts[server.Tail] != 4 || len(parts) != 2 {
		t.Errorf("parts %v", parts)
	}
	before := all[0].Stats()
	h.Process("server:2").Drain()
	if err := h.Process("server:2").Wait(); !errors.Is(err, perdure.ErrStopped) {
		t.Errorf("it ended with %v", err)
	}
	clock()
	if after := all[0].Stats(); after.Updates <= before.Updates || after.Answers < before.Answers {
		t.Errorf("it counted %+v, and then %+v", before, after)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestStuckShard checks that endless work on a shard is noticed, and so is its end.
func TestStuckShard(t *testing.T) {
	ctx, h := testcluster.NewForTest(t, time.Minute, testcluster.Options{Ended: func(*testcluster.Process, error) {}})
	_, err := h.StartCoordinator(testcluster.Job("bsp", "none", 1, 1, 2))
	must(t, err)
	joined := watched(h, "server:0")
	w, err := h.NewProcess("worker:0").Dial(ctx, 0)
	must(t, err)
	defer w.Close()
	_, err = w.Table(ctx, perdure.TableSpec{Name: "t", Rows: 8, Dim: 2, Rule: perdure.Rule{Kind: perdure.RuleAdd}})
	must(t, err)
	e := <-joined
	look := func(bound time.Duration) httpdebug.Result {
		p := httpdebug.NewProbe(bound, func() httpdebug.State { return httpdebug.State{NotReady: e.Stats().NotReady} },
			nil)
		return p.Ask(ctx)
	}
	if seen := look(time.Minute); seen.Err != nil || seen.NotReady != "" {
		t.Fatalf("%+v", seen)
	}
	release := e.Seize(1)
	if seen := look(20 * time.Millisecond); seen.Err == nil {
		t.Error("a stuck shard was not noticed")
	}
	release()
	if seen := look(time.Minute); seen.Err != nil {
		t.Error(seen.Err)
	}
}
