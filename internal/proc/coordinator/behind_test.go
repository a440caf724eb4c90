package coordinator_test

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/perdure/perdure/internal/core/membership"
	"github.com/perdure/perdure/internal/proc/coordinator"
	"github.com/perdure/perdure/internal/testcluster"
)

// TestSaysThatItIsBehind checks that an overloaded loop notifies the user after a while, not at every tick, and again
// when it has caught up. The status shows the messages.
func TestSaysThatItIsBehind(t *testing.T) {
	var log strings.Builder // used only by the loop while it runs
	inJob(t, testcluster.Job("bsp", "none", 1, 1, 1), func(t *testing.T, on *lone) {
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
			t.Errorf("after less than 10 s of overload the message is %q", text)
		}
		<-time.After(time.Second) // the loop catches up
		work(100 * time.Second)
		if text := latest(); !strings.Contains(text, "has been overloaded for 1m1") ||
			!strings.Contains(text, " messages are waiting; ") {
			t.Errorf("the status shows %q", text)
		}
		<-time.After(time.Second)
		if text := latest(); !strings.Contains(text, "has caught up after 1m") {
			t.Errorf("after catching up the message is %q", text)
		}
		on.Stop(testcluster.CoordinatorHost)
		// TestLag checks the exact times. Here the loop takes tasks in any order, and under this load a tick may be
		// half a second late.
		for text, want := range map[string]int{"has been overloaded for 1": 2, "has caught up after": 1} {
			if n := strings.Count(log.String(), text); n != want {
				t.Errorf("the log has %d times %q, want %d:\n%s", n, text, want, log.String())
			}
		}
	}, func(cfg *coordinator.Config) { cfg.Log = slog.New(slog.NewTextHandler(&log, nil)) })
}
