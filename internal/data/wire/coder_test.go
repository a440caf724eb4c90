package wire

import (
	"sync"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/words"
)

// TestWritingOnlyLooks: encoding does not modify a view, which other goroutines read concurrently. The race detector
// checks this.
func TestWritingOnlyLooks(t *testing.T) {
	unread := int64(3)
	holder := words.Holder{Server: 1, Incarnation: 2, Addr: "a", Since: 3}
	view := &words.View{
		Revision: 7, Shards: []words.ShardView{{
			Holder: holder, Followers: []words.Holder{holder}, Joining: &holder,
			Base: []perdure.Clock{1, 2},
		}},
		Slots:  []words.SlotView{{Incarnation: 1, Decided: true}},
		Tables: []perdure.TableSpec{{Name: "t", Rows: 4, Dim: 1}},
	}
	server := &words.ServerDelta{Number: 1, Shards: []words.ShardDelta{{ShardStatus: words.ShardStatus{
		Unread: &unread, Fences: []words.Fence{{Slot: 1, Carried: true}},
		Segments: []words.Segment{{Cut: 4, Base: []words.SegmentFile{{File: "f"}}}},
	}}}}
	worker := &words.WorkerDelta{
		Number: 1, HasOutage: true, HasCounters: true,
		WorkerStatus: words.WorkerStatus{
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
