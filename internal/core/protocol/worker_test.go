package protocol_test

import (
	"errors"
	"math"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/protocol"
)

// TestFits checks that a worker's status may list all servers and shards of the job and no others.
func TestFits(t *testing.T) {
	job := &perdure.JobSpec{Shards: 3}
	of := func(servers, acked, out int) *protocol.WorkerStatus {
		return &protocol.WorkerStatus{
			Unreachable: make([]string, servers), Acked: make([]protocol.AckedClock, acked),
			Outage: &perdure.WorkerOutage{Shards: make([]perdure.ShardID, out)},
		}
	}
	for what, c := range map[string]struct {
		st   *protocol.WorkerStatus
		fits bool
	}{
		"nothing":          {&protocol.WorkerStatus{}, true},
		"all there can be": {of(perdure.MaxServers, 3, 3), true},
		"servers":          {of(perdure.MaxServers+1, 0, 0), false},
		"acknowledged":     {of(0, 4, 0), false},
		"out":              {of(0, 0, 4), false},
	} {
		if err := c.st.CheckSize(job); (err == nil) != c.fits || err != nil && !errors.Is(err, perdure.ErrRefused) {
			t.Errorf("%s: %v", what, err)
		}
		if err := c.st.Validate(job, &protocol.View{}); (err == nil) != c.fits {
			t.Errorf("%s is valid: %v", what, err)
		}
	}
}

// TestSaveSeconds checks that a worker cannot report a duration that makes the checkpoint interval meaningless.
func TestSaveSeconds(t *testing.T) {
	for took, refused := range map[float64]bool{0: false, 1.5: false, -1: true, math.Inf(1): true, math.NaN(): true} {
		s := protocol.WorkerStatus{SaveSeconds: took}
		if err := s.CheckSize(&perdure.JobSpec{Shards: 1}); errors.Is(err, perdure.ErrRefused) != refused {
			t.Errorf("%v s: %v", took, err)
		}
	}
}
