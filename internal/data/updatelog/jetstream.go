package updatelog

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/disk"
)

// DialOptions says how to reach a log on JetStream, and what its streams are like.
type DialOptions struct {
	Options
	// MaxBytes bounds each shard's stream: appends beyond wait until it is trimmed
	// (0: only the server's own limits).
	MaxBytes int64
	Replicas int // of each stream in a cluster (0: 1)

	User, Password string // where the URL does not have them
	Credentials    string // path of a credentials file
	CA             string // path of the certificate authority's certificate
	Cert, Key      string // paths of the client's own certificate and key
	// Access is what is shown to a log whose address begins with perdure://; nil: the job has no keys.
	Access *Access
	// ReadOnly makes no streams: it opens what is there.
	ReadOnly bool
}

// Waiting and flow of the connection.
const (
	askTimeout  = 5 * time.Second   // of one question
	lookTimeout = time.Second       // of one that is asked to know why another was not answered
	ackTimeout  = 20 * time.Second  // of one record
	maxPending  = 64                // records of a process on their way
	readAhead   = 64 << 20          // bytes that the readers of all shards together ask for at once
	leastAhead  = MaxRecord * 5 / 4 // and each of them at least this
	mostAhead   = 4096              // records that a reader asks for at once
	overdue     = 2 * time.Second   // a record that is there should have come
	surelyFull  = 8                 // refusals, after which there is no room for a stream
	dialPause   = 100 * time.Millisecond
	longestDial = 2 * time.Second // of one try
)

// What a stream's metadata say.
const (
	metaVersion = "perdure.version"
	metaJob     = "perdure.job"
	metaShard   = "perdure.shard"
)

// JetStream's error codes for "no room".
const (
	codeMaxBytes     jetstream.ErrorCode = 10077 // a stream's own limits, or its storage fails
	codeNoResources  jetstream.ErrorCode = 10023
	codeNoStorage    jetstream.ErrorCode = 10047
	codeAccountLimit jetstream.ErrorCode = 10002

	codeReplicas jetstream.ErrorCode = 10074 // more than one, of a server that is alone
)

// client is a store on JetStream.
type client struct {
	o       DialOptions
	access  *Access // what this log asks for; nil: it asks for no keys
	url     string  // without secrets, for messages
	nc      *nats.Conn
	js      jetstream.JetStream
	streams []jetstream.Stream // by shard
	made    []string           // the names of those that were not there

	mu     sync.Mutex   // guards what follows
	full   map[int]bool // shards of which the last group found no room
	closed bool         // the log is still to be opened
	waits  bool         // for which somebody was told that it waits
	back   func()       // called when the log has come back; nil: nobody has to know

	denied context.Context // ends when the log has said that this client may not do something, which is its cause
	deny   context.CancelCauseFunc
}

// Dial opens a job's log at a NATS server or cluster, and makes the streams that
// are not there. It tries until the log answers or ctx ends, and then reconnects
// by itself. The URL is nats://[user:password@|token@]host:port[,...], tls://, or perdure://
// for a log that asks for keys. It refuses (ErrRefused) wrong credentials, a server without
// JetStream, and streams of another job or a newer version.
func Dial(ctx context.Context, url string, o DialOptions) (Log, error) {
	c, err := connect(ctx, url, o)
	if err != nil {
		return nil, err
	}
	if err := c.o.check(); err != nil {
		c.nc.Close()
		return nil, err
	}
	for shard := range c.o.Shards {
		s, err := c.open(ctx, shard)
		if err != nil {
			c.nc.Close()
			return nil, err
		}
		c.streams = append(c.streams, s)
	}
	c.opened()
	var id [8]byte
	_, _ = rand.Read(id[:]) // never fails
	return newLog(c.o.Options, c, binary.LittleEndian.Uint64(id[:])), nil
}

// connect reaches the server.
func connect(ctx context.Context, url string, o DialOptions, more ...nats.Option) (*client, error) {
	c := &client{o: o, access: o.Access.To(url), url: WithoutSecrets(url), full: map[int]bool{}, closed: true}
	c.denied, c.deny = context.WithCancelCause(context.WithoutCancel(ctx))
	if AsksForKeys(url) && c.access == nil {
		return nil, fmt.Errorf("%w: the log at %s asks for the job's keys; name their folder with --keys", ErrRefused,
			c.url)
	}
	if err := disk.CheckRegular(o.Credentials, o.CA, o.Cert, o.Key); err != nil {
		return nil, fmt.Errorf("%w: the log at %s: creds, ca, cert or key: %w", perdure.ErrUsage, c.url, err)
	}
	for {
		nc, err := nats.Connect(dialled(url), append(c.settings(), more...)...)
		if err == nil {
			c.nc = nc
			break
		}
		if errors.Is(err, nats.ErrAuthorization) || errors.Is(err, nats.ErrAuthExpired) ||
			errors.Is(err, nats.ErrAuthRevoked) {
			return nil, fmt.Errorf("%w: the log at %s does not take %s", ErrRefused, c.url, c.access.Shown())
		}
		why, forGood := c.access.Explained(err, transient(err))
		if forGood {
			return nil, fmt.Errorf("%w: the log at %s: %w", ErrRefused, c.url, why)
		}
		away := fmt.Errorf("%w at %s: %w", ErrAway, c.url, why)
		c.opening(away)
		if sleep(ctx, dialPause) != nil {
			return nil, away
		}
	}
	if most := c.nc.MaxPayload(); most < MaxRecord {
		c.nc.Close()
		return nil, fmt.Errorf("%w: the log at %s takes messages of at most %d bytes; set max_payload of its server "+
			"to %d or more", ErrRefused, c.url, most, MaxRecord)
	}
	js, err := jetstream.New(c.nc, jetstream.WithPublishAsyncMaxPending(maxPending),
		jetstream.WithPublishAsyncTimeout(ackTimeout))
	if err != nil {
		c.nc.Close()
		return nil, fmt.Errorf("%w: %w", ErrRefused, err)
	}
	c.js = js
	err = c.ask(ctx, func(ctx context.Context) error {
		_, err := js.AccountInfo(ctx)
		return c.refusal(err, "")
	})
	if err != nil {
		c.nc.Close()
		return nil, err
	}
	return c, nil
}

func (c *client) isClosed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.closed
}

// opening tells, while the log is to be opened, why that has to wait.
func (c *client) opening(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed && err != nil && !lasting(err) && c.o.Status != nil {
		c.waits = true
		c.o.Status(-1, err)
	}
}

// opened notes that the log is open, and tells it if somebody was told that it is not.
func (c *client) opened() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed = false; c.waits {
		c.o.Status(-1, nil)
	}
}

// transient reports whether a connection may succeed later: nobody listens, or
// the connection breaks.
func transient(err error) bool {
	var timeout interface{ Timeout() bool }
	return errors.Is(err, nats.ErrNoServers) || errors.Is(err, nats.ErrTimeout) ||
		errors.Is(err, nats.ErrConnectionClosed) || errors.Is(err, syscall.EPIPE) ||
		errors.As(err, &timeout) && timeout.Timeout() || strings.Contains(err.Error(), "connection re") ||
		strings.Contains(err.Error(), "EOF")
}

func (c *client) settings() []nats.Option {
	s := []nats.Option{
		nats.Name("perdure"), nats.Timeout(longestDial), nats.MaxReconnects(-1), nats.ReconnectWait(dialPause),
		nats.ReconnectJitter(dialPause, dialPause), nats.IgnoreAuthErrorAbort(),
		nats.ReconnectBufSize(-1), // what is sent while away fails at once, and is sent again in order
		nats.PingInterval(5 * time.Second), nats.MaxPingsOutstanding(2),
		nats.ReconnectHandler(func(*nats.Conn) { c.cameBack() }),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { // calls fail, and say so
			if errors.Is(err, nats.ErrPermissionViolation) { // but of these the caller would hear nothing
				c.deny(err)
			}
		}),
	}
	if c.access != nil {
		return append(s, c.access.Options()...)
	}
	if c.o.User != "" {
		s = append(s, nats.UserInfo(c.o.User, c.o.Password))
	}
	if c.o.Credentials != "" {
		s = append(s, nats.UserCredentials(c.o.Credentials))
	}
	if c.o.CA != "" {
		s = append(s, nats.RootCAs(c.o.CA))
	}
	if c.o.Cert != "" {
		s = append(s, nats.ClientCert(c.o.Cert, c.o.Key))
	}
	return s
}

func subject(job string, shard int) string { return fmt.Sprintf("perdure.%s.%d", job, shard) }

// config is what a shard's stream is to be.
func (c *client) config(shard int) jetstream.StreamConfig {
	most := c.o.MaxBytes
	if most == 0 {
		most = -1
	}
	return jetstream.StreamConfig{
		Name: StreamName(c.o.Job, shard), Subjects: []string{subject(c.o.Job, shard)},
		Description: fmt.Sprintf("updates of shard %d of Perdure job %s", shard, c.o.Job),
		Storage:     jetstream.FileStorage, Replicas: max(c.o.Replicas, 1),
		Discard: jetstream.DiscardNew, MaxBytes: most, MaxMsgSize: MaxRecord,
		DenyDelete: true, AllowDirect: true,
		Metadata: map[string]string{
			metaVersion: strconv.Itoa(Version), metaJob: c.o.Job, metaShard: strconv.Itoa(shard),
		},
	}
}

// open opens a shard's stream, or makes it.
func (c *client) open(ctx context.Context, shard int) (s jetstream.Stream, err error) {
	want, refused := c.config(shard), 0
	err = c.ask(ctx, func(ctx context.Context) error {
		s, err = c.js.Stream(ctx, want.Name)
		if errors.Is(err, jetstream.ErrStreamNotFound) && !c.o.ReadOnly {
			s, err = c.make(ctx, want)
		}
		return c.unpromised(c.refusal(err, want.Name), want, &refused)
	})
	if err != nil {
		return nil, err
	}
	have := s.CachedInfo().Config
	if err := owned(have, want); err != nil || c.o.ReadOnly || have.MaxBytes == want.MaxBytes {
		return s, err
	}
	have.MaxBytes = want.MaxBytes
	err = c.ask(ctx, func(ctx context.Context) error {
		s, err = c.js.UpdateStream(ctx, have)
		return c.unpromised(c.refusal(err, want.Name), want, &refused)
	})
	return s, err
}

// make makes a stream that is not there.
func (c *client) make(ctx context.Context, want jetstream.StreamConfig) (jetstream.Stream, error) {
	s, err := c.js.CreateStream(ctx, want)
	if errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) {
		return c.js.Stream(ctx, want.Name) // another was faster
	}
	var answer *jetstream.APIError
	if !errors.As(err, &answer) { // without an answer it may be made
		c.made = append(c.made, want.Name)
	}
	return s, err
}

// unpromised makes a lasting error of that a stream would not get the room that it may
// come to need, once it was refused often enough: while two ask for the same stream at
// once, the server counts its room twice.
func (c *client) unpromised(err error, want jetstream.StreamConfig, refused *int) error {
	if !errors.Is(err, ErrFull) {
		return err
	}
	if *refused++; *refused < surelyFull {
		return err
	}
	return fmt.Errorf("%w: the log at %s has no room for stream %s, which may take %d MiB; give that log more room, "+
		"or the job a smaller one (mb in --log)",
		ErrRefused, c.url, want.Name, want.MaxBytes>>20)
}

// owned refuses a stream that is not of our job and version.
func owned(have, want jetstream.StreamConfig) error {
	job, version := have.Metadata[metaJob], have.Metadata[metaVersion]
	v, err := strconv.ParseUint(version, 10, 32)
	if job == "" || err != nil {
		return fmt.Errorf("%w: stream %s is not a Perdure job's; choose another job id", ErrRefused, want.Name)
	}
	if err := disk.CheckVersion(v, Version); err != nil {
		return fmt.Errorf("%w: stream %s was %w", ErrRefused, want.Name, err)
	}
	if job != want.Metadata[metaJob] || have.Metadata[metaShard] != want.Metadata[metaShard] {
		return fmt.Errorf("%w: stream %s belongs to shard %s of job %s", ErrRefused, want.Name,
			have.Metadata[metaShard], job)
	}
	return nil
}

// refusal makes a lasting error of an answer that asking again does not change.
func (c *client) refusal(err error, stream string) error {
	var answer *jetstream.APIError
	switch {
	case err == nil:
		return nil
	case errors.Is(err, jetstream.ErrStreamNotFound) && !c.isClosed():
		return Damaged(stream, "the log at %s had it, and has none of that name any more", c.url)
	case errors.Is(err, jetstream.ErrStreamNotFound):
		return fmt.Errorf("%w: the log at %s has no stream %s", ErrRefused, c.url, stream)
	case isOff(err) && (!c.isClosed() || c.nc.ConnectedServerName() == ServerName):
		return fmt.Errorf("%w: the log at %s has closed its streams, and opens them when there is room", ErrDisk, c.url)
	case isOff(err), errors.Is(err, jetstream.ErrJetStreamNotEnabledForAccount):
		return fmt.Errorf("%w: the server at %s runs without JetStream; start it with -js", ErrRefused, c.url)
	case errors.As(err, &answer) && noRoom(answer.ErrorCode):
		return fmt.Errorf("%w: stream %s: %s", ErrFull, stream, answer.Description)
	case errors.As(err, &answer) && (answer.Code < 500 || answer.ErrorCode == codeReplicas):
		return fmt.Errorf("%w: stream %s: %s", ErrRefused, stream, answer.Description)
	}
	return fmt.Errorf("%w at %s: %w", ErrAway, c.url, err)
}

// isOff reports whether a server said, or showed by that nobody there took the question,
// that it has no JetStream now.
func isOff(err error) bool {
	return errors.Is(err, jetstream.ErrJetStreamNotEnabled) || errors.Is(err, nats.ErrNoResponders)
}

func noRoom(code jetstream.ErrorCode) bool {
	return code == codeMaxBytes || code == codeNoResources || code == codeNoStorage || code == codeAccountLimit
}

// unlessDenied asks a question, and does not wait for an answer where the log says that this client may not ask.
func (c *client) unlessDenied(ctx context.Context, question func(ctx context.Context) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(c.denied, cancel)()
	err := question(ctx)
	if why := context.Cause(c.denied); err != nil && why != nil {
		return fmt.Errorf("%w: the log at %s does not let the holder of %s do this (%w)", ErrRefused, c.url,
			c.access.Shown(), why)
	}
	return err
}

// ask repeats a question until it is answered for good.
func (c *client) ask(ctx context.Context, question func(ctx context.Context) error) error {
	for pause := firstPause; ; pause = min(2*pause, longPause) {
		one, cancel := context.WithTimeout(ctx, askTimeout)
		err := c.unlessDenied(one, question)
		cancel()
		c.opening(err)
		switch {
		case err == nil || lasting(err):
			return err
		case c.nc.IsClosed():
			return ErrClosed
		case sleep(ctx, pause) != nil:
			return fmt.Errorf("%w (%w)", err, ctx.Err())
		}
	}
}

func (c *client) publish(ctx context.Context, shard int, records [][]byte) (Position, error) {
	if err := c.roomFor(ctx, shard, records); err != nil {
		return 0, err
	}
	acks := make([]jetstream.PubAckFuture, len(records))
	for i, r := range records {
		ack, err := c.js.PublishAsync(subject(c.o.Job, shard), r, jetstream.WithStallWait(ackTimeout),
			jetstream.WithRetryAttempts(0))
		if err != nil {
			return 0, c.refused(ctx, shard, err)
		}
		acks[i] = ack
	}
	var last uint64
	for _, ack := range acks {
		select {
		case a := <-ack.Ok():
			if a.Sequence <= last {
				return 0, fmt.Errorf("%w: records were stored out of order", ErrAway)
			}
			last = a.Sequence
		case err := <-ack.Err():
			return 0, c.refused(ctx, shard, err)
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
	return Position(last), nil
}

// refused says why a record was not stored.
func (c *client) refused(ctx context.Context, shard int, err error) error {
	name := StreamName(c.o.Job, shard)
	if errors.Is(err, nats.ErrNoResponders) || errors.Is(err, jetstream.ErrNoStreamResponse) { // is it gone, or away?
		one, cancel := context.WithTimeout(ctx, lookTimeout)
		defer cancel()
		if _, gone := c.js.Stream(one, name); errors.Is(gone, jetstream.ErrStreamNotFound) || isOff(gone) {
			return c.refusal(gone, name)
		}
	}
	var answer *jetstream.APIError
	if err = c.refusal(err, name); errors.Is(err, ErrFull) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.full[shard] = true
	} else if errors.As(err, &answer) && lasting(err) && answer.Code == 503 {
		return fmt.Errorf("%w: %s", ErrAway, answer.Description)
	}
	return err
}

// roomFor asks first, after a group found no room, so that what is tried again
// does not fill the stream with beginnings of groups.
func (c *client) roomFor(ctx context.Context, shard int, records [][]byte) error {
	need := 0
	for _, r := range records {
		need += len(r) + recordOverhead
	}
	if c.o.MaxBytes > 0 && int64(need) > c.o.MaxBytes {
		return tooLarge(need, int(c.o.MaxBytes))
	}
	c.mu.Lock()
	full := c.full[shard]
	c.mu.Unlock()
	if !full {
		return nil
	}
	one, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	info, err := c.streams[shard].Info(one)
	if err != nil {
		return c.refusal(err, StreamName(c.o.Job, shard))
	}
	if most := info.Config.MaxBytes; most > 0 && int64(info.State.Bytes)+int64(need) > most {
		return fmt.Errorf("%w: stream %s has %d of %d bytes", ErrFull, info.Config.Name, info.State.Bytes, most)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.full, shard)
	return nil
}

// recordOverhead is more than what JetStream stores with a record, subject included.
const recordOverhead = 128

// Overhead is what a job's stream takes, at most, for a record beside its entries.
func Overhead(job string) int { return recordOverhead + headerSize + len(job) + lengthPrefix }

func (c *client) extent(ctx context.Context, shard int) (first, next Position, err error) {
	var info *jetstream.StreamInfo
	err = c.ask(ctx, func(ctx context.Context) error {
		info, err = c.streams[shard].Info(ctx)
		return c.refusal(err, StreamName(c.o.Job, shard))
	})
	if err != nil {
		return 0, 0, err
	}
	first, next = extentOf(info.State)
	return first, next, nil
}

func extentOf(s jetstream.StreamState) (first, next Position) {
	next = Position(s.LastSeq) + 1
	if s.Msgs == 0 {
		return next, next
	}
	return Position(s.FirstSeq), next
}

func (c *client) trim(ctx context.Context, shard int, before Position) error {
	_, next, err := c.extent(ctx, shard)
	if err != nil {
		return err
	}
	before = min(before, next) // a purge beyond the end would make a hole
	if before <= 1 {
		return nil
	}
	return c.ask(ctx, func(ctx context.Context) error {
		err := c.streams[shard].Purge(ctx, jetstream.WithPurgeSequence(uint64(before)))
		return c.refusal(err, StreamName(c.o.Job, shard))
	})
}

func (c *client) record(ctx context.Context, shard int, at Position) ([]byte, error) {
	m, err := c.raw(ctx, shard, at)
	if m == nil {
		return nil, err
	}
	return m.Data, err
}

// raw is one record, and when it was stored; nil: it is not there.
func (c *client) raw(ctx context.Context, shard int, at Position) (m *jetstream.RawStreamMsg, err error) {
	err = c.ask(ctx, func(ctx context.Context) (err error) {
		m, err = c.streams[shard].GetMsg(ctx, uint64(at))
		if isOff(err) { // nobody took the question: is the stream gone, or the log?
			_, err = c.streams[shard].Info(ctx)
			err = cmp.Or(err, ErrAway)
		}
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			m, err = nil, nil
		}
		return c.refusal(err, StreamName(c.o.Job, shard))
	})
	return m, err
}

func (c *client) onReturn(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.back = f
}

func (c *client) cameBack() {
	c.mu.Lock()
	back := c.back
	c.mu.Unlock()
	if back != nil {
		back()
	}
}

func (c *client) bound() int { return int(c.o.MaxBytes) }

func (c *client) close() error {
	c.nc.Close()
	return nil
}
