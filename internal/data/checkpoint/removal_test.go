package checkpoint

import (
	"math/rand/v2"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/disk"
)

// pruning creates new checkpoints in a store and deletes old ones.
type pruning struct {
	make  func(fsys disk.FS, i int) error    // creates the i-th checkpoint
	prune func(fsys disk.FS, i, n int) error // keeps n checkpoints, the i-th the newest
	is    func(k *Info, i int) bool          // reports whether k is the i-th checkpoint
}

var prunings = map[string]pruning{
	"cuts": {
		make: func(fsys disk.FS, i int) error {
			_, err := publish(fsys, 1, perdure.Clock(20*i))
			return err
		},
		prune: func(fsys disk.FS, i, n int) error {
			m, err := readManifest(ckpt(fsys), key{1, perdure.Clock(20 * i)})
			if err != nil {
				return err
			}
			return Prune(ckpt(fsys), m, n)
		},
		is: func(k *Info, i int) bool { return k.Number == 0 && int(k.Cut) == 20*i },
	},
	"running": { // each shares files with its predecessor
		make: func(fsys disk.FS, i int) error {
			_, err := publishRunning(fsys, 1, uint64(i))
			return err
		},
		prune: func(fsys disk.FS, i, n int) error {
			m, err := readRunning(ckpt(fsys), uint64(i))
			if err != nil {
				return err
			}
			return PruneRunning(ckpt(fsys), m, n)
		},
		is: func(k *Info, i int) bool { return k.Number == uint64(i) },
	},
}

// TestPruneKeeps: the requested number of checkpoints remain, or all of them, each with all its files, at whatever
// moment the power fails.
func TestPruneKeeps(t *testing.T) {
	const all = 5
	for name, p := range prunings {
		for _, n := range []int{0, 1, 2, 3, 9} {
			for step := 1; ; step++ {
				fsys := newFolder(t)
				for i := 1; i <= all; i++ {
					must(t, p.make(fsys, i))
				}
				fsys.FailAfter(step)
				err := p.prune(fsys, all, n)
				fsys.Crash(rand.New(rand.NewPCG(uint64(n), uint64(step))))
				least := n
				if n == 0 || n > all {
					least = all
				}
				stays := func() int {
					found, err := List(ckpt(fsys))
					must(t, err)
					for i := range found.Checkpoints {
						if k := &found.Checkpoints[i]; !k.IsComplete() || i < least && !p.is(k, all-i) {
							t.Fatalf("%s, keep %d, crash at step %d: %s lacks %v", name, n, step, k.File,
								k.Defects())
						}
					}
					return len(found.Checkpoints)
				}
				if got := stays(); got < least {
					t.Fatalf("%s, keep %d, crash at step %d: %d are left", name, n, step, got)
				}
				must(t, p.prune(fsys, all, n))
				if got := stays(); got != least {
					t.Fatalf("%s, keep %d: %d are left", name, n, got)
				}
				if err == nil {
					break
				}
			}
		}
	}
}

// TestPruneOdd: an unreadable checkpoint does not count. It is deleted once it is older than those that remain.
func TestPruneOdd(t *testing.T) {
	for name, p := range prunings {
		fsys := newFolder(t)
		for i := 1; i <= 4; i++ {
			must(t, p.make(fsys, i))
		}
		found, err := List(ckpt(fsys))
		must(t, err)
		overwrite(t, fsys, "ckpt/"+found.Checkpoints[1].File, []byte("x"))
		must(t, p.prune(fsys, 4, 2))
		found, err = List(ckpt(fsys))
		must(t, err)
		if k := found.Checkpoints; len(k) != 3 || !p.is(&k[0], 4) || k[1].Err == nil || !p.is(&k[2], 2) ||
			!k[2].IsComplete() {
			t.Errorf("%s: found %v", name, k)
		}
		must(t, p.make(fsys, 5))
		must(t, p.prune(fsys, 5, 2))
		found, err = List(ckpt(fsys))
		must(t, err)
		if k := found.Checkpoints; len(k) != 2 || !k[1].IsComplete() || len(found.Unreferenced) > 0 {
			t.Errorf("%s: after another checkpoint, found %v, %v", name, k, found.Unreferenced)
		}
	}
}
