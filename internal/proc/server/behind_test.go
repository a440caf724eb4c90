package server_test

import (
	"io"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/checkpoint"
	"github.com/perdure/perdure/internal/data/store"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/server"
)

// slowStore is a store whose writes block until may is closed.
type slowStore struct {
	store.Store
	may chan struct{} // closed: writes may proceed
}

func (s slowStore) Put(name string, write func(io.Writer) error) error {
	return s.Store.Put(name, func(w io.Writer) error {
		err := write(w)
		<-s.may
		return err
	})
}

// inSlowFleet runs a test with servers whose store blocks writes until may is closed. Updates of the clocks 0 to 4 are
// sent to server 0.
func inSlowFleet(t *testing.T, recovery string, members []int, test func(f *fleet, may chan struct{})) {
	t.Helper()
	may := sync.OnceValue(func() chan struct{} { return make(chan struct{}) }) // within the bubble
	inFleet(t, "asp", recovery, 1, len(members), func(f *fleet) {
		f.chain(members...)
		f.table(dense())
		w := f.works(0, 0)
		for clock := range perdure.Clock(5) {
			w.say(wire.KindUpdate, clock, add(1))
		}
		test(f, may())
	}, func(cfg *server.Config) { cfg.Store = slowStore{cfg.Store, may()} })
}

// saved checks which cuts a server reports as saved, and that each contains exactly the updates of the clocks before
// it.
func (f *fleet) saved(i int, cuts ...perdure.Clock) {
	f.Helper()
	var got []perdure.Clock
	for _, g := range f.shard(i).Segments {
		got = append(got, g.Cut)
		m := checkpoint.Manifest{Job: f.job, Segments: []checkpoint.SegmentRef{
			{File: g.File, Bytes: g.Bytes, CRC: g.CRC, Seq: g.Seq},
		}}
		seg, err := checkpoint.Restore(store.NewDir(f.Disk, "checkpoint"), m, 0, nil)
		if err != nil {
			f.Fatal(err)
		}
		if row := seg.Tables[0].Image.Planes[0][0][0]; seg.Cut != g.Cut || seg.Seq != uint64(g.Cut) ||
			row != float32(g.Cut) {
			f.Errorf("a segment of cut %d holds %d updates up to clock %d, and row 0 is %v", g.Cut, seg.Seq, seg.Cut,
				row)
		}
	}
	if len(got) != len(cuts) {
		f.Fatalf("server %d has saved the cuts %v, want %v", i, got, cuts)
	}
	for j := range cuts {
		if got[j] != cuts[j] {
			f.Fatalf("server %d has saved the cuts %v, want %v", i, got, cuts)
		}
	}
}

// TestSavedBehind checks that training continues up to the next cut while a cut is being written.
func TestSavedBehind(t *testing.T) {
	inSlowFleet(t, "checkpoint:2,async", []int{0}, func(f *fleet, may chan struct{}) {
		if st := f.counted(0); st.MinClock != 4 || len(st.Segments) > 0 || st.Problem != "" {
			t.Errorf("while cut 2 is being written: %+v", st)
		}
		close(may)
		f.pass(time.Second)
		f.saved(0, 2, 4)
		if st := f.shard(0); st.MinClock != 5 {
			t.Errorf("after it: %+v", st)
		}
	})
}

// TestSavedBehindFollows checks that unchanged rows are not written again until a complete segment is cheaper.
func TestSavedBehindFollows(t *testing.T) {
	inFleet(t, "asp", "checkpoint:1,async", 1, 1, func(f *fleet) {
		f.chain(0)
		large := dense()
		large.Rows, large.Dim = 10_000, 8
		f.table(large)
		w := f.works(0, 0)
		values, all := make([]float32, 8), make([]float32, 80_000)
		for clock := range perdure.Clock(6) {
			rows := wire.Block{Rows: wire.Rows{First: 100 * perdure.RowID(clock), Count: 1}, Values: values}
			if clock == 3 {
				rows = wire.Block{Rows: wire.Rows{Count: 10_000}, Values: all}
			}
			w.say(wire.KindUpdate, clock, wire.AppendBlock(nil, &rows))
		}
		f.pass(time.Second)
		st := f.shard(0)
		var follow []int
		for i, g := range st.Segments {
			follow = append(follow, len(g.Base))
			if small := g.Bytes < 5_000; small != (len(g.Base) > 0) {
				t.Errorf("the segment of cut %d has %d bytes, and follows %d", g.Cut, g.Bytes, len(g.Base))
			}
			if n := len(g.Base); n > 0 && g.Base[n-1].File != st.Segments[i-1].File {
				t.Errorf("the segment of cut %d follows %v", g.Cut, g.Base)
			}
		}
		if !slices.Equal(follow, []int{0, 1, 2, 0, 1, 2}) {
			t.Errorf("segments depend on these numbers of others: %v", follow)
		}
		if last := st.Segments[5]; st.SaveBytes != last.Bytes {
			t.Errorf("the last segment has %d bytes, reported are %d", last.Bytes, st.SaveBytes)
		}
	})
}

// TestNextHeadSavesTheNextCut kills the head while it writes a cut. The others have passed that cut and write the next
// one.
func TestNextHeadSavesTheNextCut(t *testing.T) {
	inSlowFleet(t, "chain:3,checkpoint:2,async", []int{0, 1, 2}, func(f *fleet, may chan struct{}) {
		f.pass(time.Second)
		for i := range 3 {
			if st := f.shard(i); st.MinClock != 4 || len(st.Segments) > 0 {
				t.Errorf("server %d while cut 2 is being written: %+v", i, st)
			}
		}
		f.stop(0)
		f.chain(1, 2)
		close(may)
		f.pass(time.Second)
		for i := 1; i <= 2; i++ {
			f.saved(i, 4)
			if st := f.shard(i); st.MinClock != 5 {
				t.Errorf("server %d after it: %+v", i, st)
			}
		}
		if held := f.end(1, 2); held[0] != held[1] {
			t.Errorf("the replicas differ: %q", held)
		}
	})
}

// TestFullDiskBehind checks that a full disk is reported, and that the shard waits for it only at the next cut. A cut
// that failed leaves nothing on the disk.
func TestFullDiskBehind(t *testing.T) {
	inFleet(t, "asp", "checkpoint:2,async", 1, 1, func(f *fleet) {
		f.chain(0)
		f.table(dense())
		w := f.works(0, 0)
		full := f.Disk
		full.SetLimit(1)
		for clock := range perdure.Clock(5) {
			w.say(wire.KindUpdate, clock, add(1))
			if st := f.shard(0); clock > 1 && st.Problem == "" {
				t.Errorf("at clock %d the disk problem is not reported: %+v", clock, st)
			}
		}
		f.pass(time.Minute)
		if st := f.counted(0); st.MinClock != 4 || len(st.Segments) > 0 {
			t.Errorf("at the second cut that cannot be written: %+v", st)
		}
		full.SetLimit(0)
		f.pass(2 * time.Second)
		f.saved(0, 4)
		if st := f.shard(0); st.MinClock != 5 || st.Problem != "" || len(segments(f)) != 1 {
			t.Errorf("after it: %+v, %v", st, segments(f))
		}
	})
}

// TestReplicasGoOnAtTheSamePlace checks that replicas which receive entries in different batches resume after a cut at
// the same log position. They must apply the delayed updates in the same order, because sums of floats depend on it.
func TestReplicasGoOnAtTheSamePlace(t *testing.T) {
	inFleet(t, "vap:1e9", "chain:2,checkpoint:2,async", 2, 2, func(f *fleet) {
		f.chain(0, 1)
		f.table(dense())
		first, second := f.works(0, 0), f.works(0, 1)
		first.say(wire.KindUpdate, 0, add(-1e8))
		for clock := range perdure.Clock(3) {
			second.say(wire.KindUpdate, clock, add(float32(clock/2))) // the last one is delayed by the cut
		}
		var burst []wire.Frame
		for clock, v := range []float32{1: 0, 2: 1e8} {
			if clock > 0 {
				burst = append(burst, wire.Frame{Header: wire.Header{
					Kind: wire.KindUpdate, Generation: f.view.Generation, Epoch: f.view.Shards[0].Epoch, Incarnation: 1,
					Clock: perdure.Clock(clock), Parts: 1,
				}, Payload: add(v)})
			}
		}
		if err := first.Send(burst...); err != nil {
			t.Fatal(err)
		}
		f.pass(time.Second)
		if held := f.end(0, 1); held[0] != held[1] {
			t.Errorf("the replicas differ: %q", held)
		}
		for i := range 2 {
			if row := f.ended[i].Tables[0].Image.Planes[0][0][0]; row != 0 {
				t.Errorf("row 0 is %v at server %d: a delayed update was applied after a later one", row, i)
			}
		}
	})
}
