package server

import (
	"fmt"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/replica"
	"github.com/perdure/perdure/internal/proc/transport"
)

const (
	// maxReadBytes is the maximum weight of one connection's waiting reads. An honest client never has this much
	// outstanding. The first minReadBytes are accepted even if the peer's other connections have used up its budget.
	maxReadBytes = 64 << 20
	minReadBytes = 1 << 20
	// readOverhead is the weight of a read in addition to its ids.
	readOverhead = 128
)

// readBudget limits the weight in bytes of one connection's waiting reads. All is the budget shared by all connections
// of the peer. A readBudget must not be used concurrently.
type readBudget struct {
	peer *transport.Budget

	bytes   int64
	waiting map[perdure.Clock]int // number of waiting reads for each MinClock
}

func weight(rd *replica.Read) int64 { return readOverhead + 8*int64(len(rd.Rows.IDs)) }

// add adds a waiting read. It fails if the connection or its peer exceeds its budget.
func (r *readBudget) add(rd *replica.Read) error {
	n := weight(rd)
	switch all := r.bytes + n; {
	case all > maxReadBytes:
		return fmt.Errorf("waiting reads take %d bytes, more than the maximum of %d", all, maxReadBytes)
	case all <= minReadBytes:
		r.peer.Add(n)
	case !r.peer.TryAdd(n):
		return fmt.Errorf("waiting reads take %d bytes, which together with the peer's other connections exceeds "+
			"the maximum", all)
	}
	if r.waiting == nil {
		r.waiting = map[perdure.Clock]int{}
	}
	r.bytes += n
	r.waiting[rd.MinClock]++
	return nil
}

// remove removes a read that was answered or dropped. It reports whether other reads wait for the same MinClock.
func (r *readBudget) remove(rd *replica.Read) (others bool) {
	n := weight(rd)
	r.bytes -= n
	r.peer.Remove(n)
	if r.waiting[rd.MinClock]--; r.waiting[rd.MinClock] == 0 {
		delete(r.waiting, rd.MinClock)
	}
	return r.waiting[rd.MinClock] > 0
}
