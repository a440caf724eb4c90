// Package dashboard serves the live view of a job to browsers: a page, the job's events and measurements as a stream of
// server-sent events, and actions such as killing a process. A run that has ended is served in the same way.
//
//	l, err := dashboard.Listen("127.0.0.1:0", nil)
//	d, err := dashboard.Open(l, dashboard.Config{Dir: dir, Run: &run, Job: job})
//	fmt.Println(d.URL())
//	d.Wake() // the run's directory or the job's state has changed
//	err = d.Close()
//
// The history of a run comes from its directory, and a client's position is the number of bytes that it has of each
// file. So the server keeps no history in memory, a slow client receives fewer and larger messages, and a position
// stays valid when another process continues the job.
//
// A Dashboard is safe for concurrent use.
package dashboard

import (
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/disk"
	"github.com/perdure/perdure/internal/proc/httpdebug"
	"github.com/perdure/perdure/internal/proc/keys"
	"github.com/perdure/perdure/internal/proc/transport"
	"github.com/perdure/perdure/internal/run/humanize"
	"github.com/perdure/perdure/internal/run/rundir"
	"github.com/perdure/perdure/internal/run/settings"
)

// Names in a run's directory.
const (
	// LinkFile contains a link that has not been used, while the dashboard is served.
	LinkFile = "dashboard"
	// KeyFile contains the key of the browsers' cookies, so that they stay valid when the process is replaced.
	KeyFile = keys.SecretFile + ".dashboard"
	// CaptionsFile contains the captions of a lecture, so that the page of an ended run shows them too.
	CaptionsFile = "captions.json"
)

// Job is a job that is running.
type Job interface {
	// State returns the job's current state.
	State() State
	// Refuses returns the reason why the job accepts no action at all, or "".
	Refuses() string
	// Act carries out an action and describes the result. It returns perdure.ErrUsage for an invalid action, and
	// perdure.ErrRefused for one that is impossible now.
	Act(ctx context.Context, a Action) (accepted string, err error)
}

// Action is an action of a user.
type Action struct {
	Kind   ActionKind `json:"kind"`
	Target string     `json:"target"` // server:N, worker:N, coordinator or log; "" for ActAdd
}

// ActionKind is the kind of an action.
type ActionKind string

// The kinds of actions.
const (
	ActKill   ActionKind = "kill"   // SIGKILL
	ActFreeze ActionKind = "freeze" // SIGSTOP
	ActResume ActionKind = "resume" // SIGCONT
	ActAdd    ActionKind = "add"    // a worker joins
	ActRemove ActionKind = "remove" // a worker leaves
)

// State is the state of a job at one time, in the form in which browsers receive it.
type State struct {
	Seconds   float64        `json:"seconds"` // since the first clock started
	Clock     perdure.Clock  `json:"clock"`   // the job's MinClock
	End       perdure.Clock  `json:"end"`     // 0: no end
	Durable   perdure.Clock  `json:"durable"` // clock of the newest durable checkpoint
	Serving   bool           `json:"serving"` // every shard serves and every slot works
	Processes []Process      `json:"processes"`
	Summary   rundir.Summary `json:"summary"` // of the run so far
}

// Process is the state of one process.
type Process struct {
	Target      string              `json:"target"`
	State       string              `json:"state"`
	PID         int                 `json:"pid"` // 0: no process
	Clock       perdure.Clock       `json:"clock"`
	Incarnation perdure.Incarnation `json:"incarnation"`
	Problem     string              `json:"problem,omitempty"`
	Local       bool                `json:"local"` // actions on it are possible
}

// Caption is a sentence that the page shows from a clock on.
type Caption struct {
	Clock perdure.Clock `json:"clock"`
	Text  string        `json:"text"`
}

// Config holds the arguments of Open.
type Config struct {
	Dir      string // the run's directory
	Run      *settings.Run
	Job      Job // nil: the run has ended, and its directory is not changed
	Captions []Caption
	Framed   bool // pages of this machine, such as notebooks, may embed the page
}

// Dashboard serves one run.
type Dashboard struct {
	cfg      Config
	job      Description
	identity string // of the run's directory; part of each client's position
	served   *http.Server
	listener *Listener
	sessions sessions
	hub      hub
	patience time.Duration // limit for one message to a client
	once     sync.Once
}

// Times of a stream.
const (
	interval = 500 * time.Millisecond // between two states of the job
	ping     = 15 * time.Second       // between two messages; also between two checks of a client's rights
	patience = 10 * time.Second
	grace    = 2 * time.Second // for the last messages when the dashboard is closed
)

// Listener is the listening socket of a dashboard.
type Listener struct {
	net.Listener
	once   sync.Once
	ring   *keys.Ring // nil: the job has no keys
	scheme string
	addr   string   // for links
	names  []string // names of this machine, if others can reach it
}

// Listen opens a socket. Other machines may reach it only if the job has keys; ring has those of the coordinator.
func Listen(addr string, ring *keys.Ring) (*Listener, error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, perdure.Usagef("invalid dashboard address %q: write HOST:PORT, for example 127.0.0.1:0", addr)
	}
	in, err := net.Listen("tcp", net.JoinHostPort(cmp.Or(host, "127.0.0.1"), port))
	if err != nil {
		return nil, fmt.Errorf("cannot listen on %s for the dashboard: %w; choose another address", addr,
			humanize.Cause(err))
	}
	l := &Listener{Listener: in, ring: ring, scheme: "http", addr: in.Addr().String()}
	if transport.IsLoopback(l.addr) {
		return l, nil
	}
	if ring == nil {
		return nil, errors.Join(in.Close(), perdure.Usagef("other machines can reach the dashboard at %s: create "+
			"keys with perdure keys new DIR and use --keys DIR, or use 127.0.0.1 and an SSH tunnel", addr))
	}
	l.scheme, l.names = "https", []string{host}
	if machine, err := os.Hostname(); err == nil {
		l.names = append(l.names, machine)
		if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
			l.addr = net.JoinHostPort(machine, strconv.Itoa(in.Addr().(*net.TCPAddr).Port))
		}
	}
	with := ring.WebServer()
	with.ClientAuth = tls.NoClientCert // browsers present a token; asking for a certificate opens a dialog
	with.NextProtos = []string{"http/1.1"}
	l.Listener = tls.NewListener(in, with)
	return l, nil
}

// Close closes the socket. It has no effect if that is closed.
func (l *Listener) Close() (err error) {
	l.once.Do(func() { err = l.Listener.Close() })
	return err
}

// Open serves a run until Close. It closes the listener if it fails.
func Open(l *Listener, cfg Config) (*Dashboard, error) {
	d := &Dashboard{cfg: cfg, listener: l, job: describe(cfg.Run, cfg.Captions), patience: patience}
	info, err := os.Stat(filepath.Join(cfg.Dir, rundir.RunFile))
	if err == nil {
		err = d.keepCaptions()
	}
	if err == nil {
		d.identity = fmt.Sprintf("%s-%x", cfg.Run.Job.ID, info.ModTime().UnixNano())
		err = d.openSessions()
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("run directory: %w", err), l.Close())
	}
	if cfg.Job != nil {
		d.job.Refuses = cfg.Job.Refuses()
	} else {
		d.job.Refuses, d.job.Ended = "the run has ended", true
	}
	d.hub.init(interval, cfg.Job)
	d.served = httpdebug.NewHTTPServerFor(d.handler(), maxConnections)
	d.served.ErrorLog = log.New(io.Discard, "", 0) // a client could fill the run's terminal with failed TLS handshakes
	go d.hub.run()
	go func() { _ = d.served.Serve(l) }() // until Close
	return d, nil
}

// keepCaptions writes the captions of a run that is running, and reads those of one that has ended.
func (d *Dashboard) keepCaptions() error {
	file := filepath.Join(d.cfg.Dir, CaptionsFile)
	if d.cfg.Job != nil {
		if d.cfg.Captions == nil {
			return nil
		}
		text, err := json.MarshalIndent(d.cfg.Captions, "", "  ")
		if err != nil {
			return err
		}
		return os.WriteFile(file, append(text, '\n'), 0o666)
	}
	text, err := disk.ReadRegular(file, settings.MaxDocumentBytes)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = json.Unmarshal(text, &d.job.Captions)
	}
	if err != nil {
		return fmt.Errorf("%s: %w; remove the file to open the run without captions", CaptionsFile, err)
	}
	return nil
}

// openSessions prepares the sessions of browsers. A run that is running has its key in its directory.
func (d *Dashboard) openSessions() (err error) {
	d.sessions.job, d.sessions.ring, d.sessions.link = d.cfg.Run.Job.ID, d.listener.ring, keys.NewSecret()
	d.sessions.now, d.sessions.changed = time.Now, func() {}
	if d.cfg.Job == nil {
		d.sessions.key = keys.NewSecret()
		return nil
	}
	path := filepath.Join(d.cfg.Dir, KeyFile)
	d.sessions.key, err = keys.ReadSecret(path)
	if errors.Is(err, os.ErrNotExist) {
		d.sessions.key = keys.NewSecret()
		err = keys.WriteSecret(path, d.sessions.key)
	}
	if err != nil {
		return err
	}
	d.sessions.changed = func() { _ = d.writeLink() } // without it, the run continues without another link
	return d.writeLink()
}

// writeLink replaces the file with the link atomically, for programs that read it at any time.
func (d *Dashboard) writeLink() error {
	path := filepath.Join(d.cfg.Dir, LinkFile)
	tmp := path + ".tmp"
	if err := os.Remove(tmp); err != nil && !errors.Is(err, os.ErrNotExist) { // it might have another mode
		return err
	}
	if err := os.WriteFile(tmp, []byte(d.URL()+"\n"), 0o600); err != nil {
		return err
	}
	return os.Rename(tmp, path)
}

// Address returns the address of the page, without a token.
func (d *Dashboard) Address() string { return d.listener.scheme + "://" + d.listener.addr }

// URL returns a link that one browser can open once.
func (d *Dashboard) URL() string {
	return d.Address() + "/#" + d.sessions.unused().Reveal()
}

// Wake notifies the clients that the run's directory or the job's state has changed. It does not block. A nil Dashboard
// ignores it.
func (d *Dashboard) Wake() {
	if d != nil {
		d.hub.wake()
	}
}

// Close sends the last messages and ends all connections. If the run has ended, clients receive its result.
func (d *Dashboard) Close() (err error) {
	d.once.Do(func() {
		d.hub.close()
		ctx, cancel := context.WithTimeout(context.Background(), grace)
		defer cancel()
		if d.served.Shutdown(ctx) != nil {
			err = d.served.Close() // clients that do not read
		}
		if d.cfg.Job != nil {
			_ = os.Remove(filepath.Join(d.cfg.Dir, LinkFile)) // a link without a server does no harm
		}
	})
	return err
}
