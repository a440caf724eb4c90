package registrytest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/perdure/perdure/internal/data/registry"
)

// request and answered are the input and output of an operation, as seen by its client.
type request struct {
	op       string // load, acquire, save, release
	client   int
	doc      string // document to save
	previous uint64 // expected revision of a save
}

type response struct {
	doc      string // loaded document
	revision uint64
	rejected bool // the lease was held, or the revision differed
}

// registryState is the complete state of a registry.
type registryState struct {
	doc      string
	revision uint64
	holder   int // 0: free
}

// model is the sequential specification of a registry.
var model = porcupine.Model{
	Init: func() any { return registryState{} },
	Step: func(state, input, output any) (bool, any) {
		s, in, out := state.(registryState), input.(request), output.(response)
		switch in.op {
		case "load":
			return out.doc == s.doc && out.revision == s.revision, s
		case "acquire":
			if out.rejected {
				return s.holder != 0, s
			}
			next := s
			next.holder = in.client
			return s.holder == 0, next
		case "release":
			next := s
			next.holder = 0
			return s.holder == in.client, next
		}
		if out.rejected {
			return s.revision != in.previous, s
		}
		return s.holder == in.client && s.revision == in.previous && out.revision > s.revision,
			registryState{in.doc, out.revision, s.holder}
	},
	DescribeOperation: func(input, output any) string { return fmt.Sprintf("%+v: %+v", input, output) },
}

// history records the operations of many clients. Its time is a counter: an operation with a lower return time ended
// before one with a higher call time started.
type history struct {
	now atomic.Int64
	mu  sync.Mutex // guards ops
	ops []porcupine.Operation
}

// note runs and records an operation. An error other than refusal fails the test.
func (h *history) note(t *testing.T, in request, run func() (response, error), refusal error) response {
	op := porcupine.Operation{ClientId: in.client, Input: in, Call: h.now.Add(1)}
	out, err := run()
	op.Return = h.now.Add(1)
	if out.rejected = refusal != nil && errors.Is(err, refusal); err != nil && !out.rejected {
		t.Errorf("%+v: %v", in, err)
	}
	op.Output = out
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ops = append(h.ops, op)
	return out
}

func (h *history) load(t *testing.T, r registry.Registry, client int) (revision uint64) {
	return h.note(t, request{op: "load", client: client}, func() (response, error) {
		doc, revision, err := r.Load(t.Context())
		return response{doc: string(doc), revision: revision}, err
	}, nil).revision
}

// hold is one client's use of the lease. Two of its goroutines save concurrently, sometimes with an old revision.
func (h *history) hold(t *testing.T, r registry.Registry, client int, rng *rand.Rand) {
	var l registry.Lease
	if h.note(t, request{op: "acquire", client: client}, func() (out response, err error) {
		l, err = r.Acquire(t.Context(), registry.Holder{PID: client})
		return out, err
	}, registry.ErrHeld).rejected {
		runtime.Gosched()
		return
	}
	var wg sync.WaitGroup
	for range 2 {
		doc, stale := fmt.Sprintf("%d by %d", rng.Uint32(), client), rng.IntN(4) == 0
		wg.Go(func() {
			previous := h.load(t, r, client)
			if stale && previous > 0 {
				previous--
			}
			h.note(t, request{op: "save", client: client, doc: doc, previous: previous}, func() (response, error) {
				revision, err := l.Save(t.Context(), []byte(doc), previous)
				return response{revision: revision}, err
			}, registry.ErrConflict)
		})
	}
	wg.Wait()
	h.note(t, request{op: "release", client: client}, func() (response, error) { return response{}, l.Release() }, nil)
}

// runClients lets many clients use a registry concurrently, and returns their operations.
func runClients(t *testing.T, seed uint64, open Clients) []porcupine.Operation {
	const writers, readers, turns = 3, 4, 12
	h := &history{}
	var wg sync.WaitGroup
	for client := 1; client <= writers+readers; client++ {
		r, rng := open(t), rand.New(rand.NewPCG(seed, uint64(client)))
		wg.Go(func() {
			for range turns {
				if client <= writers && rng.IntN(3) > 0 {
					h.hold(t, r, client, rng)
				} else {
					h.load(t, r, client)
				}
			}
		})
	}
	wg.Wait()
	return h.ops
}

const checking = 30 * time.Second

// Linearizable checks that the operations of concurrent clients are linearizable.
func Linearizable(t *testing.T, s Implementation) {
	t.Run(s.Name, func(t *testing.T) {
		conflicts, saves, refusals := 0, 0, 0
		for seed := range uint64(8) {
			open, _ := s.New(t)
			h := runClients(t, seed, open)
			for _, op := range h {
				in, out := op.Input.(request), op.Output.(response)
				switch {
				case in.op == "save" && out.rejected:
					conflicts++
				case in.op == "save":
					saves++
				case out.rejected:
					refusals++
				}
			}
			if r := porcupine.CheckOperationsTimeout(model, h, checking); r != porcupine.Ok {
				t.Errorf("seed %d: %v: a history of %d operations is not linearizable", seed, r, len(h))
			}
		}
		t.Logf("%d saves, %d conflicts, %d refused leases", saves, conflicts, refusals)
		if saves == 0 || conflicts == 0 {
			t.Error("the run had no saves or no conflicts")
		}
	})
}
