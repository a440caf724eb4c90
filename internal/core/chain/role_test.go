package chain

import (
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/protocol"
	"github.com/perdure/perdure/internal/core/recovery"
)

// TestPlaceOf checks the role of each process in a chain of three with a joiner, and in a stream that all replicas
// read.
func TestPlaceOf(t *testing.T) {
	holder := func(i int) protocol.Holder {
		return protocol.Holder{Server: i, Incarnation: 1, Addr: string(rune('a' + i)), Since: uint64(i) + 10}
	}
	joining := holder(3)
	v := &protocol.View{Shards: []protocol.ShardView{{
		Holder: holder(0), Epoch: 4, Followers: []protocol.Holder{holder(1), holder(2)}, Joining: &joining,
	}}}
	plain, logged := recovery.Traits{}, recovery.Traits{Safe: recovery.Logged}
	eager := recovery.Traits{EarlyAck: true, Period: 5}
	for _, c := range []struct {
		name           string
		server         int
		incarnation    perdure.Incarnation
		traits         *recovery.Traits
		held           bool
		head, tail     bool
		since          uint64
		pred           int // -1: none
		succ           string
		join, soon     string
		joins, periods bool
	}{
		{"the head", 0, 1, &plain, true, true, false, 10, -1, "b", "", "d", false, false},
		{"one between", 1, 1, &plain, true, false, false, 11, 0, "c", "", "d", false, false},
		{"the tail", 2, 1, &plain, true, false, true, 12, 1, "", "d", "", false, false},
		{"the joiner", 3, 1, &plain, true, false, false, 13, 2, "", "", "", true, false},
		{"an earlier life of the head", 0, 0, &plain, false, false, false, 0, -1, "", "", "", false, false},
		{"another server", 5, 1, &plain, false, false, false, 0, -1, "", "", "", false, false},
		{"the head of a stream", 0, 1, &logged, true, true, false, 10, -1, "", "", "", false, false},
		{"the tail of a stream", 2, 1, &logged, true, false, true, 12, 1, "", "", "", false, false},
		{"an eager head", 0, 1, &eager, true, true, false, 10, -1, "b", "", "d", false, true},
	} {
		at, held := RoleOf(v, 0, c.server, c.incarnation, c.traits)
		addr := func(h *protocol.Holder) string {
			if h == nil {
				return ""
			}
			return h.Addr
		}
		pred := -1
		if at.Pred.Incarnation != 0 {
			pred = at.Pred.Server
		}
		if held != c.held || at.Head != c.head || at.Tail != c.tail || at.Since != c.since || pred != c.pred ||
			addr(
				at.Succ) != c.succ || addr(at.Join) != c.join || addr(at.NextJoin) != c.soon || at.Joining != c.joins ||
			at.Periodic != c.periods || at.Eager != c.periods || at.Epoch != 4 {
			t.Errorf("%s: %v, %+v", c.name, held, at)
		}
		if speaks := c.joins || c.join != ""; (at.Joiner == 13) != speaks {
			t.Errorf("%s: the joiner is %d", c.name, at.Joiner)
		}
	}
}
