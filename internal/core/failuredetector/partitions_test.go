package failuredetector

import (
	"fmt"
	"testing"
)

// Complaints about addresses that no server has are not remembered, however many there are.
func TestUnknownAddresses(t *testing.T) {
	var w Partitions
	job := Processes{Servers: 2, Live: all(4)}
	name := func(n int) string { return fmt.Sprint(n) }
	said := []Complaint{{2, "b"}, {2, "b"}}
	for i := range 1000 {
		said = append(said, Complaint{2, fmt.Sprintf("unknown %d", i)})
	}
	for now := range int64(20) {
		w.Update(&job, said, []string{"a", "b"}, now, 10, name)
	}
	if len(w.since) != 1 || !w.IsExcluded("b") || w.IsExcluded("a") {
		t.Errorf("%d complaints are remembered; out: a %v, b %v", len(w.since), w.IsExcluded("a"), w.IsExcluded("b"))
	}
	// The excluded server's index is now held by another process, but the excluded one could reconnect at its old
	// address.
	if w.Update(&job, said, []string{"a", "c"}, 30, 10, name); !w.IsExcluded("b") {
		t.Error("b is no longer excluded, although no process can reach it")
	}
	if w.Update(&job, nil, []string{"a", "c"}, 31, 10, name); w.IsExcluded("b") || !w.IsQuiet() {
		t.Error("b is still excluded or remembered, although all complaints have ended")
	}
}
