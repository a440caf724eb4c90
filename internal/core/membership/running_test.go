package membership_test

import (
	"reflect"
	"testing"

	"github.com/perdure/perdure/internal/core/membership"
	"github.com/perdure/perdure/internal/core/protocol"
)

func file(name string) protocol.SavedFile { return protocol.SavedFile{File: name, Bytes: 10} }

// say returns the status of a shard's holder. Its newest file is the last one.
func say(since uint64, bytes int64, files ...string) *protocol.ObservedShard {
	last := len(files) - 1
	s := protocol.Segment{File: files[last], Bytes: 10}
	for _, f := range files[:last] {
		s.Base = append(s.Base, file(f))
	}
	return &protocol.ObservedShard{ShardStatus: protocol.ShardStatus{
		Since: since, Ready: true, SaveBytes: bytes, SaveSeconds: float64(bytes) / 100, Segments: []protocol.Segment{s},
	}}
}

// TestNext checks that reports of shards are counted once, and that an older copy does not change.
func TestNext(t *testing.T) {
	said := make([]*protocol.ObservedShard, 3)
	next := func(c membership.RunningCheckpoint) (membership.RunningCheckpoint, bool) {
		return c.Next(func(i int) *protocol.ObservedShard { return said[i] })
	}
	first := membership.NewRunningCheckpoint(3)
	if _, news := next(first); news {
		t.Error("news without any report")
	}
	said[1] = say(4, 30, "a", "b")
	second, news := next(first)
	if want := []protocol.SavedFile{file("a"), file("b")}; !news || second.Number != 1 ||
		!reflect.DeepEqual(second.Files[1], want) || second.Saving.Bytes != 30 {
		t.Errorf("%t, %+v", news, second)
	}
	if first.Number != 0 || first.Files[1] != nil || first.Counted[1].Since != 0 {
		t.Errorf("the previous one has changed to %+v", first)
	}
	if _, news := next(second); news {
		t.Error("an unchanged report is news")
	}
	said[1] = say(4, 50, "b", "c")
	said[0] = say(9, 5, "x")
	third, news := next(second)
	if !news || third.Number != 2 || third.Saving.Bytes != 55 || len(third.Files[1]) != 2 || len(third.Files[0]) != 1 {
		t.Errorf("%t, %+v", news, third)
	}
	said[1].Ready = false
	said[1].Segments[0].File = "d"
	if _, news := next(third); news {
		t.Error("the report of a shard that does not serve yet is news")
	}
	said[1] = say(12, 20, "e") // another holder, whose counts start from 0
	fourth, _ := next(third)
	if fourth.Saving.Bytes != 75 || fourth.Saving.PausedSeconds != 0.75 {
		t.Errorf("%+v", fourth.Saving)
	}
}

// TestLost checks that rows are counted by their age, together with the updates that only some of them have.
func TestLost(t *testing.T) {
	st := &protocol.ShardStatus{Seq: 90, SavedRows: []protocol.SavedRows{
		{Rows: 2}, {Cut: 10, Seq: 40, Rows: 3}, {Cut: 15, Seq: 60}, {Cut: 20, Seq: 90, Rows: 5},
	}}
	c := membership.NewRunningCheckpoint(1).Lost(st, 22)
	want := protocol.RowSaving{
		Restored: 8, Initial: 2, AgeClocks: 2*22 + 3*12 + 5*2, Oldest: 22, PartlyLost: 90,
	}
	if c.Saving != want || c.Saving.MeanAge() != 9 {
		t.Errorf("%+v, want %+v", c.Saving, want)
	}
	st.SavedRows[0].Rows = 0
	if c = membership.NewRunningCheckpoint(1).Lost(st, 22); c.Saving.PartlyLost != 50 || c.Saving.Oldest != 12 {
		t.Errorf("%+v", c.Saving)
	}
}

// TestResumed checks that a job that resumes from another's files has them for each shard, and reports its initial rows
// once they are known for all shards.
func TestResumed(t *testing.T) {
	first := membership.NewRunningCheckpoint(2)
	if lost, saved := first.StartFiles(1); lost || saved != nil || first.StartMessage(&first, 3) != "" {
		t.Errorf("a new job: %t, %v", lost, saved)
	}
	c := membership.ResumeRunningCheckpoint(7, [][]protocol.SavedFile{{file("a")}, nil}, nil)
	for i, want := range []int{1, 0} {
		if lost, saved := c.StartFiles(i); !lost || len(saved) != want {
			t.Errorf("shard %d starts with %v, lost %t", i, saved, lost)
		}
	}
	forked := membership.ForkRunningCheckpoint(1, [][]protocol.SavedFile{{file("a")}}, nil)
	if lost, saved := forked.StartFiles(0); lost || len(saved) != 1 || forked.StartMessage(&forked, 0) != "" {
		t.Errorf("a job that starts at a cut, with earlier files: %t, %v", lost, saved)
	}
	st := &protocol.ShardStatus{Seq: 9, SavedRows: []protocol.SavedRows{{Rows: 1}, {Cut: 4, Seq: 9, Rows: 3}}}
	second := c.Lost(st, 6)
	if text := second.StartMessage(&c, 5); text != "" {
		t.Errorf("after the first of two shards: %s", text)
	}
	third := second.Lost(st, 6)
	want := "8 rows start as last saved, on average 3.0 and at most 6 clocks earlier; 2 of them were never saved and " +
		"start with their initial values; 5 updates are lost completely, and 18 partly"
	if text := third.StartMessage(&second, 5); text != want {
		t.Errorf("message %q", text)
	}
	if text := third.Lost(st, 6).StartMessage(&third, 5); text != "" {
		t.Errorf("a later loss is reported as the start: %s", text)
	}
}
