//go:build unix

package etcd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/perdure/perdure/internal/data/registry"
)

// deed is an operation of a client, with its result.
type deed struct {
	op       string // load, acquire, save, release
	lease    int    // number of the lease that was acquired, or used to save
	doc      string // first line of the saved or loaded document
	previous uint64
	revision uint64 // revision in the answer
	conflict bool
}

// state is the complete state of a registry. The expiry of a lease is not visible: another client may acquire it at any
// time.
type state struct {
	doc      string
	revision uint64
	lease    int
}

var model = porcupine.Model{
	Init: func() any { return state{} },
	Step: func(before, input, _ any) (bool, any) {
		s, d := before.(state), input.(deed)
		switch {
		case d.op == "load":
			return d.doc == s.doc && d.revision == s.revision, s
		case d.op == "acquire":
			s.lease = d.lease
			return true, s
		case d.op == "release":
			if s.lease == d.lease {
				s.lease = 0
			}
			return true, s
		case d.conflict:
			return d.previous != s.revision, s
		}
		return d.lease == s.lease && d.previous == s.revision && d.revision > s.revision,
			state{d.doc, d.revision, s.lease}
	},
	DescribeOperation: func(input, _ any) string { return fmt.Sprintf("%+v", input) },
}

// history records the operations of clients. Its time is a counter.
type history struct {
	t        *testing.T
	now      atomic.Int64
	leases   atomic.Int64
	mu       sync.Mutex // guards the fields below
	ops      []porcupine.Operation
	unknown  []porcupine.Operation // saves with an unknown result
	refused  map[string]bool       // documents whose save failed
	outcomes map[string]int
}

func (h *history) note(client int, call int64, d deed, outcome string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	op := porcupine.Operation{ClientId: client, Input: d, Call: call, Return: h.now.Add(1)}
	h.outcomes[d.op+" "+outcome]++
	switch outcome {
	case "unknown":
		h.unknown = append(h.unknown, op)
		return
	case "lost", "conflict":
		h.refused[d.doc] = true
	}
	if outcome == "ok" || outcome == "conflict" {
		h.ops = append(h.ops, op)
	}
}

// load performs one load. ok is false if the registry did not answer.
func (h *history) load(ctx context.Context, r *Registry, client int) (revision uint64, ok bool) {
	call := h.now.Add(1)
	doc, revision, err := r.Load(ctx)
	if err != nil {
		if !errors.Is(err, registry.ErrUnavailable) && ctx.Err() == nil {
			h.t.Errorf("Load: %v", err)
		}
		return 0, false
	}
	line, rest, _ := bytes.Cut(doc, []byte("\n"))
	if !bytes.Equal(rest, filler(string(line))) {
		h.t.Errorf("revision %d has %d bytes that were never saved as %q", revision, len(doc), line)
	}
	h.note(client, call, deed{op: "load", doc: string(line), revision: revision}, "ok")
	return revision, true
}

// filler returns the part of a document after its first line: up to some hundred kilobytes.
func filler(line string) []byte {
	if line == "" {
		return nil
	}
	rng := rand.New(rand.NewPCG(uint64(len(line)), uint64(line[len(line)-1])<<8|uint64(line[0])))
	return document(rng, rng.IntN(300<<10))
}

// hold is one client's use of the lease, if it can acquire it.
func (h *history) hold(ctx context.Context, r *Registry, client int, rng *rand.Rand) {
	number := int(h.leases.Add(1))
	call := h.now.Add(1)
	l, err := r.Acquire(ctx, registry.Holder{PID: client, Host: "test"})
	switch {
	case err == nil:
		h.note(client, call, deed{op: "acquire", lease: number}, "ok")
	case errors.Is(err, registry.ErrHeld), errors.Is(err, registry.ErrUnavailable), ctx.Err() != nil:
		after(20 * time.Millisecond)
		return
	default:
		h.t.Errorf("Acquire: %v", err)
		return
	}
	for range 3 + rng.IntN(40) {
		previous, ok := h.load(ctx, r, client)
		if !ok {
			continue
		}
		if rng.IntN(8) == 0 && previous > 0 {
			previous--
		}
		if !h.save(ctx, l, client, deed{
			op: "save", lease: number, previous: previous, doc: fmt.Sprintf("%d by %d", rng.Uint32(), client),
		}) {
			return
		}
	}
	call = h.now.Add(1)
	if l.Release() == nil {
		h.note(client, call, deed{op: "release", lease: number}, "ok")
	}
}

// save retries like a coordinator, and reports whether the lease is still valid.
func (h *history) save(ctx context.Context, l registry.Lease, client int, d deed) bool {
	call, doc := h.now.Add(1), append([]byte(d.doc+"\n"), filler(d.doc)...)
	for {
		revision, err := l.Save(ctx, doc, d.previous)
		switch {
		case err == nil:
			d.revision = revision
			h.note(client, call, d, "ok")
			return true
		case errors.Is(err, registry.ErrConflict):
			d.conflict = true
			h.note(client, call, d, "conflict")
			return true
		case errors.Is(err, registry.ErrOutcomeUnknown):
			h.note(client, call, d, "unknown")
			return false
		case errors.Is(err, registry.ErrLost):
			h.note(client, call, d, "lost")
			return false
		case ctx.Err() != nil:
			h.note(client, call, d, "unknown")
			return false
		case !errors.Is(err, registry.ErrUnavailable):
			h.t.Errorf("Save: %v", err)
			return false
		}
		h.outcome("save tried again")
	}
}

func (h *history) outcome(what string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.outcomes[what]++
}

// check checks that the whole history is linearizable.
func (h *history) check(c *cluster, prefix string) {
	t := h.t
	observed := map[string]deed{}
	for _, op := range h.ops {
		if d := op.Input.(deed); d.op == "load" {
			observed[d.doc] = d
		}
	}
	// If a save with an unknown result took effect, either the next client or the final load has loaded it.
	for _, op := range h.unknown {
		d := op.Input.(deed)
		if seen, was := observed[d.doc]; was {
			d.revision = seen.revision
			op.Input, op.Return = d, math.MaxInt64
			h.ops = append(h.ops, op)
		}
	}
	for doc := range h.refused {
		if _, was := observed[doc]; was {
			t.Errorf("%q was rejected, but was loaded", doc)
		}
	}
	over, saves := map[uint64]string{}, 0
	for _, op := range h.ops {
		d := op.Input.(deed)
		if d.op != "save" || d.conflict {
			continue
		}
		saves++
		if other := over[d.previous]; other != "" {
			t.Errorf("%q and %q were both saved over revision %d", other, d.doc, d.previous)
		}
		over[d.previous] = d.doc
		// etcd keeps its state at every revision.
		was, err := c.raw.Get(t.Context(), prefix+"/"+headKey, clientv3.WithRev(int64(d.revision)))
		if err != nil || len(was.Kvs) != 1 || was.Kvs[0].ModRevision != int64(d.revision) {
			t.Errorf("%q, saved at revision %d, does not exist in etcd: %v", d.doc, d.revision, err)
		}
	}
	t.Logf("%d operations, including %d saves: %v", len(h.ops), saves, h.outcomes)
	if r := porcupine.CheckOperationsTimeout(model, h.ops, time.Minute); r != porcupine.Ok {
		t.Errorf("%v: the history is not linearizable", r)
	}
}

// TestServerCluster runs three members. The leader is killed and stalled, and all but one become unavailable for a
// while, as clients save, lose their leases and take them over. The history must be linearizable.
func TestServerCluster(t *testing.T) {
	c := start(t, 3)
	prefix := c.prefix()
	t.Logf("seed %d", *seedFlag)
	h := &history{t: t, refused: map[string]bool{}, outcomes: map[string]int{}}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var wg sync.WaitGroup
	for client := range 5 {
		r, rng := c.open(t, prefix), rand.New(rand.NewPCG(*seedFlag, uint64(client)))
		wg.Go(func() {
			for ctx.Err() == nil {
				if client < 3 {
					h.hold(ctx, r, client, rng)
				} else if _, ok := h.load(ctx, r, client); ok {
					after(20 * time.Millisecond)
				}
			}
		})
	}
	wg.Go(func() { // leases expire
		for ctx.Err() == nil {
			after(1500 * time.Millisecond)
			soon, cancel := context.WithTimeout(ctx, time.Second)
			if c.expire(soon, prefix) == nil {
				h.outcome("lease taken away")
			}
			cancel()
		}
	})
	c.suffer(h, rand.New(rand.NewPCG(*seedFlag, 99)))
	stop()
	wg.Wait()
	if _, ok := h.load(t.Context(), c.open(t, prefix), 9); !ok {
		t.Fatal("no answer at the end")
	}
	h.check(c, prefix)
	for _, needed := range []string{"save ok", "save conflict", "save lost", "lease taken away"} {
		if h.outcomes[needed] == 0 {
			t.Errorf("the run had no %q", needed)
		}
	}
}

// suffer kills, stalls and restarts members.
func (c *cluster) suffer(h *history, rng *rand.Rand) {
	others := func(n int) []*member {
		all := slices.Clone(c.members)
		rng.Shuffle(len(all), func(i, k int) { all[i], all[k] = all[k], all[i] })
		return all[:n]
	}
	kill := func(victims []*member, d time.Duration) {
		for _, m := range victims {
			m.kill()
		}
		after(d)
		for _, m := range victims {
			m.begin()
		}
	}
	for range 3 {
		after(2 * time.Second)
		h.outcome("leader killed")
		kill([]*member{c.leader()}, time.Second)
		after(3 * time.Second)
		h.outcome("leader frozen")
		m := c.leader()
		m.signal(syscall.SIGSTOP)
		after(4 * time.Second)
		m.signal(syscall.SIGCONT)
		after(2 * time.Second)
		h.outcome("two killed")
		kill(others(2), 8*time.Second) // longer than the timeout of a call
		after(3 * time.Second)
	}
	h.outcome("all killed")
	kill(c.members, 2*time.Second)
	after(5 * time.Second)
}

// TestHistoriesThatAreWrong checks that a history with one wrong answer is rejected.
func TestHistoriesThatAreWrong(t *testing.T) {
	history := []deed{
		{op: "acquire", lease: 1},
		{op: "save", lease: 1, doc: "a", previous: 0, revision: 3},
		{op: "acquire", lease: 2},
		{op: "save", lease: 2, doc: "b", previous: 3, revision: 7},
		{op: "save", lease: 2, doc: "c", previous: 3, conflict: true},
		{op: "load", doc: "b", revision: 7},
	}
	check := func(all []deed) porcupine.CheckResult {
		var ops []porcupine.Operation
		for i, d := range all {
			ops = append(ops, porcupine.Operation{Input: d, Call: int64(2 * i), Return: int64(2*i + 1)})
		}
		return porcupine.CheckOperationsTimeout(model, ops, time.Minute)
	}
	if r := check(history); r != porcupine.Ok {
		t.Errorf("the correct history: %v", r)
	}
	for i, wrong := range map[int]deed{
		3: {op: "save", lease: 1, doc: "b", previous: 3, revision: 7}, // by a former holder of the lease
		4: {op: "save", lease: 2, doc: "c", previous: 3, revision: 9}, // a second save over the same revision
		5: {op: "load", doc: "a", revision: 3},                        // the previous document
		1: {op: "save", lease: 1, doc: "a", previous: 0, revision: 8}, // a decreasing revision
	} {
		if r := check(slices.Replace(slices.Clone(history), i, i+1, wrong)); r != porcupine.Illegal {
			t.Errorf("with %+v: %v", wrong, r)
		}
	}
}
