package worker

import (
	"testing"
	"time"
)

// When a shard is out, and when it is back. A step lets time pass; the shard then behaves in
// some way, or has answered.
func TestJudge(t *testing.T) {
	const after = 100 * time.Millisecond
	whole := conduct{there: true}
	owes := conduct{there: true, owes: true}
	gone := conduct{owes: true}
	busy := conduct{there: true, owes: true, bytes: slowest} // a second's work
	type step struct {
		pass     time.Duration
		how      conduct
		answered bool
		want     verdict
	}
	for name, steps := range map[string][]step{
		"it owes nothing":                 {{0, whole, false, isBack}, {time.Hour, whole, false, isBack}},
		"its server is gone":              {{0, gone, false, asBefore}, {after - 1, gone, false, asBefore}, {1, gone, false, isOut}},
		"only its silence speaks for it":  {{0, owes, false, asBefore}, {after, owes, false, asBefore}, {3 * after, owes, false, isOut}},
		"it has much to apply":            {{0, busy, false, asBefore}, {time.Second, busy, false, asBefore}, {4 * after, busy, false, isOut}},
		"it answers":                      {{0, owes, false, asBefore}, {3 * after, owes, true, asBefore}, {after, owes, false, asBefore}},
		"it is slow throughout":           {{0, owes, false, asBefore}, {3 * after, owes, true, asBefore}, {15 * after, owes, false, asBefore}, {after, owes, false, isOut}},
		"it was away, and is not slow":    {{0, owes, false, asBefore}, {11 * after, owes, true, asBefore}, {4 * after, owes, false, isOut}},
		"it is gone before it was silent": {{0, owes, false, asBefore}, {2 * after, gone, false, isOut}},
	} {
		var sh outage
		o, now := outages{on: true, after: after}, time.Unix(0, 0)
		for i, s := range steps {
			now = now.Add(s.pass)
			if s.answered {
				o.answered(&sh, s.how.there, now)
				sh.quiet = time.Time{}
			}
			if got := o.judge(&sh, s.how, now); got != s.want {
				t.Errorf("%s, step %d: %v, want %v", name, i, got, s.want)
			}
			if s.want == isBack {
				sh.quiet = time.Time{}
			}
		}
	}
	o, sh := outages{after: after}, outage{stuck: true}
	if got := o.judge(&sh, conduct{out: true, owes: true}, time.Unix(0, 0)); got != isStuck {
		t.Errorf("a shard that is out, and not all were told: %v", got)
	}
}

// What is counted of outages: a call's wait as far as some shard was out, clocks that end
// meanwhile, and the most that is queued.
func TestOutagesCount(t *testing.T) {
	at := func(s int) time.Time { return time.Unix(int64(s), 0) }
	var o outages
	var one, other outage
	o.clocked(7)
	o.begins(at(10))
	o.begins(at(12))
	o.waited(at(5), at(13)) // from 10 on
	o.clocked(100)
	o.clocked(50)
	o.ends(&one, at(20))
	o.ends(&other, at(30))
	o.waited(at(25), at(40)) // until 30
	o.waited(at(35), at(45)) // none
	if o.wait != 8*time.Second || o.clocks != 2 || o.queued != 100 || o.shards != 0 {
		t.Errorf("%v of waiting, %d clocks, %d bytes, %d shards out", o.wait, o.clocks, o.queued, o.shards)
	}
}
