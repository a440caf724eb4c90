package server_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/consistency"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/transport"
)

// pushing adds a table 2 that is pushed under essp, a table 3 under vap, and a sparse table 4 under essp.
func (s *subject) pushing() {
	s.Helper()
	s.add("e", perdure.Consistency{Kind: perdure.ESSP, Staleness: 1})
	s.add("v", perdure.Consistency{Kind: perdure.VAP, Bound: 1})
	s.add("far", perdure.Consistency{Kind: perdure.ESSP, Staleness: 1},
		func(t *perdure.TableSpec) { t.Sparse, t.Rows = true, 0 })
}

func (s *subject) add(name string, model perdure.Consistency, change ...func(*perdure.TableSpec)) {
	s.Helper()
	spec := perdure.TableSpec{
		Name: name, Rows: tableRows, Dim: tableDim, Rule: perdure.Rule{Kind: perdure.RuleAdd},
		Consistency: model,
	}
	for _, f := range change {
		f(&spec)
	}
	if _, err := s.good.Table(s.ctx, spec); err != nil {
		s.Fatal(err)
	}
}

// named returns the rows of an Unsubscribe or a Get.
func named(table perdure.TableID, first perdure.RowID, count int) []byte {
	return wire.AppendRows(nil, &wire.Rows{Table: table, First: first, Count: count})
}

// collect counts received frames by kind until the connection ends.
func collect(c transport.Conn) (got map[wire.Kind]int, over chan error) {
	got, over = map[wire.Kind]int{}, make(chan error, 1)
	go func() {
		var f wire.Frame
		for {
			if err := c.Recv(&f); err != nil {
				over <- err
				return
			}
			got[f.Kind]++
		}
	}()
	return got, over
}

// TestBadWordsOfCaches checks that impossible messages about a reader's cache end its connection with one line in the
// log, and that early or late ones are ignored. The server continues in any case.
func TestBadWordsOfCaches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t, inMemory)
		s.pushing()
		s.goesOn("nothing")
		get := func(table perdure.TableID) wire.Frame {
			return s.shardFrame(wire.KindGet, named(table, 0, 2), func(h *wire.Header) {
				h.Clock, h.Request, h.Flags = consistency.AnyClock, 7, wire.FlagSubscribe
			})
		}
		saw := func(seq uint64) wire.Frame {
			return s.shardFrame(wire.KindSeen, nil, func(h *wire.Header) { h.Request = seq })
		}
		nothing := func(later perdure.Clock, flags uint16) wire.Frame {
			return s.shardFrame(wire.KindUpdate, update(1<<61, nil, 0, 0, 4),
				func(h *wire.Header) { h.Clock, h.Flags = h.Clock+later, flags|wire.FlagTicked })
		}
		drop := func(payload []byte) wire.Frame { return s.shardFrame(wire.KindUnsubscribe, payload, nil) }
		for _, b := range []struct {
			name, says string
			observer   bool
			frame      wire.Frame
		}{
			{"a Drop of rows of another shard", "row not on this shard", false, drop(named(2, 4, 2))},
			{"a Drop of all rows there could be", "row not on this shard", false, drop(named(2, 0, wire.MaxPayload*8))},
			{"a Drop of rows of an unknown table", "rows of table 9 are not pushed", false, drop(named(9, 0, 1))},
			{"a Drop of rows that are not pushed", "rows of table 0 are not pushed", false, drop(named(0, 0, 1))},
			{"a Drop that does not parse", "malformed payload", false, drop([]byte{1})},
			{"a future state", "have seen state 1099511627776 of shard 0", false, saw(1 << 40)},
			{"a Drop without a subscription", "", false, drop(named(2, 0, 5))},
			{"a past state", "", false, saw(0)},
			{"an observer's Drop", "no observer may send a frame of kind 30", true, drop(named(2, 0, 5))},
			{"an observer's report of a state", "no observer may send a frame of kind 31", true, saw(1 << 40)},
			{"an observer that subscribes", "", true, get(2)},
			{"a subscription to rows that are not pushed", "", false, get(0)},
			{"an update of no rows, far away", "", false, nothing(0, 0)},
			{"an update of no rows, again and again", "", false, nothing(1, wire.FlagDuplicateRows)},
		} {
			before := s.log.about("")
			c := s.connect(func(h *wire.Hello) {
				if b.observer {
					anObserver(h)
				}
			})
			if err := c.Send(s.shardFrame(wire.KindOpen, nil, nil), b.frame); err != nil {
				t.Fatal(err)
			}
			got, over := collect(c)
			<-time.After(time.Second)
			synctest.Wait()
			ended, words := len(over) > 0, s.log.about("")-before
			// The correct worker reclaims its slot, which ends the other connection.
			if bad := b.says != ""; bad && (!ended || words != 1 || s.log.about(b.says) == 0) || !bad && words > 0 {
				t.Errorf("%s: the connection ended: %v; log is %q, want %q", b.name, ended, s.log.all[before:],
					b.says)
			}
			c.Close()
			<-time.After(10 * time.Millisecond)
			synctest.Wait()
			if got[wire.KindPush] > 0 {
				t.Errorf("%s: received %d pushes", b.name, got[wire.KindPush])
			}
		}
		s.answers(get(2))
	})
}

// answers checks that the server still answers a read. The correct worker's acknowledgements went to the connections
// that spoke for its slot.
func (s *subject) answers(get wire.Frame) {
	s.Helper()
	c := s.connect(anObserver)
	var f wire.Frame
	if err := c.Send(get); err != nil {
		s.Fatal(err)
	}
	if err := c.Recv(&f); err != nil || f.Kind != wire.KindRows {
		s.Errorf("a read after all that: kind %d, %v", f.Kind, err)
	}
}
