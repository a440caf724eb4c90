package updatelog

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Stream is one shard's stream as it is found in a log.
type Stream struct {
	Name    string
	Job     string
	Shard   int
	Version int
	First   Position // of its first record
	Next    Position // that its next record will have
	Records uint64
	Bytes   uint64
}

// Record is one record as it is found in a stream.
type Record struct {
	Header
	Position Position
	Stored   time.Time
	Bytes    int     // of the whole record
	Entries  []Entry // that are whole by this record
}

// Inspector looks into a log. Of one that nobody serves it starts the server, which cuts off
// what it finds damaged, as it does for a job: that is told.
type Inspector struct {
	c     *client
	close func() error
	cut   map[string]error // by stream, what was cut off
	has   []Stream         // that there are folders of
}

// Inspect opens the log at a URL as it is. Of o the credentials count.
func Inspect(ctx context.Context, url string, o DialOptions) (*Inspector, error) {
	c, err := connect(ctx, url, o)
	if err != nil {
		return nil, err
	}
	return &Inspector{c: c, close: c.close}, nil
}

// URL is where the log is, without secrets.
func (i *Inspector) URL() string { return i.c.url }

// InspectFolder opens the log of a folder: through the process that serves it, or
// in this process while none does.
func InspectFolder(ctx context.Context, dir string) (*Inspector, error) {
	url, err := ReadURL(dir)
	if err != nil {
		return nil, err
	}
	before, unread := readBlocks(dir)
	s, err := Serve(dir, ServeOptions{private: true})
	if errors.Is(err, ErrRunning) {
		return Inspect(ctx, url, DialOptions{})
	}
	if err != nil {
		return nil, err
	}
	if unread != nil {
		return nil, errors.Join(fmt.Errorf("%w: %w", ErrRefused, unread), s.Close())
	}
	cut := before.cutOff()
	c, err := connect(ctx, url, DialOptions{}, nats.InProcessServer(s.nats))
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return &Inspector{c: c, cut: cut, has: folders(dir), close: func() error { return errors.Join(c.close(), s.Close()) }}, nil
}

// Close lets go of the log.
func (i *Inspector) Close() error { return i.close() }

// Streams lists the streams of Perdure's jobs, by job and shard.
func (i *Inspector) Streams(ctx context.Context) (streams []Stream, err error) {
	list := i.c.js.ListStreams(ctx)
	for info := range list.Info() {
		m := info.Config.Metadata
		shard, bad := strconv.Atoi(m[metaShard])
		version, older := strconv.Atoi(m[metaVersion])
		if m[metaJob] == "" || bad != nil || older != nil {
			continue // not ours
		}
		first, next := extentOf(info.State)
		streams = append(streams, Stream{
			Name: info.Config.Name, Job: m[metaJob], Shard: shard, Version: version,
			First: first, Next: next, Records: info.State.Msgs, Bytes: info.State.Bytes,
		})
	}
	if err := list.Err(); err != nil {
		return nil, i.c.refusal(err, "list")
	}
	for _, s := range i.has {
		if !slices.ContainsFunc(streams, func(other Stream) bool { return other.Name == s.Name }) {
			i.cut[s.Name] = fmt.Errorf("%w: stream %s (shard %d) cannot be opened: its meta.inf is damaged; bring a copy of the log back, or begin the job again", ErrDamaged, s.Name, s.Shard)
			streams = append(streams, s)
		}
	}
	slices.SortFunc(streams, func(a, b Stream) int { return cmp.Or(cmp.Compare(a.Job, b.Job), cmp.Compare(a.Shard, b.Shard)) })
	return streams, nil
}

// Records shows the records that a stream has now, in order, and what entries
// they make. It ends at the first that is damaged, with an error that wraps ErrDamaged.
func (i *Inspector) Records(ctx context.Context, s Stream, show func(Record) error) error {
	if err := i.cut[s.Name]; err != nil && s.Version == 0 { // it could not be opened
		return err
	}
	o := i.c.o
	o.Options, o.ReadOnly = Options{Job: s.Job, Shards: s.Shard + 1}, true
	c := &client{o: o, url: i.c.url, nc: i.c.nc, js: i.c.js, streams: make([]jetstream.Stream, s.Shard+1)}
	stream, err := c.open(ctx, s.Shard)
	if err != nil {
		return err
	}
	c.streams[s.Shard] = stream
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	all := newAssembler(s.Job, s.Shard, s.First)
	over := false
	err = c.read(ctx, s.Shard, s.First, func(at Position, stored time.Time, b []byte) error {
		entries, err := all.add(at, stored, b)
		if err != nil {
			return err
		}
		h, _, err := decode(b)
		if err != nil {
			return fmt.Errorf("%w: %w", ErrDamaged, err)
		}
		return show(Record{Header: h, Position: at, Stored: stored, Bytes: len(b), Entries: entries})
	}, func() { over = true; cancel() })
	if over && errors.Is(err, context.Canceled) {
		return i.cut[s.Name]
	}
	return err
}
