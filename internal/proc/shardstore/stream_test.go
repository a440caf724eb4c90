package shardstore

import (
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/replica"
	"github.com/perdure/perdure/internal/data/updatelog"
	"github.com/perdure/perdure/internal/data/wire"
)

// TestFactsThatCount checks that only facts of the newest Life count, each once and in order.
func TestFactsThatCount(t *testing.T) {
	entry := func(kind wire.Kind, epoch perdure.Epoch, number uint64) *wire.Frame {
		return &wire.Frame{Header: wire.Header{Kind: kind, Epoch: epoch, Request: number}}
	}
	var q factQueue
	for i, c := range []struct {
		fact *wire.Frame
		want bool
	}{
		{entry(wire.KindFence, 1, 1), false}, // before any Life
		{entry(wire.KindLife, 1, 0), false},
		{entry(wire.KindFence, 1, 1), true},
		{entry(wire.KindFence, 1, 1), false}, // appended twice
		{entry(wire.KindDecide, 1, 2), true},
		{entry(wire.KindLife, 1, 0), false}, // appended twice: the epoch does not restart
		{entry(wire.KindFence, 1, 2), false},
		{entry(wire.KindEnd, 2, 1), false}, // of an epoch without a Life
		{entry(wire.KindLife, 2, 0), false},
		{entry(wire.KindEnd, 1, 3), false}, // of a superseded head
		{entry(wire.KindEnd, 2, 1), true},
	} {
		if got := q.Accept(c.fact, false); got != c.want {
			t.Errorf("fact %d of epoch %d, number %d: Take returned %v", i, c.fact.Epoch, c.fact.Request, got)
		}
	}
	if got, want := q.Life(), (replica.LogProgress{Epoch: 2, ControlEntries: 1}); got != want {
		t.Errorf("Life is %+v, want %+v", got, want)
	}
	if !q.Accept(entry(wire.KindEnd, 1, 9), true) {
		t.Error("Take rejects a fact of an old epoch although all is set")
	}
}

// TestFactsToAppend checks that facts are numbered from 0 in each epoch and dropped with it.
func TestFactsToAppend(t *testing.T) {
	var q factQueue
	if !q.StartEpoch(3) || q.StartEpoch(3) || q.StartEpoch(2) {
		t.Error("Begins must report a new epoch once")
	}
	for range 2 {
		q.Add(wire.Frame{}, 3)
	}
	first, _ := q.Next()
	q.Appended(&first)
	second, ok := q.Next()
	if !ok || first.Request != 0 || second.Request != 1 || second.Epoch != 3 {
		t.Errorf("appended %+v, then %+v", first.Header, second.Header)
	}
	q.StartEpoch(4)
	q.Add(wire.Frame{}, 4)
	q.Appended(&second) // late
	if f, ok := q.Next(); !ok || f.Epoch != 4 || f.Request != 0 {
		t.Errorf("next is %+v, %v", f.Header, ok)
	}
}

// TestSaves checks when a snapshot is due, and how far the log may be trimmed after it.
func TestSaves(t *testing.T) {
	s := newSnapshotPlan(SnapshotLimits{Job: "j", Interval: 100, MaxLogBytes: 1000})
	read := func(n int) { s.Count(&updatelog.Entry{Payload: make([]byte, n)}) }
	file := func(pos uint64) SnapshotFile { return SnapshotFile{Position: pos} }
	if read(99); s.Due() {
		t.Error("a snapshot is due too early")
	}
	if read(1); !s.Due() {
		t.Error("no snapshot is due after the configured number of bytes")
	}
	s.Start(150)
	if read(500); s.Due() {
		t.Error("a snapshot is due while one is being written")
	}
	if _, ok := s.Newest(); ok {
		t.Error("Newest returned an incomplete snapshot")
	}
	if s.End(false); !s.Due() {
		t.Error("no snapshot is due after a failed one")
	}
	s.Start(150)
	if _, cut := s.Written(file(7)); cut != nil {
		t.Errorf("the log may be trimmed to %d before two snapshots exist", cut.Position)
	}
	if s.End(true); s.Due() {
		t.Error("a snapshot is due right after one was written")
	}
	if read(149); s.Due() {
		t.Error("a snapshot is due before as many bytes were read as it has")
	}
	s.Start(150)
	if oldest, cut := s.Written(file(9)); cut == nil || cut.Position != 7 || oldest.Position != 7 {
		t.Errorf("cut %+v, oldest %+v; want to keep two", cut, oldest)
	}
	s.End(true)
	read(601)
	s.Start(150)
	if oldest, cut := s.Written(file(11)); cut == nil || cut.Position != 11 || oldest.Position != 9 {
		t.Errorf("too much follows the older snapshot: trim to %+v, oldest %+v", cut, oldest)
	}
	s.End(true)
	s.SetFull(true)
	if read(1); !s.Due() {
		t.Error("no snapshot is due although the log is full")
	}
}

func TestLength(t *testing.T) {
	var l streamLength
	now := time.Unix(100, 0)
	if l.Unread(now) != nil {
		t.Error("Unread is known before any report")
	}
	l.SetLast(10, now)
	l.SetApplied(7)
	l.SetApplied(5)
	if n := l.Unread(now); n == nil || *n != 3 {
		t.Errorf("Unread is %v, want 3", n)
	}
	if l.Unread(now.Add(3*lookEvery+1)) != nil {
		t.Error("Unread is known after the report has expired")
	}
}
