package failuredetector

import (
	"fmt"
	"testing"
)

// Complaints about addresses that no server has are not remembered, however many there are.
func TestUnknownAddresses(t *testing.T) {
	var w Partitions
	job := PartitionJob{Servers: 2, Live: all(4)}
	name := func(n int) string { return fmt.Sprint(n) }
	said := []Complaint{{2, "b"}, {2, "b"}}
	for i := range 1000 {
		said = append(said, Complaint{2, fmt.Sprintf("unknown %d", i)})
	}
	for now := range int64(20) {
		w.Look(&job, said, []string{"a", "b"}, now, 10, name)
	}
	if len(w.since) != 1 || !w.Out("b") || w.Out("a") {
		t.Errorf("%d complaints are remembered; out: a %v, b %v", len(w.since), w.Out("a"), w.Out("b"))
	}
	// The excluded server's index is now held by another process, but the excluded one could reconnect at its old
	// address.
	if w.Look(&job, said, []string{"a", "c"}, 30, 10, name); !w.Out("b") {
		t.Error("b is no longer excluded, although no process can reach it")
	}
	if w.Look(&job, nil, []string{"a", "c"}, 31, 10, name); w.Out("b") || !w.Quiet() {
		t.Error("b is still excluded or remembered, although all complaints have ended")
	}
}
