package updatelog

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

// names are those of the streams in a log.
func names(t *testing.T, i *Inspector) (names []string) {
	t.Helper()
	streams, err := i.Streams(t.Context())
	must(t, err)
	for _, s := range streams {
		names = append(names, s.Name)
	}
	return names
}

func wantNames(t *testing.T, i *Inspector, want ...string) {
	t.Helper()
	if got := names(t, i); !slices.Equal(got, want) {
		t.Errorf("the streams are %v; want %v", got, want)
	}
}

// limited serves a log that takes 256 MiB, and looks into it.
func limited(t *testing.T) (url string, i *Inspector) {
	s, err := Serve(t.TempDir(), ServeOptions{MaxBytes: 256 << 20})
	must(t, err)
	t.Cleanup(func() { must(t, s.Close()) })
	i, err = Inspect(t.Context(), s.URL(), DialOptions{})
	must(t, err)
	t.Cleanup(func() { must(t, i.Close()) })
	return s.URL(), i
}

func sized(job string, shards int, mb int64) DialOptions {
	return DialOptions{Options: Options{Job: job, Shards: shards}, MaxBytes: mb << 20}
}

// TestCreate sees that a job for which there is no room leaves nothing behind, and what was
// there before alone; and that a log which has updates is not taken for a new one.
func TestCreate(t *testing.T) {
	url, i := limited(t)
	must(t, Create(t.Context(), url, sized("other", 2, 32)))
	err := Create(t.Context(), url, sized(job, 3, 80))
	wantError(t, "a third stream", err, ErrRefused,
		"has no room for stream "+StreamName(job, 2)+", which may take 80 MiB")
	if strings.Contains(err.Error(), "are left") {
		t.Error(err)
	}
	wantNames(t, i, "perdure-other-0", "perdure-other-1")

	must(t, Create(t.Context(), url, sized(job, 1, 80))) // which leaves room for one more
	wantError(t, "a third stream", Create(t.Context(), url, sized(job, 3, 80)), ErrRefused, "has no room")
	wantNames(t, i, StreamName(job, 0), "perdure-other-0", "perdure-other-1")
	must(t, Create(t.Context(), url, sized(job, 2, 80)))
	wantNames(t, i, StreamName(job, 0), StreamName(job, 1), "perdure-other-0", "perdure-other-1")

	l, err := Dial(t.Context(), url, sized("other", 2, 32))
	must(t, err)
	defer l.Close()
	put1(t, l, "a")
	wantError(t, "another's updates", Create(t.Context(), url, sized("other", 2, 32)), ErrRefused,
		"has updates of this job already")
	must(t, l.Trim(t.Context(), 1, 2))
	wantError(t, "what had updates", Create(t.Context(), url, sized("other", 2, 32)), ErrRefused,
		"has updates of this job already")
	wantNames(t, i, StreamName(job, 0), StreamName(job, 1), "perdure-other-0", "perdure-other-1")
	wantError(t, "no job", Create(t.Context(), url, sized("", 1, 64)), ErrRefused, "no job id")
}

// TestCreateEnded sees that nothing is left of a job that somebody gave up meanwhile.
func TestCreateEnded(t *testing.T) {
	url, i := limited(t)
	c, err := connect(t.Context(), url, sized(job, 2, 80))
	must(t, err)
	defer c.nc.Close()
	must(t, c.create(t.Context(), 0))
	wantNames(t, i, StreamName(job, 0))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	why := c.create(ctx, 1)
	wantError(t, "a context that has ended", why, context.Canceled, "")
	wantError(t, "what it comes to", c.undo(ctx, why), context.Canceled, "")
	wantNames(t, i)
}

// TestRemove removes one job's streams, gives their room back, and knows who uses them.
func TestRemove(t *testing.T) {
	url, i := limited(t)
	must(t, Create(t.Context(), url, sized("other", 2, 28)))
	l, err := Dial(t.Context(), url, sized(job, 2, 100))
	must(t, err)
	defer l.Close()
	streams, err := i.Streams(t.Context())
	must(t, err)
	own := slices.DeleteFunc(streams, func(s Stream) bool { return s.Job != job })
	use := func(lately time.Duration, want string) {
		t.Helper()
		how, err := i.InUse(t.Context(), own, lately)
		if err != nil || want == "" && how != "" || !strings.HasPrefix(how, want) {
			t.Errorf("its use is %q, %v; want %q", how, err, want)
		}
	}
	use(time.Hour, "")
	put1(t, l, "a")
	use(time.Hour, fmt.Sprintf("stream %s got a record ", StreamName(job, 1)))
	use(0, "")
	err = l.Read(t.Context(), 1, Oldest, func(Entry) error {
		use(0, fmt.Sprintf("stream %s is read now", StreamName(job, 1)))
		return errEnough
	}, nil)
	wantError(t, "the reader", err, errEnough, "")
	must(t, l.Close())

	wantError(t, "no room", Create(t.Context(), url, sized("third", 1, 200)), ErrRefused, "has no room")
	r, err := i.Remove(t.Context(), own)
	must(t, err)
	if r.Streams != 2 || r.Promised != 200<<20 || r.Bytes < 1 || r.Bytes > 1000 {
		t.Errorf("removed %+v", r)
	}
	wantNames(t, i, "perdure-other-0", "perdure-other-1")
	must(t, Create(t.Context(), url, sized("third", 1, 200)))
	r, err = i.Remove(t.Context(), own)
	wantError(t, "streams that are gone", err, ErrRefused, "has no stream "+StreamName(job, 0))
	if r != (Removed{}) {
		t.Errorf("removed %+v", r)
	}
}
