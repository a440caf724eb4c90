package checkpoints

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/checkpoint"
	"github.com/perdure/perdure/internal/data/disk"
	"github.com/perdure/perdure/internal/data/store"
)

// TestClaim checks that a store belongs to a single job.
func TestClaim(t *testing.T) {
	fsys := disk.NewMemory()
	in := store.NewDir(fsys, "c")
	one, other := &perdure.JobSpec{ID: "one", Workload: "mf"}, &perdure.JobSpec{ID: "other", Workload: "cnn"}
	must(t, Claim(in, one))
	for _, job := range []*perdure.JobSpec{one, other} { // a new run of the same job is another owner
		if err := Claim(in, job); !errors.Is(err, ErrTaken) || !strings.Contains(err.Error(), "job one (mf)") {
			t.Errorf("also claimed by %s: %v", job.ID, err)
		}
	}
	if own, err := ClaimShared(in, one); own || err != nil {
		t.Errorf("another coordinator of the same job: own %v, %v", own, err)
	}
	if _, err := ClaimShared(in, other); !errors.Is(err, ErrTaken) {
		t.Errorf("shared by another job: %v", err)
	}
	if found, err := checkpoint.List(
		in,
	); err != nil ||
		len(found.Checkpoints)+len(found.Unreferenced)+len(found.Other) > 0 {
		t.Errorf("found %+v, %v", found, err)
	}
	write(t, fsys, claimName, []byte("x"))
	if err := Claim(in, other); !errors.Is(err, ErrTaken) || !strings.Contains(err.Error(), "cannot read") {
		t.Errorf("a damaged claim: %v", err)
	}
	must(t, Unclaim(in))
	must(t, Claim(in, other))
	must(t, Unclaim(in))
	for _, name := range []string{checkpoint.RunningFile(3), manifestName(2), segmentName(2, 0)} {
		write(t, fsys, name, []byte("x"))
		if err := Claim(in, one); !errors.Is(err, ErrTaken) || !strings.Contains(err.Error(), name) {
			t.Errorf("with %s: %v", name, err)
		}
		remove(t, fsys, name)
	}
	write(t, fsys, "notes", []byte("x"))
	must(t, Claim(in, one)) // other files do not matter
}

// TestClaimTogether checks that only one of several concurrent claims succeeds.
func TestClaimTogether(t *testing.T) {
	in := store.NewDir(disk.NewMemory(), "c")
	const all = 8
	var errs [all]error
	var wg sync.WaitGroup
	for i := range all {
		wg.Go(func() { errs[i] = Claim(in, &perdure.JobSpec{ID: fmt.Sprint("job", i), Workload: "mf"}) })
	}
	wg.Wait()
	got := 0
	for i, err := range errs {
		switch {
		case err == nil:
			got++
		case !errors.Is(err, ErrTaken):
			t.Errorf("%d: %v", i, err)
		}
	}
	if got != 1 {
		t.Errorf("%d runs claimed it: %v", got, errs)
	}
}

// TestClaimCrashes checks that a store has one owner or none after a crash.
func TestClaimCrashes(t *testing.T) {
	job := &perdure.JobSpec{ID: "one", Workload: "mf"}
	for step := 1; ; step++ {
		fsys := disk.NewMemory()
		fsys.FailAfter(step)
		err := Claim(store.NewDir(fsys, "c"), job)
		fsys.Crash(rand.New(rand.NewPCG(uint64(step), 1)))
		again := Claim(store.NewDir(fsys, "c"), job)
		if again != nil && !strings.Contains(again.Error(), "job one (mf)") || again == nil && err == nil {
			t.Errorf("step %d: %v, and after the crash %v", step, err, again)
		}
		if err == nil {
			return
		}
	}
}
