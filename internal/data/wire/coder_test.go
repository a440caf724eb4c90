package wire

import (
	"sync"
	"testing"

	"github.com/perdure/perdure"
)

// TestWritingOnlyLooks: a view that is written is not touched, since others read it
// meanwhile. The race detector is the judge.
func TestWritingOnlyLooks(t *testing.T) {
	unread := int64(3)
	holder := perdure.Holder{Server: 1, Incarnation: 2, Addr: "a", Since: 3}
	view := &perdure.View{
		Revision: 7, Shards: []perdure.ShardView{{
			Holder: holder, Followers: []perdure.Holder{holder}, Joining: &holder,
			Base: []perdure.Clock{1, 2},
		}},
		Slots:  []perdure.SlotView{{Incarnation: 1, Decided: true}},
		Tables: []perdure.TableSpec{{Name: "t", Rows: 4, Dim: 1}},
	}
	server := &perdure.ServerDelta{Seq: 1, Shards: []perdure.ShardDelta{{ShardStatus: perdure.ShardStatus{
		Unread: &unread, Fences: []perdure.Fence{{Slot: 1, Carried: true}},
		Segments: []perdure.Segment{{Cut: 4, Base: []perdure.SegmentFile{{File: "f"}}}},
	}}}}
	worker := &perdure.WorkerDelta{
		Seq: 1, HasOutage: true, HasCounters: true,
		WorkerStatus: perdure.WorkerStatus{
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
