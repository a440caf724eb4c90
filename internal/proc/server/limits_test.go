package server_test

import (
	"fmt"
	"math"
	"os"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/placement"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/server"
	"github.com/perdure/perdure/internal/proc/transport"
)

// sparseRows returns rows of a sparse table that are on the given shards of two.
func sparseRows(shards ...perdure.ShardID) (ids []perdure.RowID) {
	row := perdure.RowID(1 << 50)
	for _, s := range shards {
		for row++; placement.ShardOf(&perdure.TableSpec{Sparse: true}, 2, row) != s; row++ {
		}
		ids = append(ids, row)
	}
	return ids
}

// manyRows returns a read of n rows of the sparse table, all on shard 0.
func manyRows(n int) wire.Rows {
	ids := make([]perdure.RowID, n)
	for i := range ids {
		ids[i] = sparseRows(0)[0]
	}
	return wire.Rows{Table: 1, Count: n, IDs: ids}
}

func infUpdate() []byte {
	return wire.AppendBlock(nil, &wire.Block{
		Rows:   wire.Rows{Table: 1, Count: 1, IDs: sparseRows(0)},
		Values: []float32{1, 2, float32(math.Inf(1))},
	})
}

// connect connects to the server and completes the handshake.
func (s *subject) connect(change func(*wire.Hello)) transport.Conn {
	s.Helper()
	c, err := s.near.Dial(s.ctx, s.addr)
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() { c.Close() })
	var f wire.Frame
	if err := c.Send(hello(change)); err != nil {
		s.Fatal(err)
	}
	if err := c.Recv(&f); err != nil || f.Kind != wire.KindWelcome {
		s.Fatalf("got kind %d, %v; want a welcome", f.Kind, err)
	}
	return c
}

func anObserver(h *wire.Hello) { h.Role = wire.RoleObserver }

// until sends frames until the connection breaks, and returns the number sent.
func (s *subject) until(c transport.Conn, next func(i int) wire.Frame) int {
	s.Helper()
	for i := range 100_000 {
		if c.Send(next(i)) != nil {
			return i
		}
		if i%10 == 9 { // gives the server time to react
			<-time.After(time.Millisecond)
		}
	}
	s.Fatal("the server never closed the connection")
	return 0
}

// TestEndlessUpdate checks that an update which is too large, or whose parts never end, closes its connection with an
// explanation. Its staged parts have no effect.
func TestEndlessUpdate(t *testing.T) {
	for _, parts := range []uint16{0, math.MaxUint16} {
		synctest.Test(t, func(t *testing.T) {
			const most = 1 << 20
			s := start(t, inMemory, func(cfg *server.Config) { cfg.PendingBytes = most })
			s.goesOn("nothing")
			rows := manyRows(1000)
			payload := wire.AppendBlock(nil, &wire.Block{Rows: rows, Values: make([]float32, 3000)})
			for range 3 {
				before := s.log.about("")
				c := s.connect(func(*wire.Hello) {})
				sent := s.until(c, func(i int) wire.Frame {
					return s.shardFrame(wire.KindUpdate, payload,
						func(h *wire.Header) { h.Part, h.Parts = uint16(i), parts })
				})
				if n := most / len(payload); sent < n || sent > n+20 {
					t.Errorf("closed after %d parts, want about %d", sent, n)
				}
				says := fmt.Sprintf("up to clock %d; the limit is %d bytes", s.clock, most)
				if s.log.about(says) == 0 || s.log.about("")-before != 1 {
					t.Errorf("log is %q; want one line about it", s.log.all[before:])
				}
				s.goesOn("an endless update")
			}
		})
	}
}

// TestEndlessReads checks that the bytes of waiting reads are limited per connection.
func TestEndlessReads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t, inMemory)
		for _, ids := range []int{300_000, 1000} {
			rows := manyRows(ids)
			read := wire.AppendRows(nil, &rows)
			for range 2 { // the first connection's reads do not count against the second
				before := s.log.about("")
				c := s.connect(anObserver)
				sent := 0
				for c.Send(s.reads(read, 10)...) == nil && sent < 100_000 {
					sent += 10
					<-time.After(2 * time.Millisecond) // until they have arrived
				}
				// 64 MiB, with 8 bytes for each row id and 128 for each read.
				if most := 64 << 20 / (8*ids + 128); sent < most || sent > most+20 {
					t.Errorf("closed after %d reads of %d rows, want about %d", sent, ids, most)
				}
				if s.log.about("") != before+1 || s.log.about("waiting reads take") == 0 {
					t.Errorf("log is %q; want one line about it", s.log.all[before:])
				}
				s.goesOn("endless reads")
			}
		}
	})
}

// reads returns reads that wait for a clock that is never reached.
func (s *subject) reads(read []byte, n int) (frames []wire.Frame) {
	for range n {
		frames = append(frames, s.shardFrame(wire.KindGet, read, func(h *wire.Header) { h.Clock = 1 << 40 }))
	}
	return frames
}

// TestPeerThatDoesNotRead checks that a peer which does not read its answers loses its connection. In the meantime,
// others are served immediately, and the server keeps no more for the peer than a connection may hold.
func TestPeerThatDoesNotRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t, inMemory)
		large := manyRows(300_000)
		read := wire.AppendRows(nil, &large)
		c := s.connect(anObserver)
		sent := s.until(c, func(int) wire.Frame {
			began := time.Now()
			s.goesOn("an unread answer")
			if took := time.Since(began); took > 20*time.Millisecond {
				t.Errorf("others waited %v", took)
			}
			return s.shardFrame(wire.KindGet, read, func(h *wire.Header) { h.Clock = 0 })
		})
		most := transport.DefaultMaxQueued / (12 * 300_000)
		if sent < most || sent > most+3 {
			t.Errorf("closed after %d answers, want about %d", sent, most)
		}
		if n := s.log.about("the send queue is full"); n != 1 {
			t.Errorf("log is %q; want one line about it", s.log.all)
		}
		s.goesOn("a peer that does not read")
	})
}

// starved is a network whose listeners are out of file descriptors for a while.
type starved struct{ transport.Network }

type starvedListener struct {
	transport.Listener
	fails int
}

func (n starved) Listen(addr string) (transport.Listener, error) {
	l, err := n.Network.Listen(addr)
	return &starvedListener{l, 3}, err
}

func (l *starvedListener) Accept() (transport.Conn, error) {
	if l.fails--; l.fails >= 0 {
		return nil, fmt.Errorf("transport: %w", os.NewSyscallError("accept", syscall.EMFILE))
	}
	return l.Listener.Accept()
}

// TestTooManyFiles checks that a server with too many open files continues as soon as it has fewer.
func TestTooManyFiles(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t, inMemory, func(cfg *server.Config) { cfg.Network = starved{cfg.Network} })
		s.goesOn("that")
		if n := s.log.about("too many open files"); n != 3 {
			t.Errorf("log is %q; want 3 lines about it", s.log.all)
		}
	})
}
