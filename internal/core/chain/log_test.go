package chain

import (
	"fmt"
	"testing"
)

// Example shows a chain of two replicas: an entry that the head appends is applied once the tail has it.
func Example() {
	size := func(e string) int { return len(e) }
	head, tail := New(0, size, 1<<20), New(0, size, 1<<20)
	head.Configure(Config{Epoch: 1, Head: true})
	tail.Configure(Config{Epoch: 1, Tail: true})
	head.Append("an update")

	for busy := true; busy; {
		busy = false
		for _, end := range []struct {
			name     string
			from, to *Log[string]
			as       Neighbor // what the sender is to the receiver
		}{{"head", head, tail, Predecessor}, {"tail", tail, head, Successor}} {
			ready := end.from.Ready()
			for _, g := range ready.Apply {
				fmt.Println(end.name, "applies", g.Entry)
			}
			for _, m := range ready.Messages {
				end.to.Step(end.as, m.Message)
				busy = true
			}
		}
	}
	// Output:
	// tail applies an update
	// head applies an update
}

// line is a chain of replicas in one process, without a network.
type line struct {
	replicas []*Log[uint64]
	applied  int
}

func newLine(n int) *line {
	l := &line{}
	for i := range n {
		r := New(0, func(uint64) int { return 8 }, 1<<20)
		r.Configure(Config{Epoch: 1, Head: i == 0, Tail: i == n-1})
		l.replicas = append(l.replicas, r)
	}
	l.run()
	return l
}

// run delivers messages until none are left.
func (l *line) run() {
	for busy := true; busy; {
		busy = false
		for i, r := range l.replicas {
			ready := r.Ready()
			l.applied += len(ready.Apply)
			for j := range ready.Messages {
				busy = true
				if m := &ready.Messages[j]; m.To == Predecessor {
					l.replicas[i-1].Step(Successor, m.Message)
				} else {
					l.replicas[i+1].Step(Predecessor, m.Message)
				}
			}
		}
	}
}

// TestSteadyStateAllocatesNothing checks that an entry that passes through a chain and is applied everywhere allocates
// no memory, neither singly nor in bursts.
func TestSteadyStateAllocatesNothing(t *testing.T) {
	for replicas := 1; replicas <= 3; replicas++ {
		for _, burst := range []int{1, 100} {
			l := newLine(replicas)
			runs := func() {
				for range burst {
					l.replicas[0].Append(7)
				}
				l.run()
			}
			for range 100 { // until the buffers have grown
				runs()
			}
			l.applied = 0
			if n := testing.AllocsPerRun(100, runs); n > 0 {
				t.Errorf("%d replicas, bursts of %d: %v allocations", replicas, burst, n)
			}
			if want := 101 * burst * replicas; l.applied != want {
				t.Errorf("%d replicas, bursts of %d: %d entries applied, want %d", replicas, burst, l.applied, want)
			}
		}
	}
}

// TestEagerHeadWaitsForWhoIsFarBehind checks that an eager head applies entries a few windows ahead of a follower that
// does not answer, and no further. It resumes when the follower answers.
func TestEagerHeadWaitsForWhoIsFarBehind(t *testing.T) {
	const size, window = 8, 100
	r := New(0, func(int) int { return size }, window)
	r.Configure(Config{Epoch: 1, Head: true, Eager: true})
	r.Step(Successor, Message[int]{Kind: Have, Epoch: 1})
	const most = maxEagerWindows * window / size
	for i := range 10 * most {
		r.Append(i)
	}
	if r.Applied() != most {
		t.Errorf("applied %d entries without the follower, want %d", r.Applied(), most)
	}
	r.Step(Successor, Message[int]{Kind: Committed, Epoch: 1, Pos: 9*most - 1})
	if r.Applied() != 9*most-1 {
		t.Errorf("applied %d entries with %d uncommitted, want %d", r.Applied(), most+1, 9*most-1)
	}
	r.Step(Successor, Message[int]{Kind: Committed, Epoch: 1, Pos: 9 * most})
	if r.Applied() != 10*most {
		t.Errorf("applied %d of %d entries with %d uncommitted", r.Applied(), 10*most, most)
	}
	r.Configure(Config{Epoch: 2, Head: true, Tail: true, Eager: true})
	if r.Append(0); r.Committed() != 10*most+1 || r.uncommittedBytes != 0 {
		t.Errorf("without a follower, %d entries are committed and %d bytes are not", r.Committed(), r.uncommittedBytes)
	}
}

// TestNothingIsKept checks that entries that are committed everywhere are kept nowhere: not in the log, which releases
// a large buffer, and not in the reused slices.
func TestNothingIsKept(t *testing.T) {
	l := newLine(3)
	for range 5000 {
		l.replicas[0].Append(7)
	}
	l.run()
	for i, r := range l.replicas {
		if len(r.log) > 0 || cap(r.log) > 1<<12 {
			t.Errorf("replica %d has a log of %d in a buffer for %d", i, len(r.log), cap(r.log))
		}
		ready := r.Ready()
		for _, g := range ready.Apply[:cap(ready.Apply)] {
			if g.Entry != 0 {
				t.Fatalf("replica %d retains an applied entry", i)
			}
		}
		for _, m := range ready.Messages[:cap(ready.Messages)] {
			if m.Entry != 0 {
				t.Fatalf("replica %d retains a sent entry", i)
			}
		}
	}
}

// BenchmarkEntry measures the path of an entry from Append until every member has applied it.
func BenchmarkEntry(b *testing.B) {
	for replicas := 1; replicas <= 3; replicas++ {
		for _, burst := range []int{1, 100} {
			b.Run(fmt.Sprintf("replicas=%d/burst=%d", replicas, burst), func(b *testing.B) {
				l := newLine(replicas)
				b.ReportAllocs()
				for n := 0; b.Loop(); n++ {
					l.replicas[0].Append(7)
					if n%burst == burst-1 {
						l.run()
					}
				}
			})
		}
	}
}

// TestBacklogIsBounded checks that a joiner that takes too long over its snapshot cannot make the tail's log grow
// without limit. The backlog is dropped, no entry waits for the joiner, and the joiner gets another snapshot.
func TestBacklogIsBounded(t *testing.T) {
	const window, most = 64, maxJoinerWindows * 64 / 8
	size := func(uint64) int { return 8 }
	tail := New(0, size, window)
	tail.Configure(Config{Epoch: 1, Head: true, Tail: true, Joiner: 7})
	joiner := NewJoiner(size, window)
	joiner.Configure(Config{Epoch: 1, Joining: true, Joiner: 7})
	snapshots := 0
	step := func() { // deliver all messages
		for busy := true; busy; {
			busy = false
			for _, m := range tail.Ready().take(&snapshots) {
				busy = true
				joiner.Step(Predecessor, m.Message)
			}
			for _, m := range joiner.Ready().take(new(int)) {
				busy = true
				tail.Step(Joiner, m.Message)
			}
		}
	}
	step()
	if snapshots != 1 {
		t.Fatalf("%d snapshots requested, want 1", snapshots)
	}
	at := tail.Applied()
	for range 3 * most {
		tail.Append(1)
		if n := len(tail.log) - tail.free; n > most+1 {
			t.Fatalf("%d entries kept for the joiner, want at most %d", n, most)
		}
	}
	if tail.Applied() != 3*most {
		t.Fatalf("%d of %d entries applied: entries wait for the joiner", tail.Applied(), 3*most)
	}
	joiner.Restored(at)
	step()
	for range FollowTicks {
		tail.Tick()
		step()
	}
	if snapshots != 2 || joiner.Joined() {
		t.Fatalf("%d snapshots, joined %t; want a second one, because the first is too old", snapshots, joiner.Joined())
	}
	joiner.Restored(tail.Applied())
	step()
	tail.Append(1)
	step()
	if !joiner.Joined() || joiner.End() != 3*most+1 || tail.logBytes != 8*(len(tail.log)-tail.free) {
		t.Errorf("joined %t with %d entries; the tail counts %d bytes", joiner.Joined(), joiner.End(), tail.logBytes)
	}
}

// take returns copies of the messages, and increments snapshots if a snapshot for a joiner is requested.
func (r Ready[E]) take(snapshots *int) []Outgoing[E] {
	if r.Snapshot[Joiner] {
		*snapshots++
	}
	return append([]Outgoing[E](nil), r.Messages...)
}

// TestWindowIsNotExceeded checks that at most one window is sent ahead of a successor's acknowledgements, unless a
// single entry is larger: the messages of all shards to one peer must fit into a connection's queue.
func TestWindowIsNotExceeded(t *testing.T) {
	for size, want := range map[int]int{40: 1, 32: 2, 100: 1} {
		head, tail := New(0, func(uint64) int { return size }, 64), New(0, func(uint64) int { return size }, 64)
		head.Configure(Config{Epoch: 1, Head: true})
		tail.Configure(Config{Epoch: 1, Tail: true})
		for _, m := range head.Ready().take(new(int)) {
			tail.Step(Predecessor, m.Message)
		}
		for _, m := range tail.Ready().take(new(int)) {
			head.Step(Successor, m.Message)
		}
		for range 5 {
			head.Append(1)
		}
		if n := len(head.Ready().Messages); n != want {
			t.Errorf("%d entries of %d bytes sent ahead in a window of 64, want %d", n, size, want)
		}
	}
}
