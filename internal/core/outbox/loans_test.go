package outbox

import (
	"testing"

	"github.com/perdure/perdure/internal/core/consistency"
	"github.com/perdure/perdure/internal/core/protocol"
	"github.com/perdure/perdure/internal/data/wire"
)

// counted is a Memory that counts the pieces taken and given back.
type counted struct{ taken, given int }

func (c *counted) Alloc(n int) ([]float32, any, error) {
	c.taken++
	return make([]float32, n, n+1), c.taken, nil
}

func (c *counted) Free(any) { c.given++ }

// Lent memory that another process shares is lent again once its update is safe, regardless of the limit for Go's own
// memory. It is given back when it is unused. Frames refer to its keeper. If an update may still be queued, its memory
// is neither lent again nor given back, and exists as long as the frames.
func TestLentMemory(t *testing.T) {
	memory := &counted{}
	b, s := asked(t, "asp", "checkpoint:9", Limits{Window: 1 << 20, Memory: memory})
	x := b.Table(0, b.jobView.view.Tables[0])
	clock := func() []wire.Frame {
		t.Helper()
		r, err := x.Buffer(4)
		if err != nil {
			t.Fatal(err)
		}
		if err := x.Deltas(0).CheckLend(0, 4); err != nil {
			t.Fatal(err)
		}
		x.Deltas(0).Lend(0, 4, r, r.Values)
		if err := s.Fill(consistency.Origin{Basis: -1}); err != nil {
			t.Fatal(err)
		}
		b.Seal()
		b.Next()
		frames := s.NextFrames(wire.Header{}, nil)
		for _, f := range frames {
			if k, ok := f.Release.(*keepers); !ok || len(k.of) != 1 || k.of[0] != memory.taken {
				t.Fatalf("a frame keeps %v, want piece %d", f.Release, memory.taken)
			}
		}
		return frames
	}
	applied := func() {
		c := b.Clock()
		s.Ack(protocol.Counts{Staged: c, Ticked: c, Applied: c, Seen: c})
	}
	for range 3 {
		if len(clock()) == 0 {
			t.Fatal("nothing was sent")
		}
		applied()
	}
	if memory.taken != 1 || memory.given != 0 {
		t.Errorf("%d pieces taken, %d given back; want the same one for each clock", memory.taken, memory.given)
	}
	clock()
	if _, err := s.Resend(protocol.Counts{Staged: b.Clock() - 1}, wire.Header{}, nil); err != nil {
		t.Fatal(err)
	}
	applied()
	x.trim()
	x.trim()
	if memory.given != 0 {
		t.Error("memory that may be queued in a connection was given back")
	}
	clock()
	applied()
	x.trim()
	x.trim()
	if memory.taken != 2 || memory.given != 1 {
		t.Errorf("%d pieces taken, %d given back; want 2, and the unused one", memory.taken,
			memory.given)
	}
}

// TestBufferFits checks that each request gets the smallest free buffer that fits, so that requests of the same sizes
// in another order need no more memory, and that buffers that are no longer used are given back although others are.
func TestBufferFits(t *testing.T) {
	memory := &counted{}
	b, _ := asked(t, "asp", "checkpoint:9", Limits{Memory: memory})
	x := b.Table(0, b.jobView.view.Tables[0])
	use := func(sizes ...int) {
		t.Helper()
		var used []*Buffer
		for _, n := range sizes {
			r, err := x.Buffer(n)
			if err != nil {
				t.Fatal(err)
			}
			r.users++
			used = append(used, r)
		}
		for _, r := range used {
			r.leave()
		}
	}
	use(300, 100, 200)
	use(100, 200, 300)
	if memory.taken != 3 {
		t.Errorf("%d pieces taken for three sizes", memory.taken)
	}
	use(300, 300, 100, 100)
	for range 3 {
		x.trim()
		use(100, 300)
	}
	if memory.taken != 4 || memory.given != 2 {
		t.Errorf("%d pieces taken, %d given back; want 4, and the 2 unused ones", memory.taken, memory.given)
	}
}
