package coordinator_test

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/perdure/perdure/internal/core/membership"
	"github.com/perdure/perdure/internal/proc/coordinator"
	"github.com/perdure/perdure/internal/rig"
)

// A loop that does not catch up says so after a while, and not at every tick, and says when
// it has; status shows it.
func TestSaysThatItIsBehind(t *testing.T) {
	var log strings.Builder // the loop's alone, while it lives
	inJob(t, rig.Job("bsp", "none", 1, 1, 1), func(t *testing.T, on *lone) {
		const each = 25 * time.Millisecond
		work := func(d time.Duration) {
			for range d / each {
				on.Occupy(t.Context(), func() { <-time.After(each) })
			}
		}
		latest := func() (text string) {
			took := func(_ *membership.Core, latest coordinator.Latest) { text = latest.Event }
			if err := on.Ask(t.Context(), took); err != nil {
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
		if text := latest(); !strings.Contains(text, "has been behind for 1m1") ||
			!strings.Contains(text, " messages wait; ") {
			t.Errorf("status says %q", text)
		}
		<-time.After(time.Second)
		if text := latest(); !strings.Contains(text, "has caught up, after 1m") {
			t.Errorf("it has caught up, and says %q", text)
		}
		on.Stop(rig.CoordinatorHost)
		// When exactly, TestLag says: the loop takes what comes in any order, and under so much
		// work a tick may be half a second late.
		for text, want := range map[string]int{"has been behind for 1": 2, "has caught up, after": 1} {
			if n := strings.Count(log.String(), text); n != want {
				t.Errorf("the log says %d times %q, want %d:\n%s", n, text, want, log.String())
			}
		}
	}, func(cfg *coordinator.Config) { cfg.Log = slog.New(slog.NewTextHandler(&log, nil)) })
}
