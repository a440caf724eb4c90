package coordinator

import (
	"strings"
	"testing"
	"time"
)

// TestAttention checks that the loop has listened if its tick was on time and its inbox was empty at some time since
// the previous tick.
func TestAttention(t *testing.T) {
	const every = 100 * time.Millisecond
	now := time.Unix(1000, 0)
	for name, c := range map[string]struct {
		late   time.Duration
		read   []int // number of waiting messages after each message read
		unread int   // at the tick
		want   bool
	}{
		"idle":                        {want: true},
		"a little late":               {late: 2 * every, want: true},
		"late":                        {late: 2*every + 1},
		"stopped for long":            {late: time.Hour},
		"messages wait, read before":  {read: []int{3, 0, 2}, unread: 5, want: true},
		"messages wait all the while": {read: []int{3, 2, 9}, unread: 5},
		"all is read at last":         {read: []int{3, 2, 1}, want: true},
		"late, though all is read":    {late: time.Second, read: []int{0}},
	} {
		a := loopMonitor{every: every}
		if !a.keptUp(now, 0) {
			t.Fatal("it has not listened at its first tick")
		}
		for _, n := range c.read {
			a.recordUnread(n)
		}
		if got := a.keptUp(now.Add(every+c.late), c.unread); got != c.want {
			t.Errorf("%s: it listened: %v, want %v", name, got, c.want)
		}
		if !a.keptUp(now.Add(2*every+c.late), 0) {
			t.Errorf("%s: a tick later it has not listened", name)
		}
	}
}

// TestLag checks that the user is notified after 10 s without listening, again after a minute, and when the loop has
// caught up, but not of shorter lags.
func TestLag(t *testing.T) {
	var l lag
	start := time.Unix(1000, 0)
	for _, c := range []struct {
		at       time.Duration // of a tick
		listened bool
		says     string // expected prefix
	}{
		{0, true, ""},
		{1 * time.Second, false, ""},
		{10900 * time.Millisecond, false, ""},
		{10950 * time.Millisecond, true, ""}, // no notification was sent
		{20 * time.Second, false, ""},
		{29900 * time.Millisecond, false, ""},
		{30400 * time.Millisecond, false, "the coordinator has been overloaded for 10s: 7 messages are waiting; "},
		{31 * time.Second, false, ""},
		{90300 * time.Millisecond, false, ""},
		{90400 * time.Millisecond, false, "the coordinator has been overloaded for 1m10s: 7 messages are waiting; "},
		{150 * time.Second, false, ""},
		{151 * time.Second, false, "the coordinator has been overloaded for 2m11s: "},
		{152 * time.Second, true, "the coordinator has caught up after 2m12s; "},
		{153 * time.Second, true, ""},
		{154 * time.Second, false, ""},
	} {
		text := l.note(start.Add(c.at), c.listened, 7)
		if (text == "") != (c.says == "") || !strings.HasPrefix(text, c.says) {
			t.Errorf("after %v, listened %v, the message is %q, want %q", c.at, c.listened, text, c.says)
		}
	}
}
