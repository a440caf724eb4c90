package absence

import "testing"

const after = 100e6 // nanoseconds

// When a shard is out, and when it is back. A step lets time pass, and may have the shard
// answer; the shard then behaves in some way.
func TestJudge(t *testing.T) {
	whole := Conduct{There: true}
	owes := Conduct{There: true, Owes: true}
	gone := Conduct{Owes: true}
	busy := Conduct{There: true, Owes: true, Bytes: slowest * 3 / 10} // three times after
	type step struct {
		pass    Time
		answers bool
		how     Conduct
		want    Verdict
	}
	for name, steps := range map[string][]step{
		"it owes nothing": {
			{0, false, whole, Back}, {1e12, false, whole, Back},
		},
		"its server is gone": {
			{0, false, gone, AsBefore}, {after - 1, false, gone, AsBefore}, {1, false, gone, Gone},
		},
		"only its silence speaks for it": {
			{0, false, owes, AsBefore}, {4*after - 1, false, owes, AsBefore}, {1, false, owes, Gone},
		},
		"its servers have much to apply": {
			{0, false, busy, AsBefore}, {4 * after, false, busy, AsBefore}, {3 * after, false, busy, Gone},
		},
		"it answers, and owes again": {
			{0, false, owes, AsBefore},
			{after, true, owes, AsBefore},
			{4 * after, false, owes, AsBefore},
			{4 * after, false, owes, Gone}, // it took after to answer
		},
		"it is slow, and then faster": {
			{0, false, owes, AsBefore},
			{3 * after, true, owes, AsBefore},
			{0, true, owes, AsBefore},
			{14*after - 1, false, owes, AsBefore},
			{1, false, owes, AsBefore}, // 4·(1 + 3·7/8) times after
			{after, false, owes, Gone},
		},
		"it was away, which says nothing of its answers": {
			{0, false, owes, AsBefore}, {11 * after, true, owes, AsBefore}, {4 * after, false, owes, Gone},
		},
		"its connections break while it is silent": {
			{0, false, owes, AsBefore}, {2 * after, false, gone, Gone},
		},
	} {
		w, now, s := Watch{After: after}, Time(1), Shard{}
		for i, step := range steps {
			if now += step.pass; step.answers {
				w.Learns(&s, step.how.There, now)
				w.Answered(&s, now)
			}
			got := w.Judge(&s, step.how, now)
			if got != step.want {
				t.Errorf("%s, step %d: %v, want %v", name, i, got, step.want)
			}
			if got == Back {
				w.Answered(&s, now)
			}
		}
	}
}

// Who is out is not out again, and is back once.
func TestOutOnce(t *testing.T) {
	w, s := Watch{After: after}, Shard{}
	w.Judge(&s, Conduct{Owes: true}, 1)
	w.Leaves(&s, 200)
	if v := w.Judge(&s, Conduct{Owes: true}, 1e12); v != AsBefore || !s.Out() {
		t.Errorf("it is out, and judged %v", v)
	}
	if lasts, out := w.Outage(300); !out || lasts != 100 {
		t.Errorf("an outage: %v, since %d", out, lasts)
	}
	if !w.Answered(&s, 400) || w.Answered(&s, 400) || s.Out() {
		t.Error("it is not back once")
	}
	if _, out := w.Outage(500); out {
		t.Error("none is out, and there is an outage")
	}
}

// What is counted: a call's wait as far as some shard was out, clocks that end meanwhile, and
// the most that is queued.
func TestCounts(t *testing.T) {
	var w Watch
	var one, other Shard
	w.CountClock(7)
	w.Leaves(&one, 10)
	w.Leaves(&other, 12)
	w.CountWait(5, 13) // from 10 on
	w.CountClock(100)
	w.CountClock(50)
	w.Answered(&one, 20)
	w.Answered(&other, 30)
	w.CountWait(25, 40) // until 30
	w.CountWait(35, 45) // none
	if w.Waited != 8 || w.Clocks != 2 || w.Queued != 100 {
		t.Errorf("%d of waiting, %d clocks, %d bytes", w.Waited, w.Clocks, w.Queued)
	}
}
