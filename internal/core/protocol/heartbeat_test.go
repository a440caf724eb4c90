package protocol

import "testing"

// TestBeats checks that small jobs report at every heartbeat. Large jobs report less often, but often enough for the
// failure detector.
func TestBeats(t *testing.T) {
	for _, c := range []struct{ slots, servers, want int }{
		{0, 1, 1}, {2, 2, 1}, {48, 12, 1}, {64, 16, 2}, {100, 20, 3}, {500, 100, 4},
	} {
		v := View{Slots: make([]SlotView, c.slots)}
		if got := HeartbeatDivisor(&v, c.servers); got != c.want {
			t.Errorf("%d slots and %d servers: a word every %d heartbeats, want %d", c.slots, c.servers, got, c.want)
		}
	}
}
