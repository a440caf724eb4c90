package coordinator

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/perdure/perdure/internal/core/membership"
	"github.com/perdure/perdure/internal/data/registry"
	"github.com/perdure/perdure/internal/proc/transport"
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

// A loop that does not catch up says so after a while, and not at every tick, and says when
// it has; status shows it.
func TestSaysThatItIsBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := config(t, transport.NewMemory(1, transport.MemoryOptions{}), "coordinator", registry.NewMemory())
		var log strings.Builder // the loop's alone, while it lives
		cfg.Log = slog.New(slog.NewTextHandler(&log, nil))
		c, err := New(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- c.Run(ctx) }()
		const each = 25 * time.Millisecond
		work := func(d time.Duration) {
			for range d / each {
				c.inbox.gather(ctx, func() { <-time.After(each) })
			}
		}
		latest := func() (text string) {
			if err := c.Ask(ctx, func(_ *membership.Core, latest Latest) { text = latest.Event }); err != nil {
				t.Fatal(err)
			}
			return text
		}
		work(8 * time.Second)
		if text := latest(); text != "" {
			t.Errorf("behind for less than 10 s it says %q", text)
		}
		<-time.After(time.Second) // it catches up
		work(100 * time.Second)
		if text := latest(); !strings.Contains(text,
			"has been behind for 1m1") /* 0 or 1 s: a tick sooner or later */ ||
			!strings.Contains(text, " messages wait; ") {
			t.Errorf("status says %q", text)
		}
		<-time.After(time.Second)
		if text := latest(); !strings.Contains(text, "has caught up, after 1m") {
			t.Errorf("it has caught up, and says %q", text)
		}
		cancel()
		<-ended
		for text, want := range map[string]int{
			"has been behind for 10s: ": 1, "has been behind for ": 2,
			"has caught up, after": 1,
		} {
			if n := strings.Count(log.String(), text); n != want {
				t.Errorf("the log says %d times %q, want %d:\n%s", n, text, want, log.String())
			}
		}
	})
}
