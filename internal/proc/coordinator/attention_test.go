package coordinator

import (
	"testing"
	"time"
)

// Who judges has listened if its tick came about in time, and all that had come was read
// at some time since the one before.
func TestAttention(t *testing.T) {
	const every = 100 * time.Millisecond
	now := time.Unix(1000, 0)
	for name, c := range map[string]struct {
		late   time.Duration
		read   []int // how many messages waited after each that was read
		unread int   // when the tick comes
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
		a := attention{every: every}
		if !a.listened(now, 0) {
			t.Fatal("at its first tick it has not listened")
		}
		for _, n := range c.read {
			a.reads(n)
		}
		if got := a.listened(now.Add(every+c.late), c.unread); got != c.want {
			t.Errorf("%s: it listened: %v, want %v", name, got, c.want)
		}
		if !a.listened(now.Add(2*every+c.late), 0) {
			t.Errorf("%s: a tick later it has not listened", name)
		}
	}
}
