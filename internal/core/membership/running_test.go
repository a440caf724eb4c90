package membership_test

import (
	"reflect"
	"testing"

	"github.com/perdure/perdure/internal/core/membership"
	"github.com/perdure/perdure/internal/core/words"
)

func file(name string) words.SavedFile { return words.SavedFile{File: name, Bytes: 10} }

// say is the word of a shard's holder, whose newest file is the last one.
func say(since uint64, bytes int64, files ...string) *words.ShardWord {
	last := len(files) - 1
	s := words.Segment{File: files[last], Bytes: 10}
	for _, f := range files[:last] {
		s.Base = append(s.Base, file(f))
	}
	return &words.ShardWord{ShardStatus: words.ShardStatus{
		Since: since, Ready: true, SaveBytes: bytes, SaveSeconds: float64(bytes) / 100, Segments: []words.Segment{s},
	}}
}

// TestNext: what shards say is taken over once, and an older copy stays what it was.
func TestNext(t *testing.T) {
	said := make([]*words.ShardWord, 3)
	next := func(c membership.RunningCheckpoint) (membership.RunningCheckpoint, bool) {
		return c.Next(func(i int) *words.ShardWord { return said[i] })
	}
	first := membership.NewRunning(3)
	if _, news := next(first); news {
		t.Error("nobody has said anything, and it is news")
	}
	said[1] = say(4, 30, "a", "b")
	second, news := next(first)
	if want := []words.SavedFile{file("a"), file("b")}; !news || second.Number != 1 ||
		!reflect.DeepEqual(second.Files[1], want) || second.Saving.Bytes != 30 {
		t.Errorf("%t, %+v", news, second)
	}
	if first.Number != 0 || first.Files[1] != nil || first.Told[1].Since != 0 {
		t.Errorf("the one before has become %+v", first)
	}
	if _, news := next(second); news {
		t.Error("the same word is news")
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
		t.Error("the word of one who does not serve yet is news")
	}
	said[1] = say(12, 20, "e") // another holder, who counts from 0
	fourth, _ := next(third)
	if fourth.Saving.Bytes != 75 || fourth.Saving.PausedSeconds != 0.75 {
		t.Errorf("%+v", fourth.Saving)
	}
}

// TestLost: rows are counted by how old they were, and updates that some of them have.
func TestLost(t *testing.T) {
	st := &words.ShardStatus{Seq: 90, Kept: []words.Kept{
		{Rows: 2}, {Cut: 10, Seq: 40, Rows: 3}, {Cut: 15, Seq: 60}, {Cut: 20, Seq: 90, Rows: 5},
	}}
	c := membership.NewRunning(1).Lost(st, 22)
	want := words.RowSaving{
		Restored: 8, Initial: 2, AgeClocks: 2*22 + 3*12 + 5*2, Oldest: 22, PartlyLost: 90,
	}
	if c.Saving != want || c.Saving.MeanAge() != 9 {
		t.Errorf("%+v, want %+v", c.Saving, want)
	}
	st.Kept[0].Rows = 0
	if c = membership.NewRunning(1).Lost(st, 22); c.Saving.PartlyLost != 50 || c.Saving.Oldest != 12 {
		t.Errorf("%+v", c.Saving)
	}
}

// TestResumed: a job that goes on from another's files has them for each shard, and says with which
// rows it goes on when it knows that of all.
func TestResumed(t *testing.T) {
	first := membership.NewRunning(2)
	if lost, saved := first.Begins(1); lost || saved != nil || first.Begun(&first, 3) != "" {
		t.Errorf("a job that begins anew: %t, %v", lost, saved)
	}
	c := membership.ResumedRunning(7, [][]words.SavedFile{{file("a")}, nil}, nil)
	for i, want := range []int{1, 0} {
		if lost, saved := c.Begins(i); !lost || len(saved) != want {
			t.Errorf("shard %d begins with %v, and %t", i, saved, lost)
		}
	}
	forked := membership.ForkedRunning(1, [][]words.SavedFile{{file("a")}}, nil)
	if lost, saved := forked.Begins(0); lost || len(saved) != 1 || forked.Begun(&forked, 0) != "" {
		t.Errorf("a job that begins at a cut, with files of before: %t, %v", lost, saved)
	}
	st := &words.ShardStatus{Seq: 9, Kept: []words.Kept{{Rows: 1}, {Cut: 4, Seq: 9, Rows: 3}}}
	second := c.Lost(st, 6)
	if text := second.Begun(&c, 5); text != "" {
		t.Errorf("after the first of two shards: %s", text)
	}
	third := second.Lost(st, 6)
	want := "each row is as it was last saved: of 8 rows, 3.0 clocks before in the mean, and 6 at most; 2 were never " +
		"saved, and begin again; 5 updates are lost, and 18 in part"
	if text := third.Begun(&second, 5); text != want {
		t.Errorf("it says %q", text)
	}
	if text := third.Lost(st, 6).Begun(&third, 5); text != "" {
		t.Errorf("a later loss is told as the beginning: %s", text)
	}
}
