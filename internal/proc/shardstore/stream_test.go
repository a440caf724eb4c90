package shardstore

import (
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/replica"
	"github.com/perdure/perdure/internal/data/updatelog"
	"github.com/perdure/perdure/internal/data/wire"
)

// Which facts count that are read: those of the newest life, each once, in order.
func TestFactsThatCount(t *testing.T) {
	fact := func(kind wire.Kind, epoch perdure.Epoch, number uint64) *wire.Frame {
		return &wire.Frame{Header: wire.Header{Kind: kind, Epoch: epoch, Request: number}}
	}
	var q ownFacts
	for i, c := range []struct {
		fact *wire.Frame
		want bool
	}{
		{fact(wire.KindFence, 1, 1), false}, // before any life
		{fact(wire.KindLife, 1, 0), false},
		{fact(wire.KindFence, 1, 1), true},
		{fact(wire.KindFence, 1, 1), false}, // appended twice
		{fact(wire.KindDecide, 1, 2), true},
		{fact(wire.KindLife, 1, 0), false}, // appended twice: it does not begin anew
		{fact(wire.KindFence, 1, 2), false},
		{fact(wire.KindEnd, 2, 1), false}, // of a life that has not begun
		{fact(wire.KindLife, 2, 0), false},
		{fact(wire.KindEnd, 1, 3), false}, // of a head that was succeeded
		{fact(wire.KindEnd, 2, 1), true},
	} {
		if got := q.Take(c.fact, false); got != c.want {
			t.Errorf("fact %d, of epoch %d, number %d: taken %v", i, c.fact.Epoch, c.fact.Request, got)
		}
	}
	if got, want := q.Life(), (replica.Life{Epoch: 2, Facts: 1}); got != want {
		t.Errorf("it has come to %+v, want %+v", got, want)
	}
	if !q.Take(fact(wire.KindEnd, 1, 9), true) {
		t.Error("a control cannot have all facts taken")
	}
}

// What is to be appended is numbered from 0 on in each epoch, and forgotten with it.
func TestFactsToAppend(t *testing.T) {
	var q ownFacts
	if !q.Begins(3) || q.Begins(3) || q.Begins(2) {
		t.Error("an epoch begins once")
	}
	for range 2 {
		q.Add(wire.Frame{}, 3)
	}
	first, _ := q.Next()
	q.Appended(&first)
	second, ok := q.Next()
	if !ok || first.Request != 0 || second.Request != 1 || second.Epoch != 3 {
		t.Errorf("%+v, then %+v are appended", first.Header, second.Header)
	}
	q.Begins(4)
	q.Add(wire.Frame{}, 4)
	q.Appended(&second) // late
	if f, ok := q.Next(); !ok || f.Epoch != 4 || f.Request != 0 {
		t.Errorf("next is %+v, %v", f.Header, ok)
	}
}

// When a snapshot is due, and what may be cut off once it is written.
func TestSaves(t *testing.T) {
	s := newSnapshotPlan(SnapshotLimits{Job: "j", Asked: 100, Within: 1000})
	read := func(n int) { s.Count(&updatelog.Entry{Payload: make([]byte, n)}) }
	file := func(pos uint64) SnapshotFile { return SnapshotFile{Position: pos} }
	if read(99); s.Due() {
		t.Error("it is due before as much is read as is asked for")
	}
	if read(1); !s.Due() {
		t.Error("it is not due when as much is read as is asked for")
	}
	s.Begin(150)
	if read(500); s.Due() {
		t.Error("it is due while one is written")
	}
	if _, ok := s.Newest(); ok {
		t.Error("one that is being written is there")
	}
	if s.End(false); !s.Due() {
		t.Error("it is not due again when it could not be written")
	}
	s.Begin(150)
	if _, cut := s.Written(file(7)); cut != nil {
		t.Errorf("the log may be cut to %d, though another one is to be kept", cut.Position)
	}
	if s.End(true); s.Due() {
		t.Error("it is due right after it was written")
	}
	if read(149); s.Due() {
		t.Error("it is due before as much is read as it is to write")
	}
	s.Begin(150)
	if oldest, cut := s.Written(file(9)); cut == nil || cut.Position != 7 || oldest.Position != 7 {
		t.Errorf("cut %+v, oldest %+v; want to keep two", cut, oldest)
	}
	s.End(true)
	read(601)
	s.Begin(150)
	if oldest, cut := s.Written(file(11)); cut == nil || cut.Position != 11 || oldest.Position != 9 {
		t.Errorf("more follows the older than the log has room for: cut %+v, oldest %+v", cut, oldest)
	}
	s.End(true)
	s.Full(true)
	if read(1); !s.Due() {
		t.Error("it is not due though the log is full")
	}
}

func TestLength(t *testing.T) {
	var l streamLength
	now := time.Unix(100, 0)
	if l.Unread(now) != nil {
		t.Error("it is known what nobody has heard")
	}
	l.Heard(10, now)
	l.Taken(7)
	l.Taken(5)
	if n := l.Unread(now); n == nil || *n != 3 {
		t.Errorf("%v are missing, want 3", n)
	}
	if l.Unread(now.Add(3*lookEvery+1)) != nil {
		t.Error("what was heard long ago says something")
	}
}
