package server_test

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/protocol"
	"github.com/perdure/perdure/internal/data/wire"
)

// snapshotOf returns the head of a snapshot of a job with one slot.
func snapshotOf(tables, sizes, rest string) []byte {
	words := fmt.Sprintf(`{"states":[%s],"tables":[%s],"intake":{"cut":-1,"applied":[0],"slots":[{}],"spans":[{}]}}`,
		sizes, tables)
	return append(append(binary.LittleEndian.AppendUint64(nil, uint64(len(words))), words...), rest...)
}

// tableOf returns a table in a snapshot's head.
func tableOf(rows int) string {
	spec := dense()
	spec.Consistency = perdure.Consistency{Kind: perdure.BSP}
	words, err := json.Marshal(map[string]any{"spec": spec, "rows": rows})
	if err != nil {
		panic(err)
	}
	return string(words)
}

// headOf returns a frame with a head, rowsOf one with rows, each the last of its kind.
func headOf(head []byte) wire.Frame {
	return wire.Frame{Header: wire.Header{Flags: wire.FlagNone | wire.FlagLast}, Payload: head}
}

func rowsOf(n int) wire.Frame {
	return wire.Frame{Header: wire.Header{Flags: wire.FlagLast, Part: 1}, Payload: make([]byte, n)}
}

// garbage is what a server sends as a snapshot.
type garbage struct {
	frames []wire.Frame
	says   string // expected error; "" if the snapshot is accepted
}

func snapshotGarbage() map[string]garbage {
	good := tableOf(4)
	return map[string]garbage{
		"nothing in it": {[]wire.Frame{headOf(snapshotOf("", "-1", "")), rowsOf(0)}, ""},
		"a table":       {[]wire.Frame{headOf(snapshotOf(good, "3", "abc")), rowsOf(16)}, ""},
		"no head":       {[]wire.Frame{headOf(nil)}, "8 more bytes expected"},
		"a head that is short": {
			[]wire.Frame{headOf(snapshotOf("", "-1", "")[:20])},
			"13 more bytes expected",
		},
		"a head without end": {
			[]wire.Frame{headOf([]byte("\xff\xff\xff\xff\xff\xff\xff\xff{}"))},
			"3 more bytes expected",
		},
		"a head that is too long": {[]wire.Frame{headOf(snapshotOf("", "-1", "x"))}, "1 extra bytes"},
		"words": {
			[]wire.Frame{headOf([]byte("\x02\x00\x00\x00\x00\x00\x00\x00no"))},
			"invalid character",
		},
		"two slots": {[]wire.Frame{headOf(snapshotOf("", "-1,-1", ""))}, "slots, but the job has 1"},
		"a state that is short": {
			[]wire.Frame{headOf(snapshotOf("", "9", "abc"))},
			"9 more bytes expected",
		},
		"a size that is huge": {
			[]wire.Frame{headOf(snapshotOf("", "9223372036854775807", ""))},
			"more bytes expected",
		},
		"a table without a kind":    {[]wire.Frame{headOf(snapshotOf("{}", "-1", ""))}, "table"},
		"rows of other shards":      {[]wire.Frame{headOf(snapshotOf(tableOf(3), "-1", ""))}, "(3) for table t"},
		"a negative number of rows": {[]wire.Frame{headOf(snapshotOf(tableOf(-1), "-1", ""))}, "(-1) for table t"},
		"too few rows": {
			[]wire.Frame{headOf(snapshotOf(good, "-1", "")), rowsOf(12)},
			"before all rows have arrived",
		},
		"too many rows": {
			[]wire.Frame{headOf(snapshotOf(good, "-1", "")), rowsOf(20)},
			"4 extra bytes of rows",
		},
		"rows first":     {[]wire.Frame{rowsOf(16)}, "unexpected snapshot"},
		"the head twice": {[]wire.Frame{headOf(snapshotOf("", "-1", "")), headOf(nil)}, "unexpected snapshot"},
		"a piece left out": {
			[]wire.Frame{headOf(snapshotOf(good, "-1", "")), {Header: wire.Header{Part: 2}}},
			"unexpected snapshot",
		},
	}
}

// TestSnapshotGarbage sends valid and invalid snapshots to a server. An invalid one is rejected with one line in the
// log and leaves nothing behind.
func TestSnapshotGarbage(t *testing.T) {
	for name, c := range snapshotGarbage() {
		t.Run(name, func(t *testing.T) {
			inFleet(t, "bsp", "chain:2", 1, 1, func(f *fleet) {
				f.say(func(v *protocol.View, sv *protocol.ShardView) { // from a process that does not exist
					h := f.holder(0, v.Revision)
					sv.Holder, sv.Joining, sv.Epoch = f.holder(9, v.Revision), &h, 1
				})
				s := f.speak(0, wire.Hello{Role: wire.RoleServer, Index: 9})
				for _, frame := range c.frames {
					frame.Kind, frame.Generation, frame.Epoch, frame.Slot, frame.Request = wire.KindSnapshot, 1, 1,
						perdure.NoSlot, 5
					_ = s.Send(frame) // it may have been rejected already
					f.pass(10 * time.Millisecond)
				}
				if c.says == "" {
					if n := s.count(wire.KindHave); n != len(c.frames) || f.logs[0].about("") != 0 {
						t.Errorf("%d pieces were accepted; log is %q", n, f.logs[0].all)
					}
					return
				}
				if n := f.logs[0].about(c.says); n != 1 || f.logs[0].about("") != 1 {
					t.Errorf("log is %q; want one line with %q", f.logs[0].all, c.says)
				}
				var r wire.Refusal
				if last := s.last(wire.KindRefuse); last == nil || wire.ParseControl(last, &r) != nil ||
					!strings.Contains(r.Reason, c.says) {
					t.Errorf("the sender received %+v", r)
				}
			})
		})
	}
}

// TestSnapshotOfManyPieces checks that a shard of many pieces is copied as of one moment while its rows keep changing.
func TestSnapshotOfManyPieces(t *testing.T) {
	inFleet(t, "asp", "chain:2", 1, 2, func(f *fleet) {
		const rows, dim = 1200, 1024 // 9 pieces
		f.chain(0)
		spec := dense()
		spec.Rows, spec.Dim = rows, dim
		f.table(spec)
		spec.Name, spec.Rows, spec.Sparse = "s", 0, true
		f.table(spec)
		w := f.works(0, 0)
		values := make([]float32, dim)
		clock := perdure.Clock(0)
		change := func(i int) {
			values[i%dim] += float32(i)
			h := wire.Header{
				Kind: wire.KindUpdate, Generation: 1, Epoch: 1, Incarnation: 1, Clock: clock, Parts: 1,
				Flags: wire.FlagTicked,
			}
			payload := append(block(0, false, perdure.RowID(i*7%rows), values...),
				block(1, true, perdure.RowID(i*i), values...)...)
			if err := w.Send(wire.Frame{Header: h, Payload: payload}); err != nil {
				t.Fatal(err)
			}
			clock++
		}
		for i := range rows {
			change(i)
		}
		f.pass(time.Second)
		f.letJoin(1)
		during := 0
		for i := 0; !f.shard(1).Joined && i < 10_000; i++ {
			change(i)
			<-time.After(100 * time.Microsecond)
			during++
		}
		if during < 10 || !f.shard(1).Joined {
			t.Fatalf("%d updates while it joined: %+v; %q", during, f.shard(1), f.logs[1].all)
		}
		f.pass(time.Second)
		f.chain(0, 1)
		f.pass(time.Second)
		if held := f.end(0, 1); held[0] != held[1] {
			t.Errorf("the joiner has\n%s, the other\n%s", held[1], held[0])
		}
	})
}
