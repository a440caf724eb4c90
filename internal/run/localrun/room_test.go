package localrun

import (
	"strings"
	"testing"

	"github.com/perdure/perdure/internal/proc/machine"
	"github.com/perdure/perdure/internal/run/settings"
)

// TestRoom: a job that cannot fit is refused at once, and a large one says what it takes.
func TestRoom(t *testing.T) {
	free, known := machine.FreeMemory()
	if !known {
		t.Skip("this system does not tell how much memory is free")
	}
	s := settings.Run{}
	s.Job.Slots, s.Job.Servers, s.Job.Shards, s.Job.Clocks = 4, 2, 16, 10
	if says, err := room(&s, true); says != "" && needs(&s, true) < free/2 || err != nil {
		t.Errorf("a small job: %q, %v", says, err)
	}
	s.Job.Slots = 62
	if says, err := room(&s, true); err == nil && !strings.HasPrefix(says, "62 workers and 2 servers on ") {
		t.Errorf("a larger job: %q", says)
	}
	s.Trained.DataBytes = int64(free) // of each
	if _, err := room(&s, true); err == nil || !strings.Contains(err.Error(), "62 workers and 2 servers take about") ||
		!strings.Contains(err.Error(), "GB free; choose fewer --workers") {
		t.Errorf("a job that cannot fit: %v", err)
	}
	if _, err := room(&s, false); err != nil {
		t.Errorf("without its workers: %v", err)
	}
}
