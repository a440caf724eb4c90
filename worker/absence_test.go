package worker

import "testing"

const after = 100e6 // nanoseconds

// When a shard is out, and when it is back. A step lets time pass, and may have the shard
// answer; the shard then behaves in some way.
func TestJudge(t *testing.T) {
	whole := conduct{There: true}
	owes := conduct{There: true, Owes: true}
	gone := conduct{Owes: true}
	busy := conduct{There: true, Owes: true, Bytes: slowest * 3 / 10} // three times after
	type step struct {
		pass    outageTime
		answers bool
		how     conduct
		want    outageVerdict
	}
	for name, steps := range map[string][]step{
		"it owes nothing": {
			{0, false, whole, isBack}, {1e12, false, whole, isBack},
		},
		"its server is gone": {
			{0, false, gone, asBefore}, {after - 1, false, gone, asBefore}, {1, false, gone, isGone},
		},
		"only its silence speaks for it": {
			{0, false, owes, asBefore}, {4*after - 1, false, owes, asBefore}, {1, false, owes, isGone},
		},
		"its servers have much to apply": {
			{0, false, busy, asBefore}, {4 * after, false, busy, asBefore}, {3 * after, false, busy, isGone},
		},
		"it answers, and owes again": {
			{0, false, owes, asBefore},
			{after, true, owes, asBefore},
			{4 * after, false, owes, asBefore},
			{4 * after, false, owes, isGone}, // it took after to answer
		},
		"it is slow, and then faster": {
			{0, false, owes, asBefore},
			{3 * after, true, owes, asBefore},
			{0, true, owes, asBefore},
			{14*after - 1, false, owes, asBefore},
			{1, false, owes, asBefore}, // 4·(1 + 3·7/8) times after
			{after, false, owes, isGone},
		},
		"it was away, which says nothing of its answers": {
			{0, false, owes, asBefore}, {11 * after, true, owes, asBefore}, {4 * after, false, owes, isGone},
		},
		"its connections break while it is silent": {
			{0, false, owes, asBefore}, {2 * after, false, gone, isGone},
		},
	} {
		w, now, s := outageWatch{After: after}, outageTime(1), shardOutage{}
		for i, step := range steps {
			if now += step.pass; step.answers {
				w.Learns(&s, step.how.There, now)
				w.Answered(&s, now)
			}
			got := w.Judge(&s, step.how, now)
			if got != step.want {
				t.Errorf("%s, step %d: %v, want %v", name, i, got, step.want)
			}
			if got == isBack {
				w.Answered(&s, now)
			}
		}
	}
}

// Who is out is not out again, and is back once.
func TestOutOnce(t *testing.T) {
	w, s := outageWatch{After: after}, shardOutage{}
	w.Judge(&s, conduct{Owes: true}, 1)
	w.Leaves(&s, 200)
	if v := w.Judge(&s, conduct{Owes: true}, 1e12); v != asBefore || !s.Out() {
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
	var w outageWatch
	var one, other shardOutage
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
