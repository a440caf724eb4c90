package wire_test

import (
	"reflect"
	"testing"

	"pgregory.net/rapid"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/protocol"
	"github.com/perdure/perdure/internal/data/wire"
)

// told sends a server's delta over the wire and applies it.
func told(
	t rapid.TB,
	d *protocol.ServerDelta,
	to *protocol.ObservedServer,
) (bytes int, received map[perdure.ShardID]bool) {
	t.Helper()
	f := wire.Control(wire.KindStatus, d)
	var got protocol.ServerDelta
	if err := wire.ParseControl(&f, &got); err != nil {
		t.Fatal(err)
	}
	received = map[perdure.ShardID]bool{}
	to.Apply(&got, func(s perdure.ShardID, before *protocol.ObservedShard, now *protocol.ShardDelta) {
		if received[s] = true; before == nil && now == nil {
			t.Fatalf("unknown shard %d was removed", s)
		}
	})
	return wire.HeaderBytes + f.PayloadBytes(), received
}

// busy returns a status of some replicas, each with a fence for every slot.
func busy(replicas, slots int, clock perdure.Clock) *protocol.ServerStatus {
	st := &protocol.ServerStatus{Revision: 9, Resources: protocol.Resources{Goroutines: 100, HeapBytes: 100_000_000}}
	for i := range replicas {
		sh := protocol.ShardStatus{
			Shard: perdure.ShardID(i), Generation: 1, Epoch: 1, Since: 2, Ready: true,
			MinClock: clock, Seq: uint64(clock),
		}
		for slot := range slots {
			sh.Fences = append(sh.Fences,
				protocol.Fence{
					Slot: perdure.Slot(slot), Incarnation: 1,
					Counts: protocol.Counts{Staged: 7, Ticked: 7, Applied: 7},
				})
		}
		st.Shards = append(st.Shards, sh)
	}
	return st
}

// TestHeartbeatBytes: a status without changes is as short in a large job as in a small one, and a status with a change
// is as long as the change. Progress by one clock is sent with the counts.
func TestHeartbeatBytes(t *testing.T) {
	var same, one []int
	for _, job := range []struct{ replicas, slots int }{{1, 1}, {24, 48}, {60, 500}} {
		var speaker protocol.ServerDeltaEncoder
		var word protocol.ObservedServer
		say := func(st *protocol.ServerStatus, counts bool) (bytes int) {
			for more := true; more; {
				var d protocol.ServerDelta
				d, more = speaker.Delta(st, 1000, counts)
				n, _ := told(t, &d, &word)
				bytes += n
			}
			return bytes
		}
		all := say(busy(job.replicas, job.slots, 7), true)
		for clock := range perdure.Clock(200) { // of one byte and of two
			n := say(busy(job.replicas, job.slots, 7+clock), false)
			if n > 100 {
				t.Fatalf("%d replicas, %d slots: a status without changes has %d bytes", job.replicas, job.slots, n)
			}
			if clock == 99 {
				same = append(same, n)
			}
		}
		st := busy(job.replicas, job.slots, 7)
		st.Shards[0].Fences[0].Carried = true
		one = append(one, say(st, false))
		if got := word.Shards[0].MinClock; got != 7 {
			t.Errorf("the received clock of the shard is %d", got)
		}
		if f, ok := word.Shards[0].Fence(0); !ok || !f.Carried {
			t.Errorf("its received fence is %+v", f)
		}
		counts := say(busy(job.replicas, job.slots, 300), true)
		if counts > 100+40*job.replicas {
			t.Errorf("the counts of %d replicas take %d bytes", job.replicas, counts)
		}
		t.Logf("%d replicas, %d slots: all in %d bytes, nothing new in %d, a fence in %d, counts in %d", job.replicas,
			job.slots, all, same[len(same)-1], one[len(one)-1], counts)
	}
	if same[0] != same[1] || same[1] != same[2] || one[0] != one[1] || one[1] != one[2] {
		t.Errorf("an unchanged status takes %d bytes, a fence %d: they depend on the job's size", same, one)
	}
}

// TestStatusDeltas: the coordinator's copy of a status equals the server's, except for counts that are not sent yet. On
// a new connection the whole status is sent again.
func TestStatusDeltas(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var speaker protocol.ServerDeltaEncoder
		var word protocol.ObservedServer
		for range rapid.IntRange(1, 8).Draw(t, "words") {
			if rapid.IntRange(0, 4).Draw(t, "again") == 0 {
				speaker = protocol.ServerDeltaEncoder{}
			}
			st := statuses().Draw(t, "status")
			before := word.Status()
			received := map[perdure.ShardID]bool{}
			for more := true; more; {
				var d protocol.ServerDelta
				d, more = speaker.Delta(&st, 5, rapid.Bool().Draw(t, "counts"))
				_, h := told(t, &d, &word)
				for s := range h {
					received[s] = true
				}
			}
			for _, sh := range before.Shards {
				if now := word.Shards[sh.Shard]; !received[sh.Shard] &&
					(now == nil || !reflect.DeepEqual(now.ShardStatus.Applied, sh.Applied) || now.Ready != sh.Ready) {
					t.Fatalf("shard %d changed without notice: %+v after %+v", sh.Shard, now, sh)
				}
			}
			for i := range st.Shards { // fields that decisions depend on are sent immediately
				if got := word.Shards[st.Shards[i].Shard]; got == nil || got.Ready != st.Shards[i].Ready ||
					(got.MinClock >= 5) != (st.Shards[i].MinClock >= 5) && st.Shards[i].MinClock >= 5 {
					t.Fatalf("shard %d was received as %+v, but is %+v", st.Shards[i].Shard, got, st.Shards[i])
				}
			}
			d, _ := speaker.Delta(&st, 5, true)
			told(t, &d, &word)
			if got := word.Status(); !reflect.DeepEqual(got, st) {
				t.Fatalf("received\n%+v, but the sender has\n%+v", got, st)
			}
		}
	})
}

func statuses() *rapid.Generator[protocol.ServerStatus] {
	return rapid.Custom(func(t *rapid.T) protocol.ServerStatus {
		st := protocol.ServerStatus{
			Revision: rapid.Uint64().Draw(t, "revision"),
			Draining: rapid.Bool().Draw(t, "draining"),
		}
		for s := range 4 {
			if rapid.IntRange(0, 3).Draw(t, "held") == 0 {
				continue
			}
			sh := protocol.ShardStatus{
				Shard: perdure.ShardID(s), Epoch: perdure.Epoch(rapid.IntRange(1, 2).Draw(t, "epoch")),
				Ready:    rapid.Bool().Draw(t, "ready"),
				MinClock: perdure.Clock(rapid.IntRange(-1, 6).Draw(t, "clock")),
				Seq:      rapid.Uint64Range(0, 3).Draw(t, "seq"),
				Problem:  rapid.SampledFrom([]string{"", "the disk is full"}).Draw(t, "problem"),
			}
			if n := rapid.IntRange(-1, 3).Draw(t, "applied"); n > 0 {
				sh.Applied = make([]perdure.Clock, n)
			}
			if rapid.Bool().Draw(t, "unread") {
				n := rapid.Int64Range(0, 2).Draw(t, "records")
				sh.Unread = &n
			}
			for slot := range perdure.Slot(5) {
				if rapid.Bool().Draw(t, "fenced") {
					sh.Fences = append(sh.Fences,
						protocol.Fence{Slot: slot, Incarnation: 1, Carried: rapid.Bool().Draw(t, "carried")})
				}
			}
			if rapid.IntRange(0, 3).Draw(t, "saved") == 0 {
				sh.Segments = []protocol.Segment{{Cut: 3, File: "a.segment", Bytes: 9, CRC: 5, Seq: 7}}
				sh.SaveSeconds, sh.SaveBytes = 0.5, 100
			}
			st.Shards = append(st.Shards, sh)
		}
		return st
	})
}

// TestWorkerDeltas: a worker's delta yields its status, whatever was sent before on the connection.
func TestWorkerDeltas(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var speaker protocol.WorkerDeltaEncoder
		var got protocol.WorkerStatus
		for range rapid.IntRange(1, 8).Draw(t, "words") {
			if rapid.IntRange(0, 4).Draw(t, "again") == 0 {
				speaker = protocol.WorkerDeltaEncoder{}
			}
			st := protocol.WorkerStatus{
				Generation: 1, Clock: perdure.Clock(rapid.IntRange(-1, 99).Draw(t, "clock")),
				Finished: rapid.Bool().Draw(t, "finished"),
				Counters: perdure.WorkerCounters{Samples: rapid.Int64Range(0, 2).Draw(t, "samples")},
			}
			if rapid.Bool().Draw(t, "acked") {
				st.Acked = []protocol.AckedClock{{
					Shard: 1, Epoch: 2,
					Applied: perdure.Clock(rapid.IntRange(0, 1).Draw(t, "applied")),
				}}
			}
			if rapid.Bool().Draw(t, "outage") {
				st.Outage = &perdure.WorkerOutage{Shards: []perdure.ShardID{perdure.ShardID(rapid.IntRange(0, 1).Draw(t,
					"out"))}, Seconds: rapid.Float64().Draw(t, "seconds")}
			}
			if rapid.Bool().Draw(t, "lag") {
				st.Counters.ReadLag = map[int64]int64{-1: 3, 0: rapid.Int64().Draw(t, "reads")}
			}
			counts := rapid.Bool().Draw(t, "counts")
			d := speaker.Delta(&st, counts)
			f := wire.Control(wire.KindWorkerStatus, &d)
			var received protocol.WorkerDelta
			if err := wire.ParseControl(&f, &received); err != nil {
				t.Fatal(err)
			}
			got.Apply(&received)
			if !counts {
				got.Counters = st.Counters // the received counters may be older
				if st.Outage != nil && got.Outage != nil {
					got.Outage = &perdure.WorkerOutage{Shards: got.Outage.Shards, Seconds: st.Outage.Seconds}
				}
			}
			if !reflect.DeepEqual(got, st) {
				t.Fatalf("received\n%+v, but the sender has\n%+v", got, st)
			}
			if !counts {
				got.Counters, speaker = perdure.WorkerCounters{}, protocol.WorkerDeltaEncoder{}
			}
		}
	})
}
