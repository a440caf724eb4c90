package server_test

import (
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/checkpoint"
	"github.com/perdure/perdure/disk"
	"github.com/perdure/perdure/server"
	"github.com/perdure/perdure/wire"
)

// slowDisk syncs no file before it may.
type slowDisk struct {
	disk.FS
	may chan struct{} // closed: it may
}

type slowFile struct {
	disk.File
	may chan struct{}
}

func (d slowDisk) Create(path string) (disk.File, error) {
	f, err := d.FS.Create(path)
	return slowFile{f, d.may}, err
}

func (f slowFile) Sync() error {
	<-f.may
	return f.File.Sync()
}

// inSlowFleet runs a test with servers whose disk syncs nothing before it may. Updates of
// the clocks 0 to 4 are sent to server 0.
func inSlowFleet(t *testing.T, recovery string, members []int, test func(f *fleet, may chan struct{})) {
	t.Helper()
	var may chan struct{}
	inFleet(t, "asp", recovery, 1, len(members), func(f *fleet) {
		f.chain(members...)
		f.table(dense())
		w := f.works(0, 0)
		for clock := range perdure.Clock(5) {
			w.say(wire.KindUpdate, clock, add(1))
		}
		test(f, may)
	}, func(cfg *server.Config) {
		if may == nil {
			may = make(chan struct{})
		}
		cfg.Disk = slowDisk{cfg.Disk, may}
	})
}

// saved checks which cuts a server says are saved, and that each holds the updates of
// the clocks before it, and no others.
func (f *fleet) saved(i int, cuts ...perdure.Clock) {
	f.Helper()
	var got []perdure.Clock
	for _, g := range f.shard(i).Segments {
		got = append(got, g.Cut)
		seg, err := checkpoint.ReadSegment(f.disk, "checkpoint/"+g.File, nil)
		if err != nil {
			f.Fatal(err)
		}
		if row := seg.Tables[0].Image.Planes[0][0][0]; seg.Cut != g.Cut || seg.Seq != uint64(g.Cut) || row != float32(g.Cut) {
			f.Errorf("a segment of cut %d holds %d updates up to clock %d, and row 0 is %v", g.Cut, seg.Seq, seg.Cut, row)
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

// Training goes on while a cut is written, up to the next one.
func TestSavedBehind(t *testing.T) {
	inSlowFleet(t, "checkpoint:2,async", []int{0}, func(f *fleet, may chan struct{}) {
		if st := f.shard(0); st.MinClock != 4 || len(st.Segments) > 0 || st.Problem != "" {
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

// Who writes dies: the others have gone on, and write the next cut.
func TestNextHeadSavesTheNextCut(t *testing.T) {
	inSlowFleet(t, "chain:3,checkpoint:2,async", []int{0, 1, 2}, func(f *fleet, may chan struct{}) {
		f.pass(time.Second)
		for i := range 3 {
			if st := f.shard(i); st.MinClock != 4 || len(st.Segments) > 0 {
				t.Errorf("server %d while cut 2 is being written: %+v", i, st)
			}
		}
		f.stop[0]()
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

// A full disk is said, and waited for at the next cut only. What was left of the cut that
// could not be written is not on the disk.
func TestFullDiskBehind(t *testing.T) {
	inFleet(t, "asp", "checkpoint:2,async", 1, 1, func(f *fleet) {
		f.chain(0)
		f.table(dense())
		w := f.works(0, 0)
		full := f.disk.(*disk.Memory)
		full.Limit(1)
		for clock := range perdure.Clock(5) {
			w.say(wire.KindUpdate, clock, add(1))
			if st := f.shard(0); clock > 1 && st.Problem == "" {
				t.Errorf("at clock %d nothing is said of the disk: %+v", clock, st)
			}
		}
		f.pass(5 * time.Second)
		if st := f.shard(0); st.MinClock != 4 || len(st.Segments) > 0 {
			t.Errorf("at the second cut that nobody can write: %+v", st)
		}
		full.Limit(0)
		f.pass(2 * time.Second)
		f.saved(0, 4)
		if st := f.shard(0); st.MinClock != 5 || st.Problem != "" || len(segments(f)) != 1 {
			t.Errorf("after it: %+v, %v", st, segments(f))
		}
	})
}
