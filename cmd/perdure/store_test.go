package main

import (
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"
)

// bucket is a server that implements the S3 protocol.
type bucket struct {
	URL     string // URL of a store in the bucket
	backend gofakes3.Backend
	Fails   atomic.Int64 // how many of the next requests that write will fail
	Half    atomic.Bool  // fail about half of all requests, of any kind
	Saved   func()       // called after the first manifest or snapshot was written; may be nil

	saved        sync.Once
	server       http.Handler
	seen, failed atomic.Int64 // counted while Half is set
}

var savedObject = regexp.MustCompile(`\.(manifest|snapshot)$`)

// storeSecret must not appear anywhere in a run's directory.
const storeSecret = "s3cr3tThatNobodyIsToSee"

func newBucket(t testing.TB) *bucket {
	t.Helper()
	backend := s3mem.New()
	b := &bucket{backend: backend}
	must(t, backend.CreateBucket("bucket"))
	b.server = gofakes3.New(backend).Server()
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if (r.Method == http.MethodPut || r.Method == http.MethodPost) && b.Fails.Add(-1) >= 0 {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		if b.Half.Load() && b.seen.Add(1)*0x9E3779B1>>16&1 == 1 { // not alternating: a retry may fail as well
			b.failed.Add(1)
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		b.server.ServeHTTP(w, r)
		if b.Saved != nil && r.Method == http.MethodPut && savedObject.MatchString(r.URL.Path) {
			b.saved.Do(b.Saved)
		}
	}))
	s.Config.ErrorLog = log.New(io.Discard, "", 0) // it would log lost connections
	s.Start()
	t.Cleanup(s.Close)
	b.URL = "s3://bucket/a?endpoint=" + s.URL
	return b
}

// at returns the URL of another store in the bucket.
func (b *bucket) at(prefix string) string { return strings.Replace(b.URL, "/a?", "/"+prefix+"?", 1) }

// object returns the content of an object in the store.
func (b *bucket) object(t testing.TB, name string) string {
	t.Helper()
	found, err := b.backend.GetObject("bucket", "a/"+name, nil)
	must(t, err)
	defer found.Contents.Close()
	content, err := io.ReadAll(found.Contents)
	must(t, err)
	return string(content)
}

// stores starts a command with the bucket's credentials.
func stores(t testing.TB, args ...string) *process {
	t.Helper()
	p := command(t, args...)
	p.Env = append(os.Environ(), "AWS_ACCESS_KEY_ID=test", "AWS_SECRET_ACCESS_KEY="+storeSecret)
	p.Start()
	return p
}

// TestStore: checkpoints are in a bucket and nowhere else. Restarted servers, commands and the next run read them from
// there.
func TestStore(t *testing.T) {
	t.Parallel()
	for _, recovery := range []string{"checkpoint:10", "resend:10", "scar:4,1/4"} {
		t.Run(recovery, func(t *testing.T) {
			t.Parallel()
			b, dir := newBucket(t), newFolder(t)
			s := stores(t, small("--recovery", recovery, "--store", b.URL, "--fault", "kill:server:0@clock:25", "--out",
				dir)...).succeeds(dir)
			if !strings.HasPrefix(recovery, "scar") {
				sameModel(t, s, one(t), dir)
			}
			if files, err := os.ReadDir(filepath.Join(dir, "checkpoint")); err != nil || len(files) > 0 {
				t.Errorf("the run's checkpoint directory contains %v (%v)", files, err)
			}
			must(t, filepath.WalkDir(dir, func(name string, d os.DirEntry, err error) error {
				if err == nil && d.Type().IsRegular() && strings.Contains(fileOf(t, name), storeSecret) {
					t.Errorf("%s contains the secret", name)
				}
				return err
			}))
			if model := b.object(t, "model.safetensors"); model != fileOf(t, dir, "model.safetensors") {
				t.Errorf("the store has a model of %d bytes, which differs from the run's", len(model))
			}
			for _, where := range []string{dir, b.URL} {
				p := stores(t, "checkpoint", "verify", where)
				if code, out, errs := p.Wait(); code != 0 || !strings.Contains(out, ": complete: ") {
					t.Errorf("verify %s: exit code %d: %s%s", where, code, out, errs)
				}
			}
			stores(t, small("--store", b.URL, "--out", newFolder(t))...).
				refused(2, "taken: it belongs to job [0-9a-f]+ ")
			again, to := []string{"train", "--quiet", "--resume", dir, "--clocks", "80"}, newFolder(t)
			stores(t, append(again, "--out", to)...).refused(2, "has its checkpoints in s3://bucket/a.*--store")
			s = stores(t, append(again, "--out", to, "--store", b.at("b"))...).succeeds(to)
			if !strings.HasPrefix(recovery, "scar") {
				sameModel(t, s, one(t, "--clocks", "80"), to)
			}
		})
	}
}

// TestStoreAway: while the store rejects writes, saving waits and reports this. Training continues once the store
// accepts writes again.
func TestStoreAway(t *testing.T) {
	t.Parallel()
	b, dir := newBucket(t), newFolder(t)
	b.Saved = func() { b.Fails.Store(40) }
	args := small("--recovery", "checkpoint:10", "--store", b.URL, "--out", dir)
	p := stores(t, append(args[:1:1], args[2:]...)...) // not --quiet
	s := p.succeeds(dir)
	sameModel(t, s, one(t), dir)
	if b.Fails.Load() >= 0 {
		t.Errorf("%d requests have not failed yet", b.Fails.Load())
	}
	p.Says("cannot (go on|continue).*: .*s3://bucket/a")
}

// TestStoreRefused: an invalid store is reported at the start in one line, and no directory is left.
func TestStoreRefused(t *testing.T) {
	t.Parallel()
	b := newBucket(t)
	for store, want := range map[string]string{
		"here":                                  "--store: .*file:///DIR or s3://BUCKET",
		"s3://BUCKET":                           "--store: .*bucket name",
		"s3://key:" + storeSecret + "@bucket/x": "--store: .*must not contain secrets",
		strings.Replace(b.URL, "bucket", "other", 1):            "--store: .*s3://other/a.*bucket does not exist",
		"s3://bucket/x?endpoint=http://127.0.0.1:1":             "--store: .*s3://bucket/x.*connection refused",
		"file://" + filepath.ToSlash(os.Args[0]) + "/is/a/file": "--store: .*not a directory",
	} {
		dir := newFolder(t)
		p := stores(t, small("--store", store, "--out", dir)...)
		code, out, errs := p.Wait()
		if strings.Contains(out+errs, storeSecret) {
			t.Errorf("--store %s prints the secret: %s%s", store, out, errs)
		}
		if code == 0 || strings.Count(errs, "\n") != 1 {
			t.Errorf("--store %s: exit code %d: %s%s", store, code, out, errs)
		}
		p.refused(code, want)
		if _, err := os.Stat(dir); err == nil {
			t.Errorf("--store %s leaves a directory", store)
		}
	}
	wantRefused(t, 2, "--store applies to checkpoints", small("--recovery", "none", "--store", "file:///x")...)
	wantRefused(t, 2, "file:///DIR", "checkpoint", "ls", "file://x")
}
