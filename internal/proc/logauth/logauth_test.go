package logauth_test

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/perdure/perdure/internal/data/updatelog"
	"github.com/perdure/perdure/internal/proc/keys"
	"github.com/perdure/perdure/internal/proc/keys/authority"
	"github.com/perdure/perdure/internal/proc/logauth"
	"github.com/perdure/perdure/internal/proc/logserver"
)

const (
	job    = "j"
	stream = "perdure-j-0"
	space  = 64 << 20 // limit of one stream
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// newKeys creates the keys of a job.
func newKeys(t *testing.T, name string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), name)
	_, err := authority.New(dir, name, time.Hour, time.Now)
	must(t, err)
	return dir
}

func ring(t *testing.T, dir string, role keys.Role) *keys.Ring {
	t.Helper()
	r, err := keys.Open(keys.RoleDir(dir, role))
	must(t, err)
	return r
}

// fixture is a running log that requires keys.
type fixture struct {
	*testing.T
	dir  string // directory of the keys
	ring *keys.Ring
	log  *logserver.Server
}

// serve starts a log. With a token, it is the log of a single run.
func serve(t *testing.T, dir, token string, change ...func(*logserver.Guard)) *fixture {
	t.Helper()
	w := &fixture{T: t, dir: dir, ring: ring(t, dir, logauth.ServerRole)}
	guard := logserver.NewGuard(w.ring, token != "")
	for _, c := range change {
		c(guard)
	}
	s, err := logserver.Serve(filepath.Join(t.TempDir(), "log"), logserver.ServeOptions{
		Guard: guard, Token: token, Log: slog.New(slog.DiscardHandler),
	})
	must(t, err)
	w.log = s
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return w
}

// create creates the job's stream and appends some records.
func (w *fixture) create(entries ...string) {
	w.Helper()
	o := updatelog.DialOptions{Options: updatelog.Options{Job: job, Shards: 1}, MaxBytes: space}
	o.Access = w.access(keys.Coordinator)
	must(w.T, updatelog.Create(w.Context(), w.log.URL(), o))
	l := w.dial(keys.Worker)
	for _, e := range entries {
		must(w.T, put(w.Context(), l, e))
	}
	must(w.T, l.Close())
}

func (w *fixture) access(role keys.Role) *updatelog.Access {
	return logauth.NewAccess(ring(w.T, w.dir, role))
}

// dial opens the job's log with the keys of a role.
func (w *fixture) dial(role keys.Role) updatelog.Log {
	w.Helper()
	l, err := updatelog.Dial(w.Context(), w.log.URL(), updatelog.DialOptions{
		Options: updatelog.Options{Job: job, Shards: 1}, MaxBytes: space, ReadOnly: role == keys.Worker,
		Access: w.access(role),
	})
	must(w.T, err)
	w.Cleanup(func() { _ = l.Close() })
	return l
}

func put(ctx context.Context, l updatelog.Log, entry string) error {
	done := make(chan error, 1)
	err := l.Append(ctx, 0, [][]byte{[]byte(entry)}, func(_ updatelog.Position, err error) { done <- err })
	if err != nil {
		return err
	}
	return <-done
}

// bare returns a plain NATS connection with the given credentials, as a modified client would open it.
func (w *fixture) bare(a *updatelog.Access, more ...nats.Option) (*nats.Conn, error) {
	o := append([]nats.Option{
		nats.Secure(a.TLS), nats.TLSHandshakeFirst(), nats.CustomInboxPrefix("_INBOX." + a.Kind), nats.Token(a.Token),
		nats.Timeout(time.Minute), nats.MaxReconnects(-1), nats.ReconnectWait(time.Millisecond),
		nats.ReconnectJitter(0, 0), nats.IgnoreAuthErrorAbort(),
		nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}),
	}, more...)
	return nats.Connect(strings.Replace(w.log.URL(), updatelog.KeysScheme, "tls", 1), o...)
}

// acts lists the operations that a client could attempt, with their subjects and request bodies.
var acts = map[string]struct{ subject, body string }{
	"look at the log":      {"$JS.API.INFO", ""},
	"look at a stream":     {"$JS.API.STREAM.INFO." + stream, ""},
	"look at a record":     {"$JS.API.STREAM.MSG.GET." + stream, `{"seq":1}`},
	"get a record":         {"$JS.API.DIRECT.GET." + stream, `{"seq":1}`},
	"list streams":         {"$JS.API.STREAM.LIST", ""},
	"list readers":         {"$JS.API.CONSUMER.LIST." + stream, ""},
	"append":               {"perdure.j.0", "x"},
	"read":                 {"$JS.API.CONSUMER.CREATE." + stream + ".me", consumer},
	"read on":              {"$JS.API.CONSUMER.MSG.NEXT." + stream + ".me", `{"batch":1,"no_wait":true}`},
	"end reading":          {"$JS.API.CONSUMER.DELETE." + stream + ".me", ""},
	"trim":                 {"$JS.API.STREAM.PURGE." + stream, `{"seq":1}`},
	"make a stream":        {"$JS.API.STREAM.CREATE.more", `{"name":"more","subjects":["perdure.more.0"]}`},
	"change a stream":      {"$JS.API.STREAM.UPDATE.more", `{"name":"more","subjects":["perdure.more.0"]}`},
	"remove a stream":      {"$JS.API.STREAM.DELETE.more", ""},
	"delete a record":      {"$JS.API.STREAM.MSG.DELETE." + stream, `{"seq":1}`},
	"copy a stream":        {"$JS.API.STREAM.SNAPSHOT." + stream, `{"deliver_subject":"x"}`},
	"speak of other work":  {"orders.new", "x"},
	"speak for the log":    {"_INBOX.server.x", "x"},
	"acknowledge as a log": {"$JS.ACK.x", "x"},
	"ask the whole server": {"$SYS.REQ.SERVER.PING", ""},
}

const consumer = `{"stream_name":"` + stream + `","config":{"name":"me","ack_policy":"none","deliver_policy":"all",` +
	`"mem_storage":true,"inactive_threshold":60000000000}}`

// order is the order in which the acts are tried; some need the results of earlier ones.
var order = []string{
	"look at the log", "look at a stream", "look at a record", "get a record", "list streams", "list readers", "append",
	"read", "read on", "end reading", "trim", "make a stream", "change a stream", "remove a stream", "delete a record",
	"copy a stream", "speak of other work", "speak for the log", "acknowledge as a log", "ask the whole server",
}

// may is the table in docs/design/logauth.md: the rights of each role at any log, and the additional ones at the log
// of a single run.
var may = map[keys.Role][2][]string{
	keys.Coordinator: {{
		"look at the log", "look at a stream", "look at a record", "get a record", "list streams", "list readers",
		"read", "read on", "end reading", "make a stream", "change a stream", "remove a stream",
	}, nil},
	keys.Server: {{
		"look at the log", "look at a stream", "look at a record", "get a record", "append", "read", "read on",
		"end reading", "trim",
	}, {"make a stream", "change a stream"}},
	keys.Worker: {{"look at the log", "look at a stream", "look at a record", "get a record", "append"}, nil},
	keys.Operator: {{
		"look at the log", "look at a stream", "look at a record", "get a record", "list streams", "list readers",
	}, nil},
	keys.Viewer: {},
}

// TestRights checks that each role can do exactly what the table allows, and that everything else is rejected as a
// permission violation.
func TestRights(t *testing.T) {
	t.Parallel()
	if len(order) != len(acts) {
		t.Fatalf("%d acts, but %d entries in order", len(acts), len(order))
	}
	dir := newKeys(t, "mine")
	for _, role := range keys.Roles {
		for own, token := range []string{"", "secret"} {
			w := serve(t, dir, token)
			maker := w.access(keys.Server)
			if own == 0 {
				maker = w.access(keys.Coordinator)
			}
			must(t, updatelog.Create(t.Context(), w.log.URL(), updatelog.DialOptions{
				Options: updatelog.Options{Job: job, Shards: 1}, MaxBytes: space, Access: maker,
			}))
			l, err := updatelog.Dial(t.Context(), w.log.URL(), updatelog.DialOptions{
				Options: updatelog.Options{Job: job, Shards: 1}, ReadOnly: true, Access: w.access(keys.Worker),
			})
			must(t, err)
			must(t, put(t.Context(), l, "entry"))
			must(t, l.Close())
			wanted := slices.Concat(may[role][0], may[role][1][:own*len(may[role][1])])
			nc, err := w.bare(w.access(role))
			if len(wanted) == 0 {
				if !errors.Is(err, nats.ErrAuthorization) {
					t.Errorf("a %s was admitted: %v", role, err)
				}
				continue
			}
			must(t, err)
			// The stream must exist, so that only the missing right can fail the act.
			if !slices.Contains(wanted, "make a stream") {
				must(t, w.makeMore())
			}
			for _, what := range order {
				err := try(nc, acts[what].subject, acts[what].body)
				if allowed := slices.Contains(wanted, what); allowed != (err == nil) {
					t.Errorf("a %s tried to %s (log of a single run: %v): %v", role, what, own == 1, err)
				} else if !allowed && !errors.Is(err, nats.ErrPermissionViolation) {
					t.Errorf("a %s tried to %s: %v", role, what, err)
				}
			}
			others := "_INBOX." + string(other(role)) + ".>"
			for _, receives := range []string{">", "_INBOX.>", "perdure.>", "$JS.>", others} {
				nc, err := w.bare(w.access(role)) // a fresh connection has no earlier error
				must(t, err)
				_, err = nc.SubscribeSync(receives)
				if err = errors.Join(err, nc.Flush(), nc.LastError()); !errors.Is(err, nats.ErrPermissionViolation) {
					t.Errorf("a %s may subscribe to %s: %v", role, receives, err)
				}
				nc.Close()
			}
			nc.Close()
		}
	}
}

// makeMore creates the stream that roles without the right try to remove.
func (w *fixture) makeMore() error {
	nc, err := w.bare(w.access(keys.Coordinator))
	if err != nil {
		return err
	}
	defer nc.Close()
	return try(nc, acts["make a stream"].subject, acts["make a stream"].body)
}

func other(role keys.Role) keys.Role {
	if role == keys.Server {
		return keys.Worker
	}
	return keys.Server
}

// try sends a request to the log. It returns an error if the request was not allowed or failed.
func try(nc *nats.Conn, subject, body string) error {
	answers, err := nc.SubscribeSync(nc.NewInbox())
	if err != nil {
		return err
	}
	defer func() { _ = answers.Unsubscribe() }() // the connection is closed soon
	before := nc.LastError()
	if err := errors.Join(nc.PublishRequest(subject, answers.Subject, []byte(body)), nc.Flush()); err != nil {
		return err
	}
	// The server reports a violation before it answers the flush.
	if err := nc.LastError(); err != nil && (before == nil || err.Error() != before.Error()) {
		return err
	}
	m, err := answers.NextMsg(30 * time.Second)
	if err != nil {
		return fmt.Errorf("no answer: %w", err)
	}
	var says struct{ Error *struct{ Description string } }
	if json.Unmarshal(m.Data, &says) == nil && says.Error != nil {
		return errors.New(says.Error.Description)
	}
	return nil
}

// TestDeputy checks that a client cannot make the log perform a forbidden operation on its behalf, for example by
// naming the operation's subject as the reply subject.
func TestDeputy(t *testing.T) {
	t.Parallel()
	for _, role := range []keys.Role{keys.Worker, keys.Operator, keys.Server, keys.Coordinator} {
		w := serve(t, newKeys(t, "mine"), "")
		w.create("a", "b", "c")
		nc, err := w.bare(w.access(role))
		must(t, err)
		defer nc.Close()
		for _, ask := range []string{"look at the log", "look at a stream", "look at a record", "get a record"} {
			for _, reply := range []string{
				"trim", "remove a stream", "make a stream", "delete a record", "copy a stream",
			} {
				if slices.Contains(may[role][0], reply) {
					continue
				}
				to := strings.ReplaceAll(acts[reply].subject, "more", stream)
				must(t, nc.PublishRequest(acts[ask].subject, to, []byte(acts[ask].body)))
				must(t, nc.PublishRequest(acts[ask].subject, to, []byte(`{"seq":99}`))) // the answer is empty
			}
		}
		if role == keys.Operator { // an operator must not append either
			must(t, nc.PublishRequest(acts["look at a stream"].subject, "perdure.j.0", nil))
		}
		must(t, nc.Flush())                                    // all violations are reported by now
		must(t, try(nc, acts["look at a stream"].subject, "")) // the log has processed everything before it
		l := w.dial(keys.Server)
		must(t, put(t.Context(), l, "d"))
		first, next, err := l.Extent(t.Context(), 0)
		if err != nil || first != 1 || next != 5 {
			t.Errorf("after the attempts of a %s, the stream has records %d to %d, %v", role, first, next-1, err)
		}
	}
}

// TestRefused checks that clients without valid keys of the job are rejected, and what the error says.
func TestRefused(t *testing.T) {
	t.Parallel()
	dir := newKeys(t, "mine")
	w := serve(t, dir, "")
	w.create("a")
	revoked := w.issue("gone")
	w.revoke("worker-gone")
	must(t, w.ring.Refresh())
	dial := func(url string, a *updatelog.Access) error {
		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond) // Dial retries temporary errors
		defer cancel()
		l, err := updatelog.Dial(ctx, url, updatelog.DialOptions{
			Options: updatelog.Options{Job: job, Shards: 1}, ReadOnly: true, Access: a,
		})
		if err == nil {
			_ = l.Close()
		}
		return err
	}
	none := w.access(keys.Worker)
	none.TLS = &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS13}
	old := w.access(keys.Worker)
	old.TLS.MinVersion, old.TLS.MaxVersion = tls.VersionTLS12, tls.VersionTLS12
	others := func(name string) *updatelog.Access {
		return logauth.NewAccess(ring(t, newKeys(t, name), keys.Worker))
	}
	for name, c := range map[string]struct {
		access *updatelog.Access
		is     error
		says   string
	}{
		"its own":             {w.access(keys.Worker), nil, ""},
		"no keys":             {nil, updatelog.ErrRefused, "requires the job's keys"},
		"no certificate":      {none, updatelog.ErrRefused, "rejects our certificate"},
		"an older TLS":        {old, updatelog.ErrRefused, "rejects our certificate"},
		"another job's":       {others("other"), updatelog.ErrRefused, "another job's keys"},
		"another authority's": {others("mine"), updatelog.ErrRefused, "another job's keys"},
		"revoked":             {logauth.NewAccess(revoked), updatelog.ErrRefused, "rejects our certificate"},
		"a viewer's": {
			w.access(keys.Viewer), updatelog.ErrRefused,
			"does not accept the keys of viewer/viewer",
		},
		"expired": {w.expired(), updatelog.ErrAway, "our own certificate, in .*, expired at"},
	} {
		err := dial(w.log.URL(), c.access)
		if !errors.Is(err, c.is) || err != nil && !matches(err, c.says) {
			t.Errorf("credentials %s: %v", name, err)
		}
	}
	own := serve(t, dir, "secret")
	without := strings.Replace(own.log.URL(), "secret@", "", 1)
	if err := dial(without, own.access(keys.Worker)); !errors.Is(err, updatelog.ErrRefused) {
		t.Errorf("without the run's secret: %v", err)
	}
	plain, err := logserver.Serve(t.TempDir(), logserver.ServeOptions{})
	must(t, err)
	defer plain.Close()
	_, at, _ := strings.Cut(plain.URL(), "@")
	err = dial("perdure://"+at, w.access(keys.Worker))
	if !matches(err, "the log's server does not use TLS: it was started without keys") {
		t.Errorf("with keys at a log without keys: %v", err)
	}
}
