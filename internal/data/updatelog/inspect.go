package updatelog

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Stream describes one shard's stream in a log.
type Stream struct {
	Name    string
	Job     string
	Shard   int
	Version int
	First   Position // of the first record
	Next    Position // of the next record to be appended
	Bytes   uint64
	// Damage is the damage that is known without reading the records, or nil. It wraps ErrDamaged.
	Damage error
}

// Record is one record of a stream.
type Record struct {
	Header
	Position Position
	Stored   time.Time
	Bytes    int     // size of the record
	Entries  []Entry // completed by this record
}

// Inspector reads a log without changing it. If no process serves the log, it reads a copy.
type Inspector struct {
	c          *client
	close      func() error
	damage     map[string]error // by stream name: damage known without reading the stream
	streamDirs []Stream         // streams that have directories
}

// Inspect opens the log at a URL for inspection. It uses only the credentials in o.
func Inspect(ctx context.Context, url string, o DialOptions) (*Inspector, error) {
	c, err := connect(ctx, url, o)
	if err != nil {
		return nil, err
	}
	return &Inspector{c: c, close: c.close, damage: map[string]error{}}, nil
}

// URL returns the log's address, without secrets.
func (i *Inspector) URL() string { return i.c.url }

// InspectLocal opens a log that this process serves. has lists the streams that have directories, lost the damage known
// without reading the streams. Close calls end.
func InspectLocal(ctx context.Context, url string, own nats.InProcessConnProvider, has []Stream, lost map[string]error,
	end func() error,
) (*Inspector, error) {
	c, err := connect(ctx, url, DialOptions{}, nats.InProcessServer(own))
	if err != nil {
		return nil, errors.Join(err, end())
	}
	return &Inspector{
		c: c, damage: lost, streamDirs: has,
		close: func() error { return errors.Join(c.close(), end()) },
	}, nil
}

// Close closes the connection to the log.
func (i *Inspector) Close() error { return i.close() }

// Streams lists the streams of Perdure's jobs, sorted by job and shard.
func (i *Inspector) Streams(ctx context.Context) (streams []Stream, err error) {
	var found []*jetstream.StreamInfo
	if err := i.c.requestUntilFinal(ctx, func(ctx context.Context) error {
		found = nil
		list := i.c.js.ListStreams(ctx)
		for info := range list.Info() {
			found = append(found, info)
		}
		return i.c.permanentError(list.Err(), "list")
	}); err != nil {
		return nil, err
	}
	for _, info := range found {
		m := info.Config.Metadata
		shard, bad := strconv.Atoi(m[metaShard])
		version, odd := strconv.Atoi(m[metaVersion])
		if m[metaJob] == "" || bad != nil || odd != nil {
			continue // not ours
		}
		first, next := extentOf(info.State)
		streams = append(streams, Stream{
			Name: info.Config.Name, Job: m[metaJob], Shard: shard, Version: version,
			First: first, Next: next, Bytes: info.State.Bytes,
		})
	}
	for n, s := range streams {
		streams[n].Damage = i.damage[s.Name]
	}
	for _, s := range i.streamDirs {
		if !slices.ContainsFunc(streams, func(other Stream) bool { return other.Name == s.Name }) {
			s.Damage = fmt.Errorf("%w: stream %s (shard %d) cannot be opened: its meta.inf is damaged; restore a copy "+
				"of the log, or start the job again", ErrDamaged, s.Name, s.Shard)
			streams = append(streams, s)
		}
	}
	streams = append(streams, missingStreams(streams)...)
	slices.SortFunc(streams, func(a,
		b Stream,
	) int {
		return cmp.Or(cmp.Compare(a.Job, b.Job), cmp.Compare(a.Shard, b.Shard))
	})
	return streams, nil
}

// maxListed limits for how many shards of a job a missing stream is reported. The name of a directory may contain any
// shard number.
const maxListed = 1 << 12

// missingStreams returns the streams that are missing although the job has streams of later shards. Streams are created
// in the order of the shards.
func missingStreams(streams []Stream) (gone []Stream) {
	shards := map[string]map[int]bool{} // by job
	for _, s := range streams {
		if shards[s.Job] == nil {
			shards[s.Job] = map[int]bool{}
		}
		shards[s.Job][s.Shard] = true
	}
	for job, has := range shards {
		for shard := range min(slices.Max(slices.Collect(maps.Keys(has))), maxListed) {
			if !has[shard] {
				gone = append(gone, MissingStream(job, shard))
			}
		}
	}
	return gone
}

// MissingStream returns the description of a missing stream.
func MissingStream(job string, shard int) Stream {
	name := StreamName(job, shard)
	return Stream{
		Name: name, Job: job, Shard: shard, First: 1, Next: 1,
		Damage: Damaged(name, "it is gone, with all of its records"),
	}
}

// Records calls show for each record of a stream in order, with the entries that it completes. It stops at the first
// damaged record with an error that wraps ErrDamaged. After the last record it returns the stream's Damage.
func (i *Inspector) Records(ctx context.Context, s Stream, show func(Record) error) error {
	if s.Damage != nil && s.Version == 0 { // the stream could not be opened
		return s.Damage
	}
	o := i.c.o
	o.Options, o.ReadOnly = Options{Job: s.Job, Shards: s.Shard + 1}, true
	c := &client{
		o: o, access: i.c.access, url: i.c.url, nc: i.c.nc, js: i.c.js, streams: make([]jetstream.Stream, s.Shard+1),
		denied: i.c.denied, deny: i.c.deny, link: i.c.link,
	}
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
		return s.Damage
	}
	return err
}
