package server_test

import (
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/transport"
)

// tail is a follower played by the test. It keeps entries and commits them when the test says so.
type tail struct {
	f    *fleet
	conn transport.Conn
	pos  uint64
	name wire.Header // of the epoch that it follows in
}

func (f *fleet) playTail(i int) *tail {
	f.Helper()
	p := &tail{f: f}
	f.Listen(host(i)+"/1", func(c transport.Conn, hello wire.Hello) {
		_ = c.Send(wire.Control(wire.KindWelcome, wire.Welcome{Job: f.job, Index: hello.Index, Incarnation: 1}))
		for {
			var got wire.Frame
			if c.Recv(&got) != nil {
				return
			}
			f.mu.Lock()
			switch p.conn = c; got.Kind {
			case wire.KindFollow:
				p.name = got.Header
				p.answer(wire.KindHave)
			default:
				p.pos = max(p.pos, got.Request)
			}
			f.mu.Unlock()
		}
	})
	return p
}

func (p *tail) answer(kind wire.Kind) {
	h := p.name
	h.Kind, h.Request, h.Slot = kind, p.pos, perdure.NoSlot
	_ = p.conn.Send(wire.Frame{Header: h})
}

// commit reports all received entries as committed.
func (p *tail) commit() {
	p.f.mu.Lock()
	p.answer(wire.KindCommitted)
	p.f.mu.Unlock()
	p.f.pass(20 * time.Millisecond)
}

// TestOrderOfWhatIsCommittedTogether checks that without ticks, entries that are committed together are applied in log
// order. Replicas that received them one by one do the same, so their sums are equal.
func TestOrderOfWhatIsCommittedTogether(t *testing.T) {
	inFleet(t, "asp", "chain:2", 3, 1, func(f *fleet) {
		p := f.playTail(9)
		f.chain(0, 9)
		f.table(dense())
		p.commit()
		var ws []*speaker
		for slot := range 3 {
			ws = append(ws, f.works(0, perdure.Slot(slot)))
		}
		for _, u := range []struct {
			slot int
			v    float32
		}{{2, 1e8}, {1, -1e8}, {0, 1}} {
			ws[u.slot].say(wire.KindUpdate, 0, add(u.v))
		}
		if v, ok := ws[0].row(0); !ok || v != 0 {
			t.Fatalf("before anything is committed the row is %v, %t", v, ok)
		}
		p.commit()
		if v, ok := ws[0].row(1); !ok || v != 1 {
			t.Errorf("(1e8 - 1e8) + 1 is %v, %t; want 1, the sum in the log's order", v, ok)
		}
	})
}
