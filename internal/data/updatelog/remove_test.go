package updatelog

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
)

// names returns the names of the streams in a log.
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
		t.Errorf("got the streams %v, want %v", got, want)
	}
}

// limited starts a log with a limit of 256 MiB and an inspector for it.
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

// TestCreate checks that a job that does not fit leaves no streams, that existing streams are kept, and that a log with
// updates is not accepted as a new one.
func TestCreate(t *testing.T) {
	url, i := limited(t)
	must(t, Create(t.Context(), url, sized("other", 2, 32)))
	err := Create(t.Context(), url, sized(job, 3, 80))
	wantError(t, "a third stream", err, ErrRefused,
		"does not have enough space for stream "+StreamName(job, 2)+", which may take 80 MiB")
	if strings.Contains(err.Error(), "are left") {
		t.Error(err)
	}
	wantNames(t, i, "perdure-other-0", "perdure-other-1")

	must(t, Create(t.Context(), url, sized(job, 1, 80))) // leaves room for one more
	wantError(t, "a third stream", Create(t.Context(), url, sized(job, 3, 80)), ErrRefused,
		"does not have enough space")
	wantNames(t, i, StreamName(job, 0), "perdure-other-0", "perdure-other-1")
	must(t, Create(t.Context(), url, sized(job, 2, 80)))
	wantNames(t, i, StreamName(job, 0), StreamName(job, 1), "perdure-other-0", "perdure-other-1")

	l, err := Dial(t.Context(), url, sized("other", 2, 32))
	must(t, err)
	defer l.Close()
	put1(t, l, "a")
	wantError(t, "another's updates", Create(t.Context(), url, sized("other", 2, 32)), ErrRefused,
		"already has updates of this job")
	must(t, l.Trim(t.Context(), 1, 2))
	wantError(t, "a stream that had updates", Create(t.Context(), url, sized("other", 2, 32)), ErrRefused,
		"already has updates of this job")
	wantNames(t, i, StreamName(job, 0), StreamName(job, 1), "perdure-other-0", "perdure-other-1")
	wantError(t, "no job", Create(t.Context(), url, sized("", 1, 64)), ErrRefused, "invalid job id")
}

// TestCreateEnded checks that a canceled Create leaves no streams.
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
	wantError(t, "the error of undo", c.removeCreated(ctx, why), context.Canceled, "")
	wantNames(t, i)
}

// TestRemove checks that removing one job's streams frees their space.
func TestRemove(t *testing.T) {
	url, i := limited(t)
	must(t, Create(t.Context(), url, sized("other", 2, 28)))
	must(t, Create(t.Context(), url, sized(job, 2, 100)))
	streams, err := i.Streams(t.Context())
	must(t, err)
	own := slices.DeleteFunc(streams, func(s Stream) bool { return s.Job != job })
	wantError(t, "no room", Create(t.Context(), url, sized("third", 1, 200)), ErrRefused, "does not have enough space")
	for range 2 { // again, when they are already gone
		must(t, i.Remove(t.Context(), own))
	}
	wantNames(t, i, "perdure-other-0", "perdure-other-1")
	must(t, Create(t.Context(), url, sized("third", 1, 200)))
}

// TestRemoveOrder checks that a removal that fails leaves the streams of the first shards, which do not look damaged.
func TestRemoveOrder(t *testing.T) {
	url, i := limited(t)
	must(t, Create(t.Context(), url, sized(job, 3, 64)))
	c, err := connect(t.Context(), url, DialOptions{})
	must(t, err)
	defer c.nc.Close()
	const deleted = "$JS.EVENT.ADVISORY.STREAM.DELETED."
	events := make(chan *nats.Msg, 3)
	_, err = c.nc.ChanSubscribe(deleted+">", events)
	must(t, err)
	must(t, c.nc.Flush())
	streams, err := i.Streams(t.Context())
	must(t, err)
	must(t, i.Remove(t.Context(), streams))
	for shard := 2; shard >= 0; shard-- {
		if got := strings.TrimPrefix((<-events).Subject, deleted); got != StreamName(job, shard) {
			t.Errorf("%s is removed before shard %d", got, shard)
		}
	}
}
