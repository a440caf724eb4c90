package host

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/registry"
	"github.com/perdure/perdure/internal/proc/address"
	"github.com/perdure/perdure/internal/run/jobs"
)

// says is a registry that says something about the job first at each time that it is asked, the last for ever.
type says struct {
	next  []said
	asked int
}

type said struct {
	job *jobs.Job
	err error
}

func (s *says) String() string { return "etcd://e:1/jobs" }

func (s *says) Find(_ context.Context, name string) (*jobs.Job, error) {
	if name != "first" {
		return nil, fmt.Errorf("asked for %s", name)
	}
	now := s.next[min(s.asked, len(s.next)-1)]
	s.asked++
	return now.job, now.err
}

// led is what a registry says of a job of that id: in that phase, with its leader there.
func led(id string, phase jobs.Phase, at string) said {
	j := &jobs.Job{Holder: "1 box", State: &jobs.State{ID: id, Phase: phase, Address: at, Why: "so"}}
	j.ID, j.Name = id, "first"
	return said{job: j}
}

// followed is what a registry says of a job, and what a host makes of it.
type followed struct {
	begin  []said // until it is known where the leader is
	at     string
	err    error // or why it is not
	later  []said
	to     string
	end    error
	logged string
}

func followedJobs() map[string]followed {
	away, damaged := said{err: registry.ErrAway}, said{err: errors.New("damaged")}
	gone := said{err: registry.ErrNoJob}
	nobody := said{job: &jobs.Job{}}
	nobody.job.ID = "a"
	leaderless := led("a", jobs.Running, "h:3")
	leaderless.job.Holder = ""
	return map[string]followed{
		"a leader": {begin: []said{led("a", jobs.Running, "h:1")}, at: "h:1"},
		"one comes later": {
			begin: []said{away, away, nobody, nobody, led("a", jobs.Running, "h:1")}, at: "h:1",
			logged: "nobody has led the job yet; the host waits",
		},
		"one that was the last": {begin: []said{leaderless}, at: "h:3"},
		"another leader": {
			begin: []said{led("a", jobs.Running, "h:1")}, at: "h:1",
			later: []said{away, damaged, led("a", jobs.Running, "h:2"), away}, to: "h:2",
			logged: "the job has another leader",
		},
		"the registry is away": {
			begin: []said{led("a", jobs.Running, "h:1")}, at: "h:1", later: []said{away, away, away}, to: "h:1",
			logged: "the registry does not say where the job's leader is",
		},
		"it is done": {
			begin: []said{led("a", jobs.Running, "h:1")}, at: "h:1", later: []said{led("a", jobs.Done, "h:1")},
			end: perdure.ErrDone,
		},
		"it is stopped": {
			begin: []said{led("a", jobs.Running, "h:1")}, at: "h:1", later: []said{led("a", jobs.Stopped, "h:1")},
			end: perdure.ErrStopped,
		},
		"it is removed": {
			begin: []said{led("a", jobs.Running, "h:1")}, at: "h:1", later: []said{gone}, end: perdure.ErrStopped,
		},
		"another job has its name": {
			begin: []said{led("a", jobs.Running, "h:1")}, at: "h:1", later: []said{led("b", jobs.Running, "h:9")},
			end: perdure.ErrStopped,
		},
		"there is none":   {begin: []said{away, gone}, err: registry.ErrNoJob},
		"it is damaged":   {begin: []said{damaged}, err: damaged.err},
		"it was done":     {begin: []said{led("a", jobs.Done, "h:1")}, err: perdure.ErrDone},
		"it had failed":   {begin: []said{led("a", jobs.Failed, "h:1")}, err: perdure.ErrFailed},
		"it was stopping": {begin: []said{led("a", jobs.Stopping, "h:1")}, at: "h:1"},
	}
}

// TestFollow: a host waits until the registry says where the leader of its job is, and writes down where each later one
// is, for itself and its processes. A registry that is away or damaged changes nothing. It hears there that the job has
// ended, or that another one has its name.
func TestFollow(t *testing.T) {
	for name, c := range followedJobs() {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var log bytes.Buffer
				in := &says{next: c.begin}
				h := &Host{
					Dir: t.TempDir(), Of: &Named{Registry: in, Name: "first"},
					Log: slog.New(slog.NewTextHandler(&log, nil)),
				}
				f, err := h.follow(t.Context())
				if !errors.Is(err, c.err) {
					t.Fatalf("found: %v, want %v", err, c.err)
				}
				if err != nil {
					return
				}
				if h.Join != "@"+filepath.Join(h.Dir, leaderFile) || address.List(h.Join)[0] != c.at {
					t.Errorf("the leader is at %q, in %s; want %s", address.List(h.Join), h.Join, c.at)
				}
				if c.later != nil {
					in.next, in.asked = c.later, 0
				}
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
				defer cancel()
				looks := func(ctx context.Context) error {
					<-ctx.Done()
					return ctx.Err()
				}
				want := c.end
				if want == nil {
					want = context.DeadlineExceeded
				}
				if err := following(ctx, f, looks); !errors.Is(err, want) {
					t.Errorf("it ends with %v, want %v", err, want)
				}
				if c.to != "" && address.List(h.Join)[0] != c.to {
					t.Errorf("then it is at %q, want %s", address.List(h.Join), c.to)
				}
				if n := strings.Count(log.String(), c.logged); c.logged != "" && n != 1 {
					t.Errorf("it is told %d times: %s", n, &log)
				}
			})
		})
	}
}

// TestFollowEnds: what the leader says comes first, and a host that is told to end follows nobody any more.
func TestFollowEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &Host{
			Dir: t.TempDir(), Of: &Named{Registry: &says{next: []said{led("a", jobs.Running, "h:1")}}, Name: "first"},
			Log: slog.New(slog.DiscardHandler),
		}
		f, err := h.follow(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		over := fmt.Errorf("%w: its leader says so", perdure.ErrStopped)
		if err := following(t.Context(), f, func(context.Context) error { return over }); err != over {
			t.Errorf("it ends with %v", err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Minute, cancel)
		looks := func(ctx context.Context) error {
			<-ctx.Done()
			return ctx.Err()
		}
		if err := following(ctx, f, looks); !errors.Is(err, context.Canceled) {
			t.Errorf("it ends with %v", err)
		}
		must := os.Remove(f.path)
		if got := address.List(h.Join); must != nil || len(got) != 1 || got[0] != "" {
			t.Errorf("without the file: %q, %v", got, must)
		}
	})
}

// TestOver: a host reports that its job has failed, and nothing of one that is done or was stopped.
func TestOver(t *testing.T) {
	h := &Host{Log: slog.New(slog.DiscardHandler)}
	for _, why := range []error{perdure.ErrDone, perdure.ErrStopped, perdure.ErrFailed} {
		err := h.over(fmt.Errorf("%w: why", why))
		if failed := why == perdure.ErrFailed; (err != nil) != failed || failed && !errors.Is(err, why) {
			t.Errorf("%v: %v", why, err)
		}
	}
}
