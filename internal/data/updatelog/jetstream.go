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

// DialOptions configures the connection to a log on JetStream, and the log's streams.
type DialOptions struct {
	Options
	// MaxBytes limits each shard's stream; further appends wait until the stream is trimmed. 0: only the server's
	// limits apply.
	MaxBytes int64
	Replicas int // replicas of each stream in a cluster; 0: 1

	User, Password string // used if the URL has none
	Credentials    string // path of a credentials file
	CA             string // path of the certificate authority's certificate
	Cert, Key      string // paths of the client's own certificate and key
	// Access holds the credentials for a log whose address starts with perdure://; nil: the job has no keys.
	Access *Access
	// ReadOnly opens existing streams only and creates none.
	ReadOnly bool
}

// Timeouts and flow control of the connection.
const (
	askTimeout        = 5 * time.Second   // one request
	diagnoseTimeout   = time.Second       // a request that finds out why another one failed
	ackTimeout        = 20 * time.Second  // one record
	maxPending        = 64                // records of a process in flight
	readAhead         = 64 << 20          // bytes requested at the same time by the readers of all shards together
	minAhead          = MaxRecord * 5 / 4 // minimum for each reader
	maxAhead          = 4096              // records requested by a reader at the same time
	recordTimeout     = 2 * time.Second   // an existing record should have arrived
	maxFullRejections = 8                 // after this many rejections, a stream is reported as too large
	dialPause         = 100 * time.Millisecond
	maxDialTime       = 2 * time.Second // one connection attempt
)

// Keys of a stream's metadata.
const (
	metaVersion = "perdure.version"
	metaJob     = "perdure.job"
	metaShard   = "perdure.shard"
)

// JetStream's error codes for insufficient storage.
const (
	codeMaxBytes     jetstream.ErrorCode = 10077 // stream limit reached, or storage failure
	codeNoResources  jetstream.ErrorCode = 10023
	codeNoStorage    jetstream.ErrorCode = 10047
	codeAccountLimit jetstream.ErrorCode = 10002

	codeReplicas jetstream.ErrorCode = 10074 // more than one replica on a server without a cluster
)

// client implements store on JetStream.
type client struct {
	o       DialOptions
	access  *Access // credentials for this log; nil: it requires no keys
	url     string  // without secrets, for messages
	nc      *nats.Conn
	js      jetstream.JetStream
	streams []jetstream.Stream // by shard
	created []string           // names of the streams that this client created

	mu          sync.Mutex   // guards the fields up to onReconnect
	full        map[int]bool // shards whose last group did not fit
	closed      bool         // the log is not open yet
	waiting     bool         // Status was called because opening waits
	onReconnect func()       // called when the log is available again; may be nil

	denied context.Context // canceled when the log denies an operation to this client, with the denial as the cause
	deny   context.CancelCauseFunc
	link   *link
}

// link ends requests whose connection breaks: the log never answers them. It is safe for concurrent use.
type link struct {
	mu     sync.Mutex // guards the fields below
	ctx    context.Context
	cancel context.CancelFunc
}

// current returns a context that is canceled when the present connection breaks.
func (l *link) current() context.Context {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ctx == nil {
		l.ctx, l.cancel = context.WithCancel(context.Background())
	}
	return l.ctx
}

// broken cancels the contexts returned so far.
func (l *link) broken() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ctx != nil {
		l.cancel()
		l.ctx = nil
	}
}

// Dial opens a job's log at a NATS server or cluster, and creates missing streams. It retries until the log answers or
// ctx is done. Later it reconnects by itself. The URL is nats://[user:password@|token@]host:port[,...], tls://, or
// perdure:// for a log that requires keys. Dial returns ErrRefused for wrong credentials, a server without JetStream,
// and streams of another job or a newer version.
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

// connect connects to the server.
func connect(ctx context.Context, url string, o DialOptions, more ...nats.Option) (*client, error) {
	c := &client{
		o: o, access: o.Access.For(url), url: WithoutSecrets(url), full: map[int]bool{}, closed: true, link: new(link),
	}
	c.denied, c.deny = context.WithCancelCause(context.WithoutCancel(ctx))
	if RequiresKeys(url) && c.access == nil {
		return nil, fmt.Errorf("%w: the log at %s requires the job's keys; specify their directory with --keys",
			ErrRefused,
			c.url)
	}
	if err := disk.CheckRegular(o.Credentials, o.CA, o.Cert, o.Key); err != nil {
		return nil, perdure.Usagef("the log at %s: creds, ca, cert or key: %w", c.url, err)
	}
	for {
		nc, err := nats.Connect(natsURL(url), append(c.settings(), more...)...)
		if err == nil {
			c.nc = nc
			break
		}
		if errors.Is(err, nats.ErrAuthorization) || errors.Is(err, nats.ErrAuthExpired) ||
			errors.Is(err, nats.ErrAuthRevoked) {
			return nil, fmt.Errorf("%w: the log at %s does not accept %s", ErrRefused, c.url, c.access.Describe())
		}
		why, forGood := c.access.ExplainError(err, transient(err))
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
		return nil, fmt.Errorf("%w: the log at %s accepts messages of at most %d bytes; set its server's max_payload "+
			"to %d or more", ErrRefused, c.url, most, MaxRecord)
	}
	js, err := jetstream.New(c.nc, jetstream.WithPublishAsyncMaxPending(maxPending),
		jetstream.WithPublishAsyncTimeout(ackTimeout))
	if err != nil {
		c.nc.Close()
		return nil, fmt.Errorf("%w: %w", ErrRefused, err)
	}
	c.js = js
	err = c.requestUntilFinal(ctx, func(ctx context.Context) error {
		_, err := js.AccountInfo(ctx)
		return c.permanentError(err, "")
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

// opening reports through Status why opening the log has to wait.
func (c *client) opening(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed && err != nil && !isPermanent(err) && c.o.Status != nil {
		c.waiting = true
		c.o.Status(-1, err)
	}
}

// opened records that the log is open, and reports it if Status was called before.
func (c *client) opened() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed = false; c.waiting {
		c.o.Status(-1, nil)
	}
}

// transient reports whether a later connection may succeed: no process listens, or the connection broke.
func transient(err error) bool {
	var timeout interface{ Timeout() bool }
	return errors.Is(err, nats.ErrNoServers) || errors.Is(err, nats.ErrTimeout) ||
		errors.Is(err, nats.ErrConnectionClosed) || errors.Is(err, syscall.EPIPE) ||
		errors.As(err, &timeout) && timeout.Timeout() || strings.Contains(err.Error(), "connection re") ||
		strings.Contains(err.Error(), "EOF")
}

func (c *client) settings() []nats.Option {
	s := []nats.Option{
		nats.Name("perdure"), nats.Timeout(maxDialTime), nats.MaxReconnects(-1), nats.ReconnectWait(dialPause),
		nats.ReconnectJitter(dialPause, dialPause), nats.IgnoreAuthErrorAbort(),
		nats.ReconnectBufSize(-1), // sends while disconnected fail immediately; this package resends in order
		nats.PingInterval(5 * time.Second), nats.MaxPingsOutstanding(2),
		nats.ReconnectHandler(func(*nats.Conn) { c.reconnected() }),
		nats.DisconnectErrHandler(func(*nats.Conn, error) { c.link.broken() }),
		// Other errors are returned by the calls.
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
			if errors.Is(err, nats.ErrPermissionViolation) { // a denied request would just time out
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

// config returns the configuration of a shard's stream.
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

// open opens a shard's stream, creating it if necessary.
func (c *client) open(ctx context.Context, shard int) (s jetstream.Stream, err error) {
	want, refused := c.config(shard), 0
	err = c.requestUntilFinal(ctx, func(ctx context.Context) error {
		s, err = c.js.Stream(ctx, want.Name)
		if errors.Is(err, jetstream.ErrStreamNotFound) && !c.o.ReadOnly {
			s, err = c.createStream(ctx, want)
		}
		return c.checkStorage(c.permanentError(err, want.Name), want, &refused)
	})
	if err != nil {
		return nil, err
	}
	have := s.CachedInfo().Config
	if err := checkOwner(have, want); err != nil || c.o.ReadOnly || have.MaxBytes == want.MaxBytes {
		return s, err
	}
	have.MaxBytes = want.MaxBytes
	err = c.requestUntilFinal(ctx, func(ctx context.Context) error {
		s, err = c.js.UpdateStream(ctx, have)
		return c.checkStorage(c.permanentError(err, want.Name), want, &refused)
	})
	return s, err
}

// createStream creates a stream.
func (c *client) createStream(ctx context.Context, want jetstream.StreamConfig) (jetstream.Stream, error) {
	s, err := c.js.CreateStream(ctx, want)
	if errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) {
		return c.js.Stream(ctx, want.Name) // another client created it first
	}
	var answer *jetstream.APIError
	if !errors.As(err, &answer) { // without an answer, the stream may have been created
		c.created = append(c.created, want.Name)
	}
	return s, err
}

// checkStorage turns the lack of storage for a stream into a permanent error after maxFullRejections rejections. A
// single rejection proves nothing: while two clients create the same stream, the server reserves its size twice.
func (c *client) checkStorage(err error, want jetstream.StreamConfig, refused *int) error {
	if !errors.Is(err, ErrFull) {
		return err
	}
	if *refused++; *refused < maxFullRejections {
		return err
	}
	return fmt.Errorf("%w: the log at %s does not have enough space for stream %s, which may take %d MiB; raise that "+
		"log's limit, or make the stream smaller (mb in --log)",
		ErrRefused, c.url, want.Name, want.MaxBytes>>20)
}

// checkOwner returns an error if a stream belongs to another job or another version.
func checkOwner(have, want jetstream.StreamConfig) error {
	job, version := have.Metadata[metaJob], have.Metadata[metaVersion]
	v, err := strconv.ParseUint(version, 10, 32)
	if job == "" || err != nil {
		return fmt.Errorf("%w: stream %s does not belong to a Perdure job; choose another job id", ErrRefused,
			want.Name)
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

// permanentError turns an error answer into a permanent error unless a retry may help.
func (c *client) permanentError(err error, stream string) error {
	var answer *jetstream.APIError
	switch {
	case err == nil:
		return nil
	case errors.Is(err, jetstream.ErrStreamNotFound) && !c.isClosed():
		return Damaged(stream, "the log at %s no longer has a stream of that name", c.url)
	case errors.Is(err, jetstream.ErrStreamNotFound):
		return fmt.Errorf("%w: the log at %s has no stream %s", ErrRefused, c.url, stream)
	case isDisabled(err) && (!c.isClosed() || c.nc.ConnectedServerName() == ServerName):
		return fmt.Errorf("%w: the log at %s has closed its streams until there is enough free space", ErrDisk, c.url)
	case isDisabled(err), errors.Is(err, jetstream.ErrJetStreamNotEnabledForAccount):
		return fmt.Errorf("%w: the server at %s runs without JetStream; start it with -js", ErrRefused, c.url)
	case errors.As(err, &answer) && isStorageCode(answer.ErrorCode):
		return fmt.Errorf("%w: stream %s: %s", ErrFull, stream, answer.Description)
	case errors.As(err, &answer) && (answer.Code < 500 || answer.ErrorCode == codeReplicas):
		return fmt.Errorf("%w: stream %s: %s", ErrRefused, stream, answer.Description)
	}
	return fmt.Errorf("%w at %s: %w", ErrAway, c.url, err)
}

// isDisabled reports whether JetStream is disabled on the server: the server reported it, or no responder took the
// request.
func isDisabled(err error) bool {
	return errors.Is(err, jetstream.ErrJetStreamNotEnabled) || errors.Is(err, nats.ErrNoResponders)
}

func isStorageCode(code jetstream.ErrorCode) bool {
	return code == codeMaxBytes || code == codeNoResources || code == codeNoStorage || code == codeAccountLimit
}

// unlessDenied sends a request, and stops waiting for the answer if the log denies this client the operation.
func (c *client) unlessDenied(ctx context.Context, question func(ctx context.Context) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(c.denied, cancel)()
	err := question(ctx)
	if why := context.Cause(c.denied); err != nil && why != nil {
		return fmt.Errorf("%w: the log at %s does not allow the holder of %s to do this (%w)", ErrRefused, c.url,
			c.access.Describe(), why)
	}
	return err
}

// requestUntilFinal repeats a request until it has a final answer: after askTimeout, or when the connection breaks.
func (c *client) requestUntilFinal(ctx context.Context, question func(ctx context.Context) error) error {
	for pause := firstPause; ; pause = min(2*pause, maxPause) {
		one, cancel := context.WithTimeout(ctx, askTimeout)
		stop := context.AfterFunc(c.link.current(), cancel)
		err := c.unlessDenied(one, question)
		stop()
		cancel()
		c.opening(err)
		switch {
		case err == nil || isPermanent(err):
			return err
		case c.nc.IsClosed():
			return ErrClosed
		case sleep(ctx, pause) != nil:
			return fmt.Errorf("%w (%w)", err, ctx.Err())
		}
	}
}

func (c *client) publish(ctx context.Context, shard int, records [][]byte) (Position, error) {
	if err := c.checkSpace(ctx, shard, records); err != nil {
		return 0, err
	}
	acks := make([]jetstream.PubAckFuture, len(records))
	for i, r := range records {
		ack, err := c.js.PublishAsync(subject(c.o.Job, shard), r, jetstream.WithStallWait(ackTimeout),
			jetstream.WithRetryAttempts(0))
		if err != nil {
			return 0, c.explainRejection(ctx, shard, err)
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
			return 0, c.explainRejection(ctx, shard, err)
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
	return Position(last), nil
}

// explainRejection returns why a record was not stored.
func (c *client) explainRejection(ctx context.Context, shard int, err error) error {
	name := StreamName(c.o.Job, shard)
	// Tell a missing stream from an unavailable log.
	if errors.Is(err, nats.ErrNoResponders) || errors.Is(err, jetstream.ErrNoStreamResponse) {
		one, cancel := context.WithTimeout(ctx, diagnoseTimeout)
		defer cancel()
		if _, gone := c.js.Stream(one, name); errors.Is(gone, jetstream.ErrStreamNotFound) || isDisabled(gone) {
			return c.permanentError(gone, name)
		}
	}
	var answer *jetstream.APIError
	if err = c.permanentError(err, name); errors.Is(err, ErrFull) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.full[shard] = true
	} else if errors.As(err, &answer) && isPermanent(err) && answer.Code == 503 {
		return fmt.Errorf("%w: %s", ErrAway, answer.Description)
	}
	return err
}

// checkSpace checks for space before sending, if the previous group did not fit. Otherwise retries would fill the
// stream with incomplete groups.
func (c *client) checkSpace(ctx context.Context, shard int, records [][]byte) error {
	need := 0
	for _, r := range records {
		need += len(r) + recordOverhead
	}
	if c.o.MaxBytes > 0 && int64(need) > c.o.MaxBytes {
		return tooLargeError(need, int(c.o.MaxBytes))
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
		return c.permanentError(err, StreamName(c.o.Job, shard))
	}
	if most := info.Config.MaxBytes; most > 0 && int64(info.State.Bytes)+int64(need) > most {
		return fmt.Errorf("%w: stream %s has %d of %d bytes", ErrFull, info.Config.Name, info.State.Bytes, most)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.full, shard)
	return nil
}

// recordOverhead is an upper bound on what JetStream stores with a record, subject included.
const recordOverhead = 128

// RecordOverhead returns the maximum number of bytes that a record takes in a job's stream in addition to its entries.
func RecordOverhead(job string) int { return recordOverhead + headerSize + len(job) + lengthPrefix }

func (c *client) extent(ctx context.Context, shard int) (first, next Position, err error) {
	var info *jetstream.StreamInfo
	err = c.requestUntilFinal(ctx, func(ctx context.Context) error {
		info, err = c.streams[shard].Info(ctx)
		return c.permanentError(err, StreamName(c.o.Job, shard))
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
	before = min(before, next) // a purge beyond the end would leave a gap in the positions
	if before <= 1 {
		return nil
	}
	return c.requestUntilFinal(ctx, func(ctx context.Context) error {
		err := c.streams[shard].Purge(ctx, jetstream.WithPurgeSequence(uint64(before)))
		return c.permanentError(err, StreamName(c.o.Job, shard))
	})
}

func (c *client) record(ctx context.Context, shard int, at Position) ([]byte, error) {
	m, err := c.rawRecord(ctx, shard, at)
	if m == nil {
		return nil, err
	}
	return m.Data, err
}

// rawRecord returns one record with the time at which it was stored, or nil if it does not exist.
func (c *client) rawRecord(ctx context.Context, shard int, at Position) (m *jetstream.RawStreamMsg, err error) {
	err = c.requestUntilFinal(ctx, func(ctx context.Context) (err error) {
		m, err = c.streams[shard].GetMsg(ctx, uint64(at))
		if isDisabled(err) { // no responder: find out whether the stream or the log is unavailable
			_, err = c.streams[shard].Info(ctx)
			err = cmp.Or(err, ErrAway)
		}
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			m, err = nil, nil
		}
		return c.permanentError(err, StreamName(c.o.Job, shard))
	})
	return m, err
}

func (c *client) onAvailable(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.onReconnect = f
}

func (c *client) reconnected() {
	c.mu.Lock()
	back := c.onReconnect
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
