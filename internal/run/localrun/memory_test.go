package localrun

import (
	"strings"
	"testing"

	"github.com/perdure/perdure/internal/proc/machine"
	"github.com/perdure/perdure/internal/run/settings"
)

// TestRoom checks that a job that does not fit into memory is rejected before it starts, and that a large one reports
// its memory use.
func TestRoom(t *testing.T) {
	free, known := machine.FreeMemory()
	if !known {
		t.Skip("this system does not report how much memory is free")
	}
	s := settings.Run{}
	s.Job.Slots, s.Job.Servers, s.Job.Shards, s.Job.Clocks = 4, 2, 16, 10
	if says, err := checkMemory(&s, true); says != "" && memoryNeeded(&s, true) < free/2 || err != nil {
		t.Errorf("small job: %q, %v", says, err)
	}
	s.Job.Slots = 62
	if says, err := checkMemory(&s, true); err == nil && !strings.HasPrefix(says, "62 workers and 2 servers on ") {
		t.Errorf("larger job: %q", says)
	}
	s.Trained.DataBytes = int64(free) // per worker
	if _, err := checkMemory(
		&s,
		true,
	); err == nil ||
		!strings.Contains(err.Error(), "62 workers and 2 servers need about") ||
		!strings.Contains(err.Error(), "GB free; reduce --workers") {
		t.Errorf("job that does not fit: %v", err)
	}
	if _, err := checkMemory(&s, false); err != nil {
		t.Errorf("without its workers: %v", err)
	}
}
