package jobs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/perdure/perdure/internal/data/registry"
)

// leaves is a catalog that goes away when it has been told what people want of a job.
type leaves struct {
	registry.Catalog
	unheard bool // its answer to that is lost
	looks   int  // to which it does not answer; then it is back
	back    func()
	wished  bool
}

func (l *leaves) Wish(ctx context.Context, name string, record, wish []byte) error {
	err := l.Catalog.Wish(ctx, name, record, wish)
	if l.wished = true; l.unheard {
		return fmt.Errorf("%w: etcd://", registry.ErrAway)
	}
	return err
}

func (l *leaves) Find(ctx context.Context, name string) (registry.Entry, error) {
	if l.wished {
		if l.looks > 0 {
			l.looks--
			return registry.Entry{}, fmt.Errorf("%w: etcd://", registry.ErrAway)
		}
		l.back()
	}
	return l.Catalog.Find(ctx, name)
}

// TestStopAway: a registry that is away once it has recorded that a job is to end is waited for, for as long as its
// leader; then, too, whoever stops it hears that it is recorded.
func TestStopAway(t *testing.T) {
	const forever = 1 << 30
	for name, c := range map[string]struct {
		unheard     bool
		looks       int
		patience    time.Duration // of who stops it; 0: he has as much as it takes
		says, fails string
		is          error
		atLeast     time.Duration
	}{
		"comes back": {looks: 7, says: "its leader has heard it", atLeast: 7 * look},
		"interrupted": {
			looks: forever, patience: time.Second, says: "it is recorded", is: context.DeadlineExceeded,
			atLeast: time.Second,
		},
		"stays away": {
			looks: forever, is: registry.ErrAway, fails: "job first is to end, and that is recorded", atLeast: hears,
		},
		"unheard": {
			unheard: true, looks: forever, is: registry.ErrAway, fails: "nobody has said whether it is recorded",
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r, _ := newRegistry(t)
				leader, _, _ := lead(t, r, create(t, r, "first"))
				r.catalog = &leaves{Catalog: r.catalog, unheard: c.unheard, looks: c.looks, back: func() {
					must(t, leader.Tell(t.Context(), func(s *State) { s.Phase = Stopping }))
				}}
				ctx := t.Context()
				if c.patience > 0 {
					limited, cancel := context.WithTimeout(ctx, c.patience)
					defer cancel()
					ctx = limited
				}
				var out bytes.Buffer
				began := time.Now()
				err := r.Stop(ctx, &out, "first")
				if took := time.Since(began); took < c.atLeast || took > c.atLeast+look {
					t.Errorf("it takes %v; want %v", took, c.atLeast)
				}
				said := out.String() + fmt.Sprint(err)
				if !errors.Is(err, c.is) || !strings.Contains(said, c.says) || !strings.Contains(said, c.fails) {
					t.Errorf("it says %s; want %s%s", said, c.says, c.fails)
				}
				phase(t, &Registry{catalog: r.catalog.(*leaves).Catalog}, "first", Stopping)
			})
		})
	}
}
