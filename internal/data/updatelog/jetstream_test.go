package updatelog

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/perdure/perdure"
)

// TestDialRefuses checks the one-line errors for logs that cannot be used.
func TestDialRefuses(t *testing.T) {
	w := newServerBackend(t, SyncInterval)
	o := Options{Job: job, Shards: 2}
	dial := func(url string, d DialOptions) error {
		d.Options = o
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		l, err := Dial(ctx, url, d)
		if err == nil {
			_ = l.Close()
		}
		return err
	}
	good := w.server.URL()
	_, at, _ := strings.Cut(good, "@")
	err := dial("nats://wrong@"+at, DialOptions{})
	wantError(t, "a wrong secret", err, ErrRefused, at+" does not accept these credentials")
	if strings.Contains(err.Error(), "wrong@") {
		t.Errorf("the error contains the secret: %v", err)
	}
	wantError(t, "no secret", dial("nats://"+at, DialOptions{}), ErrRefused, "credentials")
	wantError(t, "a missing file", dial(good, DialOptions{CA: "/nowhere"}), perdure.ErrUsage, "/nowhere")
	wantError(t, "no address", dial("nats://a b", DialOptions{}), ErrRefused, "")

	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	none := l.Addr().String()
	must(t, l.Close())
	wantError(t, "nobody there", dial("nats://"+none, DialOptions{}), ErrAway, none)

	plain := runPlain(t, &server.Options{})
	wantError(t, "no JetStream", dial(plain, DialOptions{}), ErrRefused, "without JetStream")
	small := runPlain(t, &server.Options{JetStream: true, StoreDir: t.TempDir(), MaxPayload: 1000})
	wantError(t, "small messages", dial(small, DialOptions{}), ErrRefused, "max_payload")
	wantError(t, "a missing stream", dial(good, DialOptions{ReadOnly: true}), ErrRefused, "no stream")
}

// TestTransient checks that connection errors of a killed log count as transient, and errors of a wrong address as
// permanent.
func TestTransient(t *testing.T) {
	system := func(op string, errno syscall.Errno) error {
		return fmt.Errorf("nats: %w", &net.OpError{Op: op, Net: "tcp", Err: os.NewSyscallError(op, errno)})
	}
	for _, err := range []error{
		nats.ErrNoServers, nats.ErrTimeout, io.EOF, &net.OpError{Op: "dial", Err: os.ErrDeadlineExceeded},
		system("connect", syscall.ECONNREFUSED), system("read", syscall.ECONNRESET), system("write", syscall.EPIPE),
	} {
		if !transient(err) {
			t.Errorf("%v counts as permanent", err)
		}
	}
	for _, err := range []error{
		nats.ErrAuthorization,
		&net.OpError{Op: "dial", Err: &net.DNSError{Err: "no such host", IsNotFound: true}},
	} {
		if transient(err) {
			t.Errorf("%v counts as transient", err)
		}
	}
}

// runPlain runs a NATS server that Perdure does not manage.
func runPlain(t *testing.T, o *server.Options) string {
	o.Host, o.Port, o.NoSigs, o.NoLog = "127.0.0.1", server.RANDOM_PORT, true, true
	s, err := server.NewServer(o)
	must(t, err)
	s.Start()
	t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	if !s.ReadyForConnections(time.Minute) {
		t.Fatal("the server did not start")
	}
	return s.ClientURL()
}

// TestOwned checks that streams of others are left alone.
func TestOwned(t *testing.T) {
	w := newServerBackend(t, SyncInterval)
	nc, err := nats.Connect(w.server.URL())
	must(t, err)
	defer nc.Close()
	js, err := jetstream.New(nc)
	must(t, err)
	// Each case has a stream of its own, because NATS may fail to create a stream that was just deleted.
	for i, c := range []struct {
		want string
		meta map[string]string
	}{
		{"does not belong to a Perdure job", nil},
		{"format 2, this one reads format 1)", map[string]string{metaJob: "owned1", metaShard: "0", metaVersion: "2"}},
		{"shard 0 of job other", map[string]string{metaJob: "other", metaShard: "0", metaVersion: "1"}},
		{"shard 5 of job owned3", map[string]string{metaJob: "owned3", metaShard: "5", metaVersion: "1"}},
		{"does not belong to a Perdure job; ", map[string]string{metaJob: "owned4", metaShard: "0", metaVersion: "x"}},
		{"format 0, this one reads format 1)", map[string]string{metaJob: "owned5", metaShard: "0", metaVersion: "0"}},
	} {
		owned := fmt.Sprint("owned", i)
		_, err := js.CreateStream(t.Context(),
			jetstream.StreamConfig{Name: StreamName(owned, 0), Subjects: []string{owned}, Metadata: c.meta})
		must(t, err)
		_, err = w.dial(t, Options{Job: owned, Shards: 1})
		wantError(t, "another's stream", err, ErrRefused, c.want)
	}
	l := open1(t, w)
	put1(t, l, "a")
	must(t, js.DeleteStream(t.Context(), StreamName(job, 1)))
	wantError(t, "a deleted stream", (<-start(t, l, "b")).err, ErrDamaged, "no longer has a stream of that name")
	if err := js.DeleteStream(t.Context(), StreamName(job, 0)); err != nil {
		t.Error(err)
	}
}

// TestServeRefuses checks the one-line errors of Serve.
func TestServeRefuses(t *testing.T) {
	w := newServerBackend(t, SyncAlways)
	_, err := Serve(w.dir, ServeOptions{})
	wantError(t, "a directory that is served", err, ErrRunning, w.dir)
	_, at, _ := strings.Cut(w.server.URL(), "@")
	_, err = Serve(t.TempDir(), ServeOptions{Listen: at})
	wantError(t, "an address that is in use", err, ErrRefused, "cannot listen on "+at+": listen tcp")
	missing := filepath.Join(t.TempDir(), "log")
	for _, listen := range []string{at, "x"} {
		_, err = Serve(missing, ServeOptions{Listen: listen})
		wantError(t, "an address that is in use or invalid", err, ErrRefused, listen)
		if _, err := os.Stat(missing); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("a failed Serve leaves its directory: %v", err)
		}
	}
	for _, bad := range []string{"x", "127.0.0.1", "127.0.0.1:x", "127.0.0.1:99999"} {
		_, err = Serve(t.TempDir(), ServeOptions{Listen: bad})
		wantError(t, "no address", err, ErrRefused, bad)
	}
	_, err = Serve(t.TempDir(), ServeOptions{Sync: "never"})
	wantError(t, "an unknown sync mode", err, ErrRefused, "never")
	file := filepath.Join(t.TempDir(), "file")
	must(t, os.WriteFile(file, nil, 0o666))
	_, err = Serve(file, ServeOptions{})
	wantError(t, "a file", err, ErrRefused, "file")
	odd, begin := t.TempDir(), time.Now()
	must(t, os.WriteFile(filepath.Join(odd, "jetstream"), nil, 0o666))
	_, err = Serve(odd, ServeOptions{})
	wantError(t, "an unusable directory", err, ErrRefused, "did not start: Can't start JetStream")
	if took := time.Since(begin); took > 30*time.Second {
		t.Errorf("waited %v for a log that gave up immediately", took)
	}
	_, err = ReadURL(t.TempDir())
	wantError(t, "no log", err, ErrRefused, "no log")
}

// TestSameAddress checks that a restarted log has the same address as before.
func TestSameAddress(t *testing.T) {
	w := newServerBackend(t, SyncAlways)
	before := w.server.URL()
	w.restart(t, func() {})
	if after := w.server.URL(); after != before {
		t.Errorf("the log moved from %s to %s", before, after)
	}
	if got, err := ReadURL(w.dir); err != nil || got != before {
		t.Errorf("%q, %v", got, err)
	}
	info, err := os.Stat(filepath.Join(w.dir, URLFile))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("other users can read the secret: mode %v, error %v", info.Mode(), err)
	}
	var taken net.Listener
	w.restart(t, func() {
		_, at, _ := strings.Cut(before, "@")
		taken, err = net.Listen("tcp", at)
		must(t, err)
	})
	defer taken.Close()
	if after := w.server.URL(); after == before {
		t.Errorf("the log is at %s, an address that another process uses", after)
	}
}

// TestInspect inspects a running and a stopped log, and detects a changed byte on disk.
func TestInspect(t *testing.T) {
	w := newServerBackend(t, SyncInterval)
	l := open1(t, w)
	big := pattern(1, 3*MaxRecord)
	put1(t, l, "a")
	put1(t, l, big)
	look := func() (records, entries int, err error) {
		i, err := InspectFolder(t.Context(), w.dir, time.Minute, DialOptions{})
		must(t, err)
		defer i.Close()
		streams, err := i.Streams(t.Context())
		must(t, err)
		if len(streams) != 2 || streams[1].Job != job || streams[1].Shard != 1 || streams[1].Version != Version ||
			streams[0].Next != 1 {
			t.Fatalf("streams %+v", streams)
		}
		err = i.Records(t.Context(), streams[1], func(r Record) error {
			if records++; r.Position != Position(records) || r.Job != job {
				t.Errorf("record %+v", r)
			}
			entries += len(r.Entries)
			return nil
		})
		return records, entries, err
	}
	whole := func() {
		t.Helper()
		if records, entries, err := look(); records != 5 || entries != 2 || err != nil {
			t.Fatalf("%d records, %d entries, error %v", records, entries, err)
		}
	}
	whole()
	w.restart(t, whole)
	put1(t, l, "b") // the log still works
	w.restart(t, func() {
		damageDisk(t, w.dir, big[MaxRecord+1000:MaxRecord+1100])
		records, _, err := look()
		wantError(t, "a log with a changed byte", err, ErrDamaged, StreamName(job, 1))
		if records >= 5 {
			t.Errorf("%d records shown despite damage", records)
		}
	})
}

// damageDisk changes one byte of a text in the only file of a directory that contains it.
func damageDisk(t *testing.T, dir, text string) {
	t.Helper()
	changed := 0
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		b, err := os.ReadFile(path)
		must(t, err)
		if at := strings.Index(string(b), text); at >= 0 {
			changed++
			b[at]++
			return os.WriteFile(path, b, 0o600)
		}
		return nil
	})
	if err != nil || changed != 1 {
		t.Fatalf("%d files contain the text, want 1: %v", changed, err)
	}
}

// TestRun checks that a server that lost its streams reopens them.
func TestRun(t *testing.T) {
	dir := t.TempDir()
	s, err := Serve(dir, ServeOptions{})
	must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- s.Run(ctx) }()
	l, err := Dial(t.Context(), s.URL(), DialOptions{Options: Options{Job: job, Shards: 2}})
	must(t, err)
	defer l.Close()
	put1(t, l, "a")
	must(t, s.NATS().ShutdownJetStream()) // the server does the same when its disk is full
	put1(t, l, "b")
	wantTexts(t, l, Oldest, "a b")
	to, err := s.Look(ctx)
	if err != nil || to.Streams != 2 || to.Records < 2 || to.Stored == 0 || to.Connections == 0 || to.Sent == 0 ||
		to.Waits != "" {
		t.Errorf("Look returns %+v, %v", to, err)
	}
	cancel()
	must(t, <-ended)
	if _, err := s.Look(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("Look without Run returns %v", err)
	}
}

// TestReadAhead checks that readers of all shards together request far less than a connection may have pending, and
// that each of them can request at least one record.
func TestReadAhead(t *testing.T) {
	for shards := 1; shards <= 128; shards++ {
		if n := readAheadBytes(shards); n <= MaxRecord || n*shards > MaxUnreadBytes*2/3 {
			t.Errorf("%d readers request %d bytes each; a record has %d, and %d may be pending", shards, n, MaxRecord,
				MaxUnreadBytes)
		}
	}
}

// TestConcurrentDial checks that a log with just enough room for a job's streams serves all clients that create them
// concurrently.
func TestConcurrentDial(t *testing.T) {
	const shards, each, clients = 6, 64 << 20, 8
	s, err := Serve(filepath.Join(t.TempDir(), "log"), ServeOptions{MaxBytes: shards * each})
	must(t, err)
	defer s.Close()
	failed := make(chan error, clients)
	for range clients {
		go func() {
			l, err := Dial(t.Context(), s.URL(),
				DialOptions{Options: Options{Job: job, Shards: shards}, MaxBytes: each})
			for shard := 0; shard < shards && err == nil; shard++ {
				_, _, err = l.Extent(t.Context(), shard)
			}
			if l != nil {
				err = errors.Join(err, l.Close())
			}
			failed <- err
		}()
	}
	for range clients {
		must(t, <-failed)
	}
}

// TestRequestLost checks that a request whose connection breaks is repeated immediately, because no answer will come.
func TestRequestLost(t *testing.T) {
	s := newServerBackend(t, SyncInterval).server
	c, err := connect(t.Context(), s.URL(), DialOptions{})
	must(t, err)
	defer c.nc.Close()
	var first error
	must(t, c.requestUntilFinal(t.Context(), func(ctx context.Context) error {
		if first != nil {
			return nil
		}
		id, err := c.nc.GetClientID()
		must(t, err)
		must(t, s.NATS().DisconnectClientByID(id))
		<-ctx.Done()
		first = ctx.Err()
		return c.permanentError(first, "")
	}))
	if first != context.Canceled {
		t.Errorf("the lost request ended with %v", first)
	}
}

// TestUnwritable checks that a failed health check that is unrelated to streams does not close them. [TestDiskFull]
// covers an unwritable stream.
func TestUnwritable(t *testing.T) {
	s := newServerBackend(t, SyncInterval).server
	health := func() *server.HealthStatus { return s.NATS().Healthz(&server.HealthzOptions{Details: true}) }
	if h := health(); Unwritable(h, nil) {
		t.Errorf("an intact log counts as unwritable: %+v", h)
	}
	s.NATS().Shutdown()
	s.NATS().WaitForShutdown()
	if h := health(); len(h.Errors) == 0 || Unwritable(h, nil) {
		t.Errorf("health of a log that accepts no connections: %+v", h)
	}
}

// TestInspectKilled checks that damage that a server silently truncates on startup is reported. A record that was being
// written when the server was killed is not damage.
func TestInspectKilled(t *testing.T) {
	w := newServerBackend(t, SyncInterval)
	l := open1(t, w)
	for _, text := range []string{"first", "second", "third"} {
		put1(t, l, text)
	}
	w.restart(t, func() { testInspectKilled(t, w.dir) })
}

func testInspectKilled(t *testing.T, log string) {
	t.Run("meta.inf", func(t *testing.T) {
		dir := t.TempDir()
		must(t, os.CopyFS(dir, os.DirFS(log)))
		must(t, os.Truncate(filepath.Join(dir, streamsDir, StreamName(job, 1), "meta.inf"), 100))
		i, err := InspectFolder(t.Context(), dir, time.Minute, DialOptions{})
		must(t, err)
		defer i.Close()
		streams, err := i.Streams(t.Context())
		must(t, err)
		if len(streams) != 2 || streams[1].Shard != 1 {
			t.Fatalf("streams %+v", streams)
		}
		err = i.Records(t.Context(), streams[1], func(Record) error { return nil })
		wantError(t, "a damaged meta.inf", err, ErrDamaged, "stream "+StreamName(job, 1)+" (shard 1) cannot be opened")
	})
	msgs := filepath.Join(log, streamsDir, StreamName(job, 1), "msgs")
	must(t, os.Remove(filepath.Join(msgs, "index.db"))) // written on a graceful shutdown
	for name, c := range map[string]struct {
		spoil   func(b []byte) []byte
		records int
		whole   bool
	}{
		"untouched":     {func(b []byte) []byte { return b }, 3, true},
		"half a record": {func(b []byte) []byte { return append(b, b[:60]...) }, 3, true},
		// cannot be distinguished from the previous case
		"cut in the third":  {func(b []byte) []byte { return b[:len(b)-2] }, 2, true},
		"the first flipped": {func(b []byte) []byte { b[strings.Index(string(b), "first")]++; return b }, 0, false},
		"second flipped":    {func(b []byte) []byte { b[strings.Index(string(b), "second")]++; return b }, 1, false},
		"the third flipped": {func(b []byte) []byte { b[strings.Index(string(b), "third")]++; return b }, 2, false},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			must(t, os.CopyFS(dir, os.DirFS(log)))
			file := filepath.Join(dir, streamsDir, StreamName(job, 1), "msgs", "1.blk")
			b, err := os.ReadFile(file)
			must(t, err)
			must(t, os.WriteFile(file, c.spoil(b), 0o600))
			i, err := InspectFolder(t.Context(), dir, time.Minute, DialOptions{})
			must(t, err)
			defer i.Close()
			streams, err := i.Streams(t.Context())
			must(t, err)
			records := 0
			err = i.Records(t.Context(), streams[1], func(Record) error { records++; return nil })
			if records != c.records || c.whole != (err == nil) {
				t.Errorf("%d records, error %v", records, err)
			}
			if !c.whole {
				wantError(t, "damage", err, ErrDamaged, "1.blk is damaged after ")
			}
		})
	}
}
