// Package logserver implements a job's update log as an embedded NATS server with JetStream ([Serve]). The log can
// require clients to present the job's keys ([Guard]). The package also inspects a log directory that no process serves
// ([InspectDir]). Clients need only package updatelog, which does not depend on the server.
package logserver

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/perdure/perdure/internal/data/disk"
	"github.com/perdure/perdure/internal/data/updatelog"
)

// ServeOptions configures a log.
type ServeOptions struct {
	// Listen is the address to listen on. With "" and port 0, the log picks a free port on this machine and reuses it
	// after a restart.
	Listen string
	Sync   updatelog.Sync // "": updatelog.SyncInterval
	// MaxBytes limits the total size of the streams' files. 0: three quarters of the free disk space.
	MaxBytes int64
	// Token is the secret in the log's URL. "": the one in the log's URL file, or a random one if there is none. A log
	// with a guard then has no secret.
	Token string
	// Guard requires certificates. nil: connections are not encrypted, and any client with the secret is admitted.
	Guard *Guard
	// Log receives the server's messages; nil: none.
	Log *slog.Logger
	// Refused receives messages about failed connections, which peers can trigger as often as they like; nil: Log
	// receives them.
	Refused *slog.Logger

	private bool // not reachable from outside of this process
}

// Intervals and limits of the server.
const (
	syncEvery  = 10 * time.Second
	startLimit = time.Minute // for reading the existing streams
	checkEvery = time.Second

	handshakeLimit = 10 * time.Second            // of TLS
	endLimit       = time.Second                 // to close when a file blocks the server
	minFree        = 2 * updatelog.MaxGroupBytes // free disk space required to open the streams again
)

// Serve returns ErrRunning if another process already serves the log in the directory.
var ErrRunning = fmt.Errorf("%w: another process already serves the log", updatelog.ErrRefused)

// Server is a running log: an embedded NATS server with JetStream.
type Server struct {
	dir           string
	o             ServeOptions
	unlock        func() error
	url           string
	nats          *server.Server
	logger        *natsLogger
	guard         *connGuard // nil: any client with the secret is admitted
	closed        bool       // the streams are closed because the disk is full or failing
	unopened      []string   // streams that the NATS server could not open when it started
	stateRequests chan chan<- State
}

// Serve starts a log whose streams are stored in dir, and creates dir if necessary. It writes the log's URL, with its
// secret, to the file "url" in dir, which only the owner can read. The secret is generated once.
func Serve(dir string, o ServeOptions) (*Server, error) {
	if o.Sync == "" {
		o.Sync = updatelog.SyncInterval
	}
	if o.Sync != updatelog.SyncInterval && o.Sync != updatelog.SyncAlways {
		return nil, fmt.Errorf("%w: invalid sync mode %[4]q; choose %[2]s or %[3]s",
			updatelog.ErrRefused, updatelog.SyncInterval,
			updatelog.SyncAlways, o.Sync)
	}
	if o.Listen == "" {
		o.Listen = "127.0.0.1:0"
	}
	// Check the address first, so that a failure leaves no directory.
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		l, err := net.Listen("tcp", o.Listen)
		if err != nil {
			return nil, fmt.Errorf("%w: cannot listen on %s: %w", updatelog.ErrRefused, o.Listen, err)
		}
		if err := l.Close(); err != nil {
			return nil, fmt.Errorf("%w: %w", updatelog.ErrRefused, err)
		}
	}
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return nil, fmt.Errorf("%w: %w", updatelog.ErrRefused, err)
	}
	s := &Server{dir: dir, o: o, unlock: func() error { return nil }, stateRequests: make(chan chan<- State)}
	if err := checkFiles(dir); err != nil {
		return nil, err
	}
	if l, ok := disk.OS().(disk.Locker); ok {
		lock, err := l.Lock(filepath.ToSlash(filepath.Join(dir, lockFile)), fmt.Sprintf("process %d", os.Getpid()))
		if errors.Is(err, disk.ErrLocked) {
			return nil, fmt.Errorf("%w in %s: %w", ErrRunning, dir, err)
		}
		if err != nil {
			return nil, fmt.Errorf("%w: %w", updatelog.ErrRefused, err)
		}
		s.unlock = lock.Close
	}
	err := s.start()
	if err != nil && !s.hasSpace() {
		s.closed = true
		err = s.start()
	}
	if err != nil {
		_ = s.unlock() // nothing was written under the lock
		return nil, err
	}
	return s, nil
}

// start starts the server. If no port is configured, it tries the port of the previous run first.
func (s *Server) start() error {
	host, port, token, err := s.address()
	if err != nil {
		return err
	}
	n, err := s.listen(host, port, token)
	if errors.Is(err, errListen) && s.anyPort() {
		n, err = s.listen(host, server.RANDOM_PORT, token)
	}
	if err != nil {
		return err
	}
	s.nats = n
	if s.o.private {
		s.url = (&url.URL{Scheme: "nats", User: url.User(token), Host: host}).String()
		return nil
	}
	_, at, _ := net.SplitHostPort(s.nats.Addr().String())
	where := &url.URL{Scheme: "nats", Host: net.JoinHostPort(host, at)}
	if s.o.Guard != nil {
		where.Scheme = updatelog.KeysScheme
	}
	here := updatelog.WithToken(where.String(), token)
	if here == s.url {
		return nil // restarted at the same address
	}
	s.url = here
	if old, err := updatelog.ReadURL(s.dir); err == nil && old == s.url {
		return nil // not rewritten, so that no reader finds a partial file
	}
	if err := os.WriteFile(filepath.Join(s.dir, updatelog.URLFile), []byte(s.url+"\n"), 0o600); err != nil {
		s.nats.Shutdown()
		return fmt.Errorf("%w: %w", updatelog.ErrRefused, err)
	}
	return nil
}

func (s *Server) anyPort() bool { return strings.HasSuffix(s.o.Listen, ":0") }

var errListen = errors.New("cannot listen")

// address returns the address to listen on and the secret.
func (s *Server) address() (host string, port int, token string, err error) {
	host, text, err := net.SplitHostPort(s.o.Listen)
	if err == nil {
		port, err = strconv.Atoi(text)
	}
	if err != nil || port < 0 || port > 65535 {
		return "", 0, "", fmt.Errorf("%w: invalid listen address %q; write HOST:PORT", updatelog.ErrRefused,
			s.o.Listen)
	}
	if old, err := updatelog.ReadURL(s.dir); err == nil {
		if u, err := url.Parse(old); err == nil {
			if s.o.Guard == nil {
				token = u.User.Username()
			}
			if port == 0 {
				port, _ = strconv.Atoi(u.Port()) // 0 if the URL has no port
			}
		}
	}
	if token = cmp.Or(s.o.Token, token); token == "" && s.o.Guard == nil {
		token = rand.Text()
	}
	if port == 0 {
		port = server.RANDOM_PORT
	}
	return host, port, token, nil
}

func (s *Server) listen(host string, port int, token string) (*server.Server, error) {
	o := &server.Options{
		ServerName: updatelog.ServerName, Host: host, Port: port, Authorization: token, DontListen: s.o.private,
		JetStream: !s.closed, StoreDir: s.dir, JetStreamMaxMemory: 1, JetStreamMaxStore: s.o.MaxBytes,
		SyncAlways: s.o.Sync == updatelog.SyncAlways, SyncInterval: syncEvery,
		MaxPending: updatelog.MaxUnreadBytes, NoSigs: true, NoLog: s.o.Log == nil, DisableJetStreamBanner: true,
	}
	if s.guard = nil; s.o.Guard != nil && !s.o.private {
		s.guard = newConnGuard(s.o.Guard, token)
		o.Authorization, o.CustomClientAuthentication = "", s.guard
		// TLS comes first on both sides: no byte of the protocol is sent in the clear.
		o.TLSConfig, o.TLSHandshakeFirst, o.TLSTimeout = s.o.Guard.TLS, true, handshakeLimit.Seconds()
	}
	n, err := server.NewServer(o)
	if err != nil {
		return nil, fmt.Errorf("%w: the log in %s: %w", updatelog.ErrRefused, s.dir, err)
	}
	if s.guard != nil {
		s.guard.SetServer(n)
	}
	s.logger = &natsLogger{Log: s.o.Log, Connections: cmp.Or(s.o.Refused, s.o.Log)}
	n.SetLoggerV2(s.logger, false, false, false)
	stored := storedStreams(s.dir)
	n.Start() // if it gives up, it logs that before Start returns, and never becomes ready
	if s.logger.GaveUp() || !n.ReadyForConnections(startLimit) || n.JetStreamEnabled() == s.closed {
		n.Shutdown()
		n.WaitForShutdown()
		if text, taken := strings.CutPrefix(s.logger.LastError(), cannotListen); taken {
			at, why, _ := strings.Cut(text, ", ")
			return nil, fmt.Errorf("%w: %w on %s: %s", updatelog.ErrRefused, errListen, at, strings.Trim(why, `"`))
		}
		return nil, fmt.Errorf("%w: the log in %s did not start: %s", updatelog.ErrRefused, s.dir, s.logger.LastError())
	}
	s.unopened = nil
	for _, e := range n.Healthz(&server.HealthzOptions{Details: true}).Errors {
		if slices.Contains(stored, e.Stream) {
			s.unopened = append(s.unopened, e.Stream)
		}
	}
	return n, nil
}

// storedStreams returns the names of the streams in a log's directory, without those whose creation or deletion was
// interrupted.
func storedStreams(dir string) (names []string) {
	all, _ := os.ReadDir(filepath.Join(dir, streamsDir)) // it may not exist yet
	for _, e := range all {
		at := filepath.Join(dir, streamsDir, e.Name())
		_, noMeta := os.Stat(filepath.Join(at, metaFile))
		_, noSum := os.Stat(filepath.Join(at, sumFile))
		if noMeta == nil && noSum == nil && !strings.HasPrefix(e.Name(), ".") {
			names = append(names, e.Name())
		}
	}
	return names
}

// cannotListen is the prefix of the NATS server's message when it cannot listen.
const cannotListen = "Error listening on port: "

// URL returns the log's URL, including its secret.
func (s *Server) URL() string { return s.url }

// NATS returns the underlying server, for operations that clients cannot request.
func (s *Server) NATS() *server.Server { return s.nats }

// Run serves the log until ctx is done, and then closes it. It returns an error if a file of the log turns out not to
// be a regular file but, for example, a named pipe.
//
// When its disk is full, a NATS server permanently gives up the streams that it could not write, and never answers
// pending appends. So Run then closes all streams, which clients are notified of, and reopens them when there is enough
// space.
func (s *Server) Run(ctx context.Context) error {
	for s.waitAnswering(ctx, checkEvery) == nil {
		if err := checkFiles(s.dir); err != nil {
			return s.abandon(err)
		}
		for _, id := range s.guard.Evict() {
			s.warn("closed a connection: its certificate is revoked", "connection", id)
		}
		switch failed, room := s.failed(), s.hasSpace(); {
		case failed && !s.closed:
			s.warn("the log's disk is full or failing; updates wait", "why", s.logger.LastError())
			s.restart(!room)
		case s.closed && room:
			s.restart(false)
		}
	}
	return s.Close()
}

// State is the state of a running log.
type State struct {
	Waits                string // why updates wait; "" if they do not
	Streams, Connections int
	// Stored, Received and Sent are in bytes. Received and Sent count from the start of the server.
	Records, Stored, Received, Sent uint64
}

// State returns the log's state. It blocks while Run reopens the streams, and until ctx is done if Run is not running.
func (s *Server) State(ctx context.Context) (State, error) {
	answer := make(chan State, 1)
	select {
	case s.stateRequests <- answer:
		return <-answer, nil
	case <-ctx.Done():
		return State{}, ctx.Err()
	}
}

// waitAnswering waits for d and answers calls of State in the meantime. It returns an error when ctx is done.
func (s *Server) waitAnswering(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	for {
		select {
		case <-t.C:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		case answer := <-s.stateRequests:
			answer <- s.state()
		}
	}
}

// state returns the log's state. Only Run may call it.
func (s *Server) state() State {
	to := State{Connections: s.nats.NumClients()}
	if v, err := s.nats.Varz(&server.VarzOptions{}); err == nil {
		to.Received, to.Sent = uint64(max(v.InBytes, 0)), uint64(max(v.OutBytes, 0))
	}
	if j, err := s.nats.Jsz(nil); err == nil {
		to.Streams, to.Records, to.Stored = j.Streams, j.Messages, j.Bytes
	}
	if s.closed || s.failed() {
		to.Waits = "the log's disk is full or failing; updates wait"
	}
	return to
}

// failed reports whether a stream cannot be opened or written, or JetStream is disabled.
func (s *Server) failed() bool {
	return !s.nats.JetStreamEnabled() ||
		Unwritable(s.nats.Healthz(&server.HealthzOptions{Details: true}), s.unopened)
}

// Unwritable reports whether a health check with details found a stream that the server cannot write, or one of the
// unopened ones. The check also finds fault with a sound log, and Unwritable ignores that. If the process stalls for a
// millisecond, the check says that the server accepts no connections. If a directory belongs to a stream that is being
// created or deleted, it says that this stream could not be recovered. A restart would break all connections.
func Unwritable(h *server.HealthStatus, unopened []string) bool {
	return h.StatusCode == http.StatusServiceUnavailable &&
		slices.ContainsFunc(h.Errors, func(e server.HealthzError) bool {
			return !strings.HasSuffix(e.Error, "could not be recovered") || slices.Contains(unopened, e.Stream)
		})
}

// hasSpace reports whether the disk has enough free space for the streams, or the free space is unknown.
func (s *Server) hasSpace() bool {
	free, known := disk.FreeBytes(s.dir)
	return !known || free >= minFree
}

// restart restarts the server, without streams if closed is true.
func (s *Server) restart(closed bool) {
	s.nats.Shutdown()
	s.nats.WaitForShutdown()
	s.closed = closed
	if err := s.start(); err != nil {
		s.warn("cannot reopen the log yet", "err", err)
	} else if !closed {
		s.warn("reopened the log")
	}
}

// abandon closes a server that may block on one of its files, and waits at most endLimit for it.
func (s *Server) abandon(why error) error {
	over := make(chan error, 1)
	go func() { over <- s.Close() }()
	select {
	case err := <-over:
		return errors.Join(why, err)
	case <-time.After(endLimit):
		return why
	}
}

func (s *Server) warn(what string, about ...any) {
	if s.o.Log != nil {
		s.o.Log.Warn(what, append(about, "dir", s.dir)...)
	}
}

// Close stops the server. Acknowledged records are kept.
func (s *Server) Close() error {
	s.nats.Shutdown()
	s.nats.WaitForShutdown()
	return s.unlock()
}
