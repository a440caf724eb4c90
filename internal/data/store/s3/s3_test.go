package s3

import (
	"errors"
	"io"
	"io/fs"
	"log"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"
	"github.com/minio/minio-go/v7"

	"github.com/perdure/perdure/internal/data/store"
	"github.com/perdure/perdure/internal/data/store/storetest"
)

func TestMain(m *testing.M) {
	minio.DefaultRetryUnit, minio.DefaultRetryCap = time.Millisecond, 4*time.Millisecond
	retryPauses = []time.Duration{time.Millisecond, time.Millisecond, time.Millisecond}
	m.Run()
}

// secret must occur in no address and no error.
const secret = "s3cr3tKeyThatNobodyIsToSee"

// server starts a server with one bucket and returns the address of a store in it.
func server(t *testing.T) Address {
	t.Helper()
	t.Setenv("AWS_ACCESS_KEY_ID", "test")
	t.Setenv("AWS_SECRET_ACCESS_KEY", secret)
	t.Setenv("AWS_REGION", "")
	backend := s3mem.New()
	if err := backend.CreateBucket("bucket"); err != nil {
		t.Fatal(err)
	}
	s := httptest.NewUnstartedServer(gofakes3.New(backend).Server())
	s.Config.ErrorLog = log.New(io.Discard, "", 0) // suppress its messages about lost connections
	s.Start()
	t.Cleanup(s.Close)
	return Address{Bucket: "bucket", Prefix: "a/b", Endpoint: s.URL}
}

func open(t *testing.T, a Address, o Options) *Store {
	t.Helper()
	s, err := Open(t.Context(), a, o)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestStore(t *testing.T) {
	storetest.Run(t, func(t *testing.T) store.Store { return open(t, server(t), Options{}) })
	t.Run("no prefix", func(t *testing.T) {
		a := server(t)
		a.Prefix = ""
		s := open(t, a, Options{})
		if err := errors.Join(s.Prepare(), storetest.Put(s, "o", []byte("x"))); err != nil {
			t.Fatal(err)
		}
		storetest.Has(t, s, "o", []byte("x"))
		if all, err := s.List(""); err != nil || len(all) != 1 || all[0].Name != "o" || s.String() != "s3://bucket" {
			t.Errorf("%s: %v, %v", s, all, err)
		}
	})
}

// way handles a request.
type way func(next http.RoundTripper, r *http.Request) (*http.Response, error)

type round struct {
	next http.RoundTripper
	way
}

func (r round) RoundTrip(req *http.Request) (*http.Response, error) { return r.way(r.next, req) }

func by(w way) Options {
	return Options{WrapTransport: func(next http.RoundTripper) http.RoundTripper { return round{next, w} }}
}

func answer(r *http.Request, status int) (*http.Response, error) {
	if r.Body != nil {
		_ = r.Body.Close()
	}
	return &http.Response{
		StatusCode: status, Status: http.StatusText(status), Proto: "HTTP/1.1", Request: r, Header: http.Header{},
		Body: io.NopCloser(strings.NewReader("")),
	}, nil
}

// TestHalfFails: a server that fails half of all requests, before or after executing them, is only slow. Stored objects
// exist, and objects whose Put failed do not.
func TestHalfFails(t *testing.T) {
	for seed := range uint64(2) {
		var mu sync.Mutex
		rng := rand.New(rand.NewPCG(seed, 0))
		a := server(t)
		s := open(t, a, by(func(next http.RoundTripper, r *http.Request) (*http.Response, error) {
			mu.Lock()
			what := rng.IntN(8)
			mu.Unlock()
			switch what {
			case 0:
				return answer(r, http.StatusServiceUnavailable)
			case 1:
				return nil, &net.OpError{Op: "dial", Net: "tcp", Err: errors.New("refused")}
			}
			res, err := next.RoundTrip(r)
			if what < 4 && err == nil { // the request was executed, but the response is lost
				_ = res.Body.Close()
				return nil, &net.OpError{Op: "read", Net: "tcp", Err: errors.New("reset")}
			}
			return res, err
		}))
		good := open(t, a, Options{})
		put := map[string]bool{}
		for i, n := range []int{10, storetest.Large, 70_000, 0} {
			name, b := string(rune('a'+i)), storetest.Content(seed, n)
			err := errors.New("not tried")
			for range 20 {
				if err = storetest.Put(s, name, b); err == nil {
					break
				}
				if !store.Retryable(err) && !errors.Is(err, fs.ErrNotExist) {
					t.Fatalf("seed %d: put: %v", seed, err)
				}
			}
			if err != nil {
				t.Errorf("seed %d: %v", seed, err)
			}
			put[name] = true
			storetest.Has(t, good, name, b)
		}
		all, err := good.List("")
		if err != nil || len(all) != len(put) {
			t.Errorf("seed %d: %v, %v", seed, all, err)
		}
	}
}

// TestTruncated: when a read breaks, the remaining bytes are requested.
func TestTruncated(t *testing.T) {
	a := server(t)
	b := storetest.Content(1, 3<<20)
	if err := storetest.Put(open(t, a, Options{}), "o", b); err != nil {
		t.Fatal(err)
	}
	var asked atomic.Int64
	cut := func(each int64) way {
		return func(next http.RoundTripper, r *http.Request) (*http.Response, error) {
			res, err := next.RoundTrip(r)
			if err == nil && r.Method == http.MethodGet {
				asked.Add(1)
				res.Body = io.NopCloser(io.LimitReader(res.Body, each))
			}
			return res, err
		}
	}
	s := open(t, a, by(cut(1<<20)))
	storetest.Has(t, s, "o", b)
	if n := asked.Load(); n != 3 {
		t.Errorf("%d requests for 3 MiB at 1 MiB per response", n)
	}
	if _, err := store.Read(open(t, a, by(cut(0))), "o"); !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("a server that sends no data: %v", err)
	}

	// No bytes of a new object with the same name are used.
	s = open(t, a, by(func(next http.RoundTripper, r *http.Request) (*http.Response, error) {
		res, err := next.RoundTrip(r)
		if err == nil && r.Method == http.MethodGet && r.Header.Get("Range") != "" {
			_ = res.Body.Close()
			return answer(r, http.StatusPreconditionFailed)
		}
		if err == nil && r.Method == http.MethodGet {
			res.Body = io.NopCloser(io.LimitReader(res.Body, 1000))
		}
		return res, err
	}))
	if _, err := store.Read(s, "o"); !errors.Is(err, store.ErrCorrupt) {
		t.Errorf("replaced while it was read: %v", err)
	}
}

// TestRefused: each rejection has the kind that callers act on, in one line that names the store and contains no
// secret.
func TestRefused(t *testing.T) {
	a := server(t)
	status := func(n int) Options {
		return by(func(_ http.RoundTripper, r *http.Request) (*http.Response, error) { return answer(r, n) })
	}
	skewed := by(func(_ http.RoundTripper, r *http.Request) (*http.Response, error) {
		refused, err := answer(r, http.StatusForbidden)
		refused.Header.Set("Content-Type", "application/xml")
		refused.Body = io.NopCloser(strings.NewReader("<Error><Code>RequestTimeTooSkewed</Code><Message>The " +
			"difference between the request time and the current time is too large.</Message></Error>"))
		return refused, err
	})
	dead, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	away := Address{Bucket: "bucket", Endpoint: "http://" + dead.Addr().String()}
	if err := dead.Close(); err != nil {
		t.Fatal(err)
	}
	other := a
	other.Bucket = "other"
	for _, c := range []struct {
		name   string
		a      Address
		o      Options
		kind   error
		passes bool
	}{
		{"forbidden", a, status(http.StatusForbidden), store.ErrDenied, false},
		{"unknown", a, status(http.StatusUnauthorized), store.ErrDenied, false},
		{"full", a, status(http.StatusInsufficientStorage), store.ErrFull, true},
		{"broken", a, status(http.StatusInternalServerError), store.ErrUnavailable, true},
		{"busy", a, status(http.StatusServiceUnavailable), store.ErrUnavailable, true},
		{"nobody listens", away, Options{}, store.ErrUnavailable, true},
		{"no bucket", other, Options{}, store.ErrNoBucket, false},
		{"a clock that is wrong", a, skewed, store.ErrUnavailable, true},
	} {
		s := open(t, c.a, c.o)
		_, listErr := s.List("")
		for what, err := range map[string]error{
			"prepare": s.Prepare(), "put": storetest.Put(s, "o", []byte("x")), "list": listErr,
			"large": storetest.Put(s, "o", make([]byte, storetest.Large)),
		} {
			if !errors.Is(err, c.kind) || store.Retryable(err) != c.passes {
				t.Errorf("%s: %s: %v", c.name, what, err)
				continue
			}
			if text := err.Error(); strings.ContainsAny(text, "\n") || !strings.Contains(text, s.String()) ||
				strings.Contains(text, secret) {
				t.Errorf("%s: %s: %q", c.name, what, text)
			}
		}
	}
}

// TestNoCredentials: without credentials no request is sent.
func TestNoCredentials(t *testing.T) {
	a := server(t)
	none := filepath.Join(t.TempDir(), "none")
	for name, value := range map[string]string{
		"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": "", "AWS_ACCESS_KEY": "", "AWS_SECRET_KEY": "",
		"AWS_SHARED_CREDENTIALS_FILE": none, "AWS_CONFIG_FILE": none,
	} {
		t.Setenv(name, value)
	}
	s := open(t, a, by(func(http.RoundTripper, *http.Request) (*http.Response, error) {
		t.Error("a request was sent")
		return nil, errors.New("no")
	}))
	if err := s.Prepare(); !errors.Is(err, store.ErrDenied) || !strings.Contains(err.Error(), "AWS_ACCESS_KEY_ID") {
		t.Errorf("%v", err)
	}
}

// TestNoConditions: if the server does not support conditional puts, the store checks first whether the object exists.
func TestNoConditions(t *testing.T) {
	s := open(t, server(t), by(func(next http.RoundTripper, r *http.Request) (*http.Response, error) {
		if r.Header.Get("If-None-Match") != "" {
			return answer(r, http.StatusNotImplemented)
		}
		return next.RoundTrip(r)
	}))
	if err := s.PutNew("one", []byte("first")); err != nil {
		t.Fatal(err)
	}
	if err := s.PutNew("one", []byte("second")); !errors.Is(err, fs.ErrExist) {
		t.Errorf("second PutNew: %v", err)
	}
	storetest.Has(t, s, "one", []byte("first"))
}

// TestSilent: a silent server is given up after one attempt, before, within and after an object.
func TestSilent(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	t.Setenv("AWS_ACCESS_KEY_ID", "test")
	t.Setenv("AWS_SECRET_ACCESS_KEY", secret)
	s := open(t, Address{Bucket: "bucket", Endpoint: "http://" + l.Addr().String()},
		Options{SilenceTimeout: 20 * time.Millisecond})
	for what, err := range map[string]error{
		"prepare": s.Prepare(), "small": storetest.Put(s, "o", []byte("x")),
		"large": storetest.Put(s, "o", make([]byte, storetest.Large)),
	} {
		if !errors.Is(err, store.ErrUnavailable) || !strings.Contains(err.Error(), "does not answer") {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// TestBegun: the unfinished upload of a dead writer is listed and can be deleted.
func TestBegun(t *testing.T) {
	a := server(t)
	s := open(t, a, Options{})
	upload, err := s.client.NewMultipartUpload(t.Context(), a.Bucket, s.key("o"), minio.PutObjectOptions{})
	if err != nil {
		t.Fatal(err)
	}
	started, err := s.Unfinished()
	if err != nil || len(started) != 1 || !strings.HasSuffix(started[0].Name, upload) {
		t.Fatalf("%v, %v", started, err)
	}
	if of, ok := store.ParseUnfinished(started[0].Name); !ok || of != "o" {
		t.Errorf("%s would become %q", started[0].Name, of)
	}
	if all, err := s.List(""); err != nil || len(all) != 0 {
		t.Errorf("%v, %v", all, err)
	}
	for range 2 {
		if err := s.Delete(started[0].Name); err != nil {
			t.Error(err)
		}
	}
	if started, err := s.Unfinished(); err != nil || len(started) != 0 {
		t.Errorf("%v, %v", started, err)
	}
}

func TestParse(t *testing.T) {
	for _, c := range []struct {
		text string
		want Address
		back string // "" if equal to text
	}{
		{"s3://bucket", Address{Bucket: "bucket"}, ""},
		{"s3://bucket/", Address{Bucket: "bucket"}, "s3://bucket"},
		{"s3://bucket/a/b?region=eu-west-1", Address{Bucket: "bucket", Prefix: "a/b", Region: "eu-west-1"}, ""},
		{
			"s3://bucket/a/?endpoint=http://127.0.0.1:9000&region=x",
			Address{Bucket: "bucket", Prefix: "a", Endpoint: "http://127.0.0.1:9000", Region: "x"},
			"s3://bucket/a?endpoint=http://127.0.0.1:9000&region=x",
		},
		{
			"s3://bucket/a?endpoint=minio.example:9000",
			Address{Bucket: "bucket", Prefix: "a", Endpoint: "https://minio.example:9000"},
			"s3://bucket/a?endpoint=https://minio.example:9000",
		},
	} {
		got, err := Parse(c.text)
		back := c.back
		if back == "" {
			back = c.text
		}
		if err != nil || got != c.want || got.String() != back {
			t.Errorf("%s: %+v, as %s, %v", c.text, got, got, err)
		}
		if again, err := Parse(back); err != nil || again != got {
			t.Errorf("%s: %+v, %v", back, again, err)
		}
	}
	for text, want := range map[string]string{
		"s3://":                               "bucket name",
		"s3://B/x":                            "bucket name",
		"gs://bucket":                         "s3://BUCKET/PREFIX",
		"s3://key:" + secret + "@bucket/x":    "AWS_ACCESS_KEY_ID",
		"s3://bucket/x?secret_key=" + secret:  "AWS_ACCESS_KEY_ID",
		"s3://bucket/x?X-Amz-Token=" + secret: "AWS_ACCESS_KEY_ID",
		"s3://b.ok/x?endpoint=http://a:" + secret + "@h": "AWS_ACCESS_KEY_ID",
		"s3://bucket/../x":                     "invalid prefix",
		"s3://bucket/a b":                      "invalid prefix",
		"s3://bucket/x?endpoint=ftp://h":       "invalid endpoint",
		"s3://bucket/x?endpoint=http://h/path": "invalid endpoint",
		"s3://bucket/x?endpoint=http://":       "invalid endpoint",
		"s3://bucket/x?color=red":              `"color"`,
		"s3://bucket/x?region=a&region=b":      "region is given twice",
	} {
		if a, err := Parse(text); err == nil || !strings.Contains(err.Error(), want) ||
			strings.Contains(err.Error(), secret) {
			t.Errorf("%s: %+v, %v, want %q", text, a, err, want)
		}
	}
}
