package availability

import "testing"

const after = 100e6 // nanoseconds

// TestJudge checks when a shard becomes unavailable and available. A step lets time pass and may record an answer; how
// is the shard's health afterwards.
func TestJudge(t *testing.T) {
	whole := Health{Connected: true}
	owes := Health{Connected: true, AnswerPending: true}
	gone := Health{AnswerPending: true}
	busy := Health{Connected: true, AnswerPending: true, Bytes: minApplyRate * 3 / 10} // takes 3·after to apply
	type step struct {
		pass    Time
		answers bool
		how     Health
		want    Decision
	}
	for name, steps := range map[string][]step{
		"it owes nothing": {
			{0, false, whole, Recovered}, {1e12, false, whole, Recovered},
		},
		"its server is gone": {
			{0, false, gone, Unchanged}, {after - 1, false, gone, Unchanged}, {1, false, gone, Failed},
		},
		"only its silence speaks for it": {
			{0, false, owes, Unchanged}, {4*after - 1, false, owes, Unchanged}, {1, false, owes, Failed},
		},
		"its servers have much to apply": {
			{0, false, busy, Unchanged}, {4 * after, false, busy, Unchanged}, {3 * after, false, busy, Failed},
		},
		"it answers, and owes again": {
			{0, false, owes, Unchanged},
			{after, true, owes, Unchanged},
			{4 * after, false, owes, Unchanged},
			{4 * after, false, owes, Failed}, // the last answer took after
		},
		"it is slow, and then faster": {
			{0, false, owes, Unchanged},
			{3 * after, true, owes, Unchanged},
			{0, true, owes, Unchanged},
			{14*after - 1, false, owes, Unchanged},
			{1, false, owes, Unchanged}, // 4·(1 + 3·7/8) times after
			{after, false, owes, Failed},
		},
		"it was away, which says nothing of its answers": {
			{0, false, owes, Unchanged}, {11 * after, true, owes, Unchanged}, {4 * after, false, owes, Failed},
		},
		"its connections break while it is silent": {
			{0, false, owes, Unchanged}, {2 * after, false, gone, Failed},
		},
	} {
		w, now, s := Watch{After: after}, Time(1), Shard{}
		for i, step := range steps {
			if now += step.pass; step.answers {
				w.RecordAnswer(&s, step.how.Connected, now)
				w.MarkAvailable(&s, now)
			}
			got := w.Decide(&s, step.how, now)
			if got != step.want {
				t.Errorf("%s, step %d: %v, want %v", name, i, got, step.want)
			}
			if got == Recovered {
				w.MarkAvailable(&s, now)
			}
		}
	}
}

// TestOutOnce checks that an unavailable shard does not become unavailable again, and that it becomes available once.
func TestOutOnce(t *testing.T) {
	w, s := Watch{After: after}, Shard{}
	w.Decide(&s, Health{AnswerPending: true}, 1)
	w.MarkUnavailable(&s, 200)
	if v := w.Decide(&s, Health{AnswerPending: true}, 1e12); v != Unchanged || !s.Unavailable() {
		t.Errorf("it is out, and judged %v", v)
	}
	if lasts, out := w.Outage(300); !out || lasts != 100 {
		t.Errorf("an outage: %v, since %d", out, lasts)
	}
	if !w.MarkAvailable(&s, 400) || w.MarkAvailable(&s, 400) || s.Unavailable() {
		t.Error("it is not back once")
	}
	if _, out := w.Outage(500); out {
		t.Error("none is out, and there is an outage")
	}
}

// TestCounts checks the counters: the part of a call's wait during which some shard was unavailable, the clocks
// finished meanwhile, and the max number of queued bytes.
func TestCounts(t *testing.T) {
	var w Watch
	var one, other Shard
	w.CountClock(7)
	w.MarkUnavailable(&one, 10)
	w.MarkUnavailable(&other, 12)
	w.CountWait(5, 13) // counts from 10 on
	w.CountClock(100)
	w.CountClock(50)
	w.MarkAvailable(&one, 20)
	w.MarkAvailable(&other, 30)
	w.CountWait(25, 40) // counts until 30
	w.CountWait(35, 45) // counts nothing
	if w.Waited != 8 || w.Clocks != 2 || w.Queued != 100 {
		t.Errorf("%d of waiting, %d clocks, %d bytes", w.Waited, w.Clocks, w.Queued)
	}
}
