package server

import (
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/chain"
	"github.com/perdure/perdure/internal/core/protocol"
	"github.com/perdure/perdure/internal/core/replica"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/transport"
)

// rows and dim give the table a size of slightly more than 3 pieces.
const (
	rows = 13000
	dim  = 32
)

var name = chain.Fence{Generation: 1, Epoch: 2}

func job() *perdure.JobSpec {
	return &perdure.JobSpec{ID: "j", Slots: 1, Servers: 2, Shards: 1, Seed: 7}
}

// source returns a replica that serves a slot.
func source(t *testing.T) *replica.Replica {
	t.Helper()
	spec := perdure.TableSpec{Name: "w", Dim: dim, Rows: rows, Rule: perdure.Rule{Kind: perdure.RuleAdd}}
	spec.Consistency.Kind = perdure.ASP
	v := &protocol.View{
		Revision: 1, Generation: 1, Tables: []perdure.TableSpec{spec}, Shards: make([]protocol.ShardView, 1),
		Slots: []protocol.SlotView{{Incarnation: 1, Settled: true}},
	}
	r := replica.New(replica.Settings{Job: *job()})
	r.SetView(v, replica.Role{Head: true, Reads: true}, false)
	r.SetContent(replica.Content{States: make([][]byte, 1), Applied: make([]perdure.Clock, 1)}, v)
	r.ApplyView()
	for r.Propose() {
		record := slices.Clone(r.Effects().ControlEntries)
		r.Effects().ControlEntries = nil
		for _, f := range record {
			r.Step(&replica.Entry{Frame: wire.Frame{
				Header:  wire.Header{Kind: f.Kind, Slot: f.Slot, Incarnation: f.Incarnation, Clock: f.Clock},
				Payload: f.Payload,
			}}, nil)
		}
	}
	return r
}

// update adds to one value of each row.
func update(r *replica.Replica, clock perdure.Clock, by float32) {
	b := wire.Block{Rows: wire.Rows{Count: rows}, Values: make([]float32, rows*dim)}
	for i := range b.Values {
		b.Values[i] = by * float32(i%101)
	}
	f := wire.Frame{Header: wire.Header{Kind: wire.KindUpdate, Clock: clock, Incarnation: 1, Parts: 1}}
	r.Step(&replica.Entry{Frame: f}, wire.AppendBlock(nil, &b))
	r.Settle()
}

func values(t *testing.T, r *replica.Replica) []float32 {
	t.Helper()
	got := make([]float32, rows*dim)
	if err := r.State.Parts()[0].ReadRows(got, 0, nil, rows); err != nil {
		t.Fatal(err)
	}
	return got
}

// pair returns the two ends of a connection, which are closed at the end of the test.
func pair(t *testing.T) (near, far transport.Conn) {
	t.Helper()
	mem := transport.NewMemory(1, transport.MemoryOptions{})
	l, err := mem.Host("b").Listen("b/1")
	if err != nil {
		t.Fatal(err)
	}
	if near, err = mem.Host("a").Dial(t.Context(), "b/1"); err != nil {
		t.Fatal(err)
	}
	if far, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { near.Close(); far.Close(); l.Close() })
	return near, far
}

// receive receives a copy as a server does. It calls before prior to the acknowledgement of each piece.
func receive(c transport.Conn, before func(piece int)) (in *incomingCopy, inPlace int, err error) {
	var b frameBuffers
	var f wire.Frame
	for piece := 0; ; piece++ {
		if err := c.RecvInto(&f, func(f *wire.Frame, n int) []byte {
			if to := in.Buffer(f, n); to != nil {
				inPlace++
				return to
			}
			return b.Payload(n)
		}); err != nil {
			return in, inPlace, err
		}
		if in == nil && isFirstPiece(&f) {
			in = newIncomingCopy(job(), chain.FenceOf(&f.Header), &f)
		}
		if !in.AcceptNext(&f) {
			return in, inPlace, errors.New("unexpected piece")
		}
		whole, err := in.AddPiece(&f, f.Body, &b)
		if err != nil {
			return in, inPlace, err
		}
		before(piece)
		have := wire.Frame{Header: f.Header}
		have.Kind, have.Flags = wire.KindHave, 0
		if err := c.Send(have); err != nil || whole {
			return in, inPlace, err
		}
	}
}

// TestCopyIsOfOneMoment checks that a copy contains the rows of one moment although they change while it is sent, and
// that rows are received in their final place.
func TestCopyIsOfOneMoment(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		from := source(t)
		update(from, 0, 1)
		want := values(t, from)
		var lock sync.Mutex
		var buffers frameBuffers
		near, far := pair(t)
		lock.Lock()
		stays := func() bool { return false }
		c := newShardCopyLocked(copySource{Name: name, Lock: &lock, Moved: stays, Buffers: &buffers}, &from.State, 17)
		lock.Unlock()
		type sent struct {
			bytes int64
			err   error
		}
		done := make(chan sent, 1)
		go func() { n, err := c.Send(near); done <- sent{n, err} }()
		in, inPlace, err := receive(far, func(piece int) {
			lock.Lock()
			update(from, perdure.Clock(piece)+1, 3)
			lock.Unlock()
		})
		if err != nil {
			t.Fatal(err)
		}
		if got := <-done; got.err != nil || got.bytes < rows*dim*4 {
			t.Errorf("sent %d bytes, %v", got.bytes, got.err)
		}
		if in.Name != name || in.Pos != 17 || inPlace < 2 {
			t.Errorf("received %+v at %d, %d pieces in place", in.Name, in.Pos, inPlace)
		}
		to := replica.New(replica.Settings{Job: *job()})
		to.InstallSnapshot(in.IncomingSnapshot)
		if !slices.Equal(values(t, to), want) || slices.Equal(values(t, from), want) {
			t.Error("the copy does not have the rows of the moment when it was started")
		}
		if got := to.State.Applied()[0]; got != 1 {
			t.Errorf("the copy has %d clocks applied", got)
		}
	})
}

// TestWhatEndsACopy covers the ends of a copy: the shard moves, the receiver is gone, or the receiver sends a wrong
// answer.
func TestWhatEndsACopy(t *testing.T) {
	receives := func(far transport.Conn) { _, _, _ = receive(far, func(int) {}) }
	for _, c := range []struct {
		name  string
		moved int // at which call of Moved
		far   func(far transport.Conn)
		want  string
	}{
		{"the shard moves immediately", 1, receives, errMoved.Error()},
		{"the shard moves later", 3, receives, errMoved.Error()},
		{"the receiver is gone", 0, func(far transport.Conn) { far.Close() }, "connection"},
		{"it answers something else", 0, func(far transport.Conn) {
			_ = far.Send(wire.Frame{Header: wire.Header{Kind: wire.KindHave, Part: 9}})
		}, "was answered with a frame of kind"},
	} {
		synctest.Test(t, func(t *testing.T) {
			from := source(t)
			update(from, 0, 1)
			var lock sync.Mutex
			var buffers frameBuffers
			near, far := pair(t)
			asked := 0
			moved := func() bool { asked++; return asked == c.moved }
			copied := newShardCopyLocked(copySource{Name: name, Lock: &lock, Moved: moved, Buffers: &buffers},
				&from.State, 0)
			go c.far(far)
			_, err := copied.Send(near)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s: %v", c.name, err)
			}
			near.Close()
			update(from, 1, 1) // no old values are kept for the copy any more
		})
	}
}
