package server

import (
	"fmt"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/replica"
	"github.com/perdure/perdure/internal/proc/transport"
)

const (
	// mostAsked is how many bytes the reads of one connection take: what an honest client has asked for at any time
	// takes less. alwaysAllowed of them are taken even where the peer's other connections leave no room.
	mostAsked     = 64 << 20
	alwaysAllowed = 1 << 20
	// each is what a read counts beside its ids.
	each = 128
)

// readBudget bounds the bytes of the reads of one connection that wait for a clock. All counts those of all
// connections of its peer. It is for one goroutine at a time.
type readBudget struct {
	All *transport.Budget

	bytes int64
	needs map[perdure.Clock]int // how many wait for which MinClock
}

func weight(rd *replica.Read) int64 { return each + 8*int64(len(rd.Rows.IDs)) }

// Wait counts a read that waits from now on, unless there are too many of the connection, or of its peer.
func (r *readBudget) Wait(rd *replica.Read) error {
	n := weight(rd)
	switch all := r.bytes + n; {
	case all > mostAsked:
		return fmt.Errorf("its reads that wait take %d bytes; at most %d are kept", all, mostAsked)
	case all <= alwaysAllowed:
		r.All.Add(n)
	case !r.All.Take(n):
		return fmt.Errorf("its reads that wait take %d bytes, and with those on its peer's other connections more "+
			"than are kept", all)
	}
	if r.needs == nil {
		r.needs = map[perdure.Clock]int{}
	}
	r.bytes += n
	r.needs[rd.Need]++
	return nil
}

// Done counts a read that waits no more: it is answered, or dropped. It returns whether others wait for the same
// MinClock.
func (r *readBudget) Done(rd *replica.Read) (others bool) {
	n := weight(rd)
	r.bytes -= n
	r.All.Give(n)
	if r.needs[rd.Need]--; r.needs[rd.Need] == 0 {
		delete(r.needs, rd.Need)
	}
	return r.needs[rd.Need] > 0
}
