package main

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// denies returns the URL of a bucket that rejects the given methods.
func denies(t *testing.T, methods ...string) string {
	t.Helper()
	b := newBucket(t)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for _, m := range methods {
			if r.Method == m {
				w.Header().Set("Content-Type", "application/xml")
				w.WriteHeader(http.StatusForbidden)
				_, _ = w.Write([]byte(`<Error><Code>AccessDenied</Code><Message>no</Message></Error>`))
				return
			}
		}
		b.server.ServeHTTP(w, r)
	}))
	t.Cleanup(s.Close)
	return "s3://bucket/a?endpoint=" + s.URL
}

// TestStoreDenied: a run that lacks permission to read or write its checkpoint store reports this at its start in one
// line, and leaves no files. Commands that read the store do the same.
func TestStoreDenied(t *testing.T) {
	t.Parallel()
	places := map[string]string{
		denies(t, "PUT", "POST"):                "--store: .*s3://bucket/a.*AccessDenied",
		denies(t, "GET", "HEAD", "PUT", "POST"): "--store: .*s3://bucket/a.*AccessDenied",
		"file:///sys/perdure-own":               "--store: .*/sys/perdure-own.*(not permitted|denied|read-only)",
	}
	for place, want := range places {
		if strings.HasPrefix(place, "file:") && runtime.GOOS != "linux" {
			continue // other systems have no known directory that root cannot write to
		}
		dir := newFolder(t)
		stores(t, small("--store", place, "--out", dir)...).refused(exitError, want)
		if _, err := os.Stat(dir); err == nil {
			t.Errorf("--store %s leaves a directory", place)
		}
	}
	stores(t, "checkpoint", "ls", denies(t, "GET")).refused(exitError, "s3://bucket/a.*AccessDenied")
}

// TestStoreHalfFails: the job ends with the same model although half of all requests fail after the first checkpoint,
// also while a server dies.
func TestStoreHalfFails(t *testing.T) {
	t.Parallel()
	b, dir := newBucket(t), newFolder(t)
	b.Saved = func() { b.Half.Store(true) }
	s := stores(t, small("--recovery", "checkpoint:20", "--store", b.URL, "--out", dir, "--fault",
		"kill:server:0@clock:25")...).succeeds(dir)
	b.Half.Store(false)
	sameModel(t, s, one(t), dir)
	if failed, all := b.failed.Load(), b.seen.Load(); failed < all/4 || failed < 5 {
		t.Errorf("%d of %d requests have failed", failed, all)
	}
	v := stores(t, "checkpoint", "verify", dir)
	if code, out, errs := v.Wait(); code != 0 || !strings.Contains(out, ": complete: ") {
		t.Errorf("verify: exit code %d: %s%s", code, out, errs)
	}
	if model := b.object(t, "model.safetensors"); model != fileOf(t, dir, "model.safetensors") {
		t.Errorf("the store has a model of %d bytes, which differs from the run's", len(model))
	}
}

// TestPruneStoreAlive: a store cannot be pruned by its URL while its run is active, unless the user forces it.
func TestPruneStoreAlive(t *testing.T) {
	t.Parallel()
	dir, place := newFolder(t), "file://"+filepath.ToSlash(filepath.Join(t.TempDir(), "store"))
	p := start(t, small("--clocks", "1000000", "--store", place, "--out", dir)...)
	awaitEvent(t, dir, "is durable", 1)
	prune := []string{"checkpoint", "prune", place, "--keep", "1"}
	wantRefused(t, exitUsage, "taken: it belongs to job [0-9a-f]+ .softmax., which may still be running",
		prune...)
	p.Stop()
	wantRefused(t, exitUsage, "which may still be running", prune...)
	wantOut(t, 0, append(prune, "--force"), "keep clock ", "\n")
}
