package wire

import (
	"sync"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/protocol"
)

// TestWritingOnlyLooks: encoding does not modify a view, which other goroutines read concurrently. The race detector
// checks this.
func TestWritingOnlyLooks(t *testing.T) {
	unread := int64(3)
	holder := protocol.Holder{Server: 1, Incarnation: 2, Addr: "a", Since: 3}
	view := &protocol.View{
		Revision: 7, Shards: []protocol.ShardView{{
			Holder: holder, Followers: []protocol.Holder{holder}, Joining: &holder,
			Base: []perdure.Clock{1, 2},
		}},
		Slots:  []protocol.SlotView{{Incarnation: 1, Decided: true}},
		Tables: []perdure.TableSpec{{Name: "t", Rows: 4, Dim: 1}},
	}
	server := &protocol.ServerDelta{Number: 1, Shards: []protocol.ShardDelta{{ShardStatus: protocol.ShardStatus{
		Unread: &unread, Fences: []protocol.Fence{{Slot: 1, Carried: true}},
		Segments: []protocol.Segment{{Cut: 4, Base: []protocol.SegmentFile{{File: "f"}}}},
	}}}}
	worker := &protocol.WorkerDelta{
		Number: 1, HasOutage: true, HasCounters: true,
		WorkerStatus: protocol.WorkerStatus{
			Outage:   &perdure.WorkerOutage{Shards: []perdure.ShardID{1}},
			Counters: perdure.WorkerCounters{ReadLag: map[int64]int64{1: 2}},
		},
	}
	var both sync.WaitGroup
	for range 2 {
		both.Go(func() {
			Control(KindView, view)
			Control(KindStatus, server)
			Control(KindWorkerStatus, worker)
		})
	}
	both.Wait()
}
