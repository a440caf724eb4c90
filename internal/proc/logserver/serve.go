// Package logserver runs a job's update log: a NATS server with JetStream in this process ([Serve]), which can ask
// whoever connects for the job's keys ([Guard]). It also looks into the folder of a log that nobody serves
// ([InspectFolder]). Clients need package updatelog only, which has no server in it.
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
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/perdure/perdure/internal/data/disk"
	"github.com/perdure/perdure/internal/data/updatelog"
)

// ServeOptions says how to serve a log.
type ServeOptions struct {
	// Listen is the address to listen at (""  and port 0: a free one of this
	// machine, and after a restart the same again).
	Listen string
	Sync   updatelog.Sync // "": updatelog.SyncInterval
	// MaxBytes bounds the streams' files together (0: three quarters of the disk's
	// free room).
	MaxBytes int64
	// Token is the secret of the log's URL ("": that which is in its file url, or, where there
	// is none, one that is drawn; of a log with a guard: none).
	Token string
	// Guard asks for certificates; nil: nothing is encrypted, and whoever has the secret is let in.
	Guard *Guard
	// Log is told what the server reports, unless nil.
	Log *slog.Logger
	// Refused receives lines about failed connections, which peers can cause as often as they like; nil: Log does.
	Refused *slog.Logger

	private bool // nobody outside this process can reach it
}

// Of the server.
const (
	syncEvery  = 10 * time.Second
	startLimit = time.Minute // for reading what is there
	checkEvery = time.Second

	handshakeLimit = 10 * time.Second       // for TLS
	endLimit       = time.Second            // for ending, if a file is in the way
	leastRoom      = 2 * updatelog.MaxGroup // on the disk, for streams to be opened again
)

// ErrRunning is returned by Serve for a folder whose log another process serves.
var ErrRunning = fmt.Errorf("%w: the log is served already", updatelog.ErrRefused)

// Server is a running log: a NATS server of its own with JetStream.
type Server struct {
	dir    string
	o      ServeOptions
	unlock func() error
	url    string
	nats   *server.Server
	watch  *reports
	door   *connGuard // nil: whoever has the secret is let in
	closed bool       // its streams are, since the disk is full or fails
	asks   chan chan<- State
}

// Serve runs a log whose streams are in a folder, which is made where it is not
// there. Its URL, with a secret that is drawn once, is in the folder's file url,
// which only its owner can read.
func Serve(dir string, o ServeOptions) (*Server, error) {
	if o.Sync == "" {
		o.Sync = updatelog.SyncInterval
	}
	if o.Sync != updatelog.SyncInterval && o.Sync != updatelog.SyncAlways {
		return nil, fmt.Errorf("%w: a log syncs %s or %s, not %q", updatelog.ErrRefused, updatelog.SyncInterval,
			updatelog.SyncAlways, o.Sync)
	}
	if o.Listen == "" {
		o.Listen = "127.0.0.1:0"
	}
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) { // else it is not made either
		l, err := net.Listen("tcp", o.Listen)
		if err != nil {
			return nil, fmt.Errorf("%w: cannot listen at %s: %w", updatelog.ErrRefused, o.Listen, err)
		}
		if err := l.Close(); err != nil {
			return nil, fmt.Errorf("%w: %w", updatelog.ErrRefused, err)
		}
	}
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return nil, fmt.Errorf("%w: %w", updatelog.ErrRefused, err)
	}
	s := &Server{dir: dir, o: o, unlock: func() error { return nil }, asks: make(chan chan<- State)}
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
	if err != nil && !s.hasRoom() {
		s.closed = true
		err = s.start()
	}
	if err != nil {
		_ = s.unlock() // nothing was written under it
		return nil, err
	}
	return s, nil
}

// start starts the server, at the address of the last time where none is asked
// for.
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
	here := updatelog.Authorized(where.String(), token)
	if here == s.url {
		return nil // it was started again
	}
	s.url = here
	if old, err := updatelog.ReadURL(s.dir); err == nil && old == s.url {
		return nil // nobody is to find half of it
	}
	if err := os.WriteFile(filepath.Join(s.dir, updatelog.URLFile), []byte(s.url+"\n"), 0o600); err != nil {
		s.nats.Shutdown()
		return fmt.Errorf("%w: %w", updatelog.ErrRefused, err)
	}
	return nil
}

func (s *Server) anyPort() bool { return strings.HasSuffix(s.o.Listen, ":0") }

var errListen = errors.New("cannot listen")

// address is where to listen, and the secret.
func (s *Server) address() (host string, port int, token string, err error) {
	host, text, err := net.SplitHostPort(s.o.Listen)
	if err == nil {
		port, err = strconv.Atoi(text)
	}
	if err != nil || port < 0 || port > 65535 {
		return "", 0, "", fmt.Errorf("%w: %q is no address to listen at; write HOST:PORT", updatelog.ErrRefused,
			s.o.Listen)
	}
	if old, err := updatelog.ReadURL(s.dir); err == nil {
		if u, err := url.Parse(old); err == nil {
			if s.o.Guard == nil {
				token = u.User.Username()
			}
			if port == 0 {
				port, _ = strconv.Atoi(u.Port()) // 0 where there is none
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
		MaxPending: updatelog.MaxUnread, NoSigs: true, NoLog: s.o.Log == nil, DisableJetStreamBanner: true,
	}
	if s.door = nil; s.o.Guard != nil && !s.o.private {
		s.door = newConnGuard(s.o.Guard, token)
		o.Authorization, o.CustomClientAuthentication = "", s.door
		// Nothing is said before TLS is there, neither by who is called nor by who calls.
		o.TLSConfig, o.TLSHandshakeFirst, o.TLSTimeout = s.o.Guard.TLS, true, handshakeLimit.Seconds()
	}
	n, err := server.NewServer(o)
	if err != nil {
		return nil, fmt.Errorf("%w: the log in %s: %w", updatelog.ErrRefused, s.dir, err)
	}
	if s.door != nil {
		s.door.Of(n)
	}
	s.watch = &reports{Log: s.o.Log, Connections: cmp.Or(s.o.Refused, s.o.Log)}
	n.SetLoggerV2(s.watch, false, false, false)
	n.Start() // where it gives up, it says so before it returns, and would never be ready
	if s.watch.GaveUp() || !n.ReadyForConnections(startLimit) || n.JetStreamEnabled() == s.closed {
		n.Shutdown()
		n.WaitForShutdown()
		if text, taken := strings.CutPrefix(s.watch.Last(), cannotListen); taken {
			at, why, _ := strings.Cut(text, ", ")
			return nil, fmt.Errorf("%w: %w at %s: %s", updatelog.ErrRefused, errListen, at, strings.Trim(why, `"`))
		}
		return nil, fmt.Errorf("%w: the log in %s does not start: %s", updatelog.ErrRefused, s.dir, s.watch.Last())
	}
	return n, nil
}

// cannotListen is how a NATS server begins to say that it cannot listen.
const cannotListen = "Error listening on port: "

// URL is how to reach the log, its secret included.
func (s *Server) URL() string { return s.url }

// NATS returns the server itself, for what its own clients cannot ask.
func (s *Server) NATS() *server.Server { return s.nats }

// Run waits until ctx ends, and closes the log; it ends, with an error, if a file of the log is
// found to be none, but a named pipe, say. A NATS server whose disk is full gives
// up the streams that it could not write, for good, and leaves who appends without an
// answer. So Run closes all streams then, which clients are told, and opens them again
// once there is room.
func (s *Server) Run(ctx context.Context) error {
	for s.rest(ctx, checkEvery) == nil {
		if err := checkFiles(s.dir); err != nil {
			return s.abandon(err)
		}
		for _, id := range s.door.Evict() {
			s.warn("a connection is ended whose certificate was revoked", "connection", id)
		}
		switch failed, room := s.failed(), s.hasRoom(); {
		case failed && !s.closed:
			s.warn("the log's disk is full, or fails: updates wait", "why", s.watch.Last())
			s.again(!room)
		case s.closed && room:
			s.again(false)
		}
	}
	return s.Close()
}

// State is the state of a served log.
type State struct {
	Waits                           string // why updates wait; "": they do not
	Streams, Connections            int
	Records, Stored, Received, Sent uint64 // the last three in bytes, and the last two since the server started
}

// Look asks Run for the log's state. It waits while Run opens the streams again; without Run, until ctx ends.
func (s *Server) Look(ctx context.Context) (State, error) {
	answer := make(chan State, 1)
	select {
	case s.asks <- answer:
		return <-answer, nil
	case <-ctx.Done():
		return State{}, ctx.Err()
	}
}

// rest waits for d and answers Look meanwhile. It returns an error when ctx ends.
func (s *Server) rest(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	for {
		select {
		case <-t.C:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		case answer := <-s.asks:
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
		to.Waits = "the log's disk is full, or fails: updates wait"
	}
	return to
}

// failed reports whether there are streams that cannot be written, or none at all.
func (s *Server) failed() bool {
	return !s.nats.JetStreamEnabled() || Unwritable(s.nats.Healthz(&server.HealthzOptions{}))
}

// Unwritable reports whether a look at a server's health has found a stream that it cannot
// write. A look at which the process stood still for a millisecond finds something else: that the
// server takes no connections, which is not so.
func Unwritable(h *server.HealthStatus) bool {
	return h.Error != "" && h.StatusCode == http.StatusServiceUnavailable
}

// hasRoom reports whether the disk has room enough to go on, as far as is known.
func (s *Server) hasRoom() bool {
	free, known := disk.Free(s.dir)
	return !known || free >= leastRoom
}

// again starts the server again, without streams or with them.
func (s *Server) again(closed bool) {
	s.nats.Shutdown()
	s.nats.WaitForShutdown()
	s.closed = closed
	if err := s.start(); err != nil {
		s.warn("the log cannot be opened again yet", "err", err)
	} else if !closed {
		s.warn("the log is open again")
	}
}

// abandon ends a server that may hang on one of its files, for which it is not waited.
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

// Close ends the server; what was acknowledged is kept.
func (s *Server) Close() error {
	s.nats.Shutdown()
	s.nats.WaitForShutdown()
	return s.unlock()
}
