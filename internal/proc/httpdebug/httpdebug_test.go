package httpdebug

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var silent = slog.New(slog.DiscardHandler)

// get sends a request to an Endpoint that does not listen.
func get(e *Endpoint, path string) (code int, body string) {
	w := httptest.NewRecorder()
	e.served.Handler.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
	return w.Code, w.Body.String()
}

// wants requests a path and checks the status code and that the answer contains words.
func wants(t *testing.T, e *Endpoint, path string, code int, words string) {
	t.Helper()
	if is, body := get(e, path); is != code || !strings.Contains(body, words) {
		t.Errorf("%s: %d %s; want %d, with %q", path, is, body, code, words)
	}
}

// TestStuck checks that a stuck process is reported in time, however many callers ask, and that it recovers.
func TestStuck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		work := make(chan struct{}, 1) // held while the process works
		var looks atomic.Int32
		e := prepare("", silent)
		wants(t, e, "/healthz", http.StatusOK, starting)
		wants(t, e, "/readyz", http.StatusServiceUnavailable, starting)
		wants(t, e, "/metrics", http.StatusOK, "go_goroutines")
		e.SetProbe(NewProbe(2*time.Second, func() State {
			looks.Add(1)
			work <- struct{}{}
			<-work
			return State{Activity: "it works"}
		}, nil))
		wants(t, e, "/healthz", http.StatusOK, "is working")
		wants(t, e, "/readyz", http.StatusOK, "it works")
		wants(t, e, "/metrics", http.StatusOK, "perdure_healthy 1")
		before := looks.Load()
		work <- struct{}{}
		began := time.Now()
		wants(t, e, "/healthz", http.StatusServiceUnavailable, "has not answered for 2s")
		if took := time.Since(began); took != 2*time.Second {
			t.Errorf("reported after %v, want 2s", took)
		}
		wants(t, e, "/readyz", http.StatusServiceUnavailable, "the process is stuck")
		wants(t, e, "/metrics", http.StatusOK, "perdure_healthy 0")
		if n := looks.Load() - before; n != 1 {
			t.Errorf("%d looks at a stuck process, want 1", n)
		}
		<-work
		synctest.Wait()
		wants(t, e, "/healthz", http.StatusOK, "is working")
	})
}

// slowReader is a client that does not read its response until it is allowed to.
type slowReader struct {
	*httptest.ResponseRecorder
	writes chan struct{} // closed when reading may start
}

func (s *slowReader) Write(b []byte) (int, error) {
	<-s.writes
	return s.ResponseRecorder.Write(b)
}

// TestScrapes checks that concurrent scrapes share one gathering, that those above MaxScrapes are rejected, and that a
// slow reader blocks no other scrape.
func TestScrapes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var looks atomic.Int32
		work := make(chan struct{})
		e := prepare("", silent)
		e.SetProbe(NewProbe(2*time.Second, func() State {
			looks.Add(1)
			<-work
			return State{Activity: "it works"}
		}, nil))
		const many = 100
		codes := make(chan int, many)
		for range many {
			go func() {
				code, _ := get(e, "/metrics")
				codes <- code
			}()
		}
		synctest.Wait()
		if refused := len(codes); refused != many-MaxScrapes || looks.Load() != 1 {
			t.Errorf("%d of %d scrapes were rejected, with %d looks", refused, many, looks.Load())
		}
		close(work)
		synctest.Wait()
		counts := map[int]int{}
		for range many {
			counts[<-codes]++
		}
		if counts[http.StatusOK] != MaxScrapes || counts[http.StatusServiceUnavailable] != many-MaxScrapes {
			t.Errorf("unexpected status codes: %v", counts)
		}
		writes := make(chan struct{})
		for range 2 * MaxScrapes {
			go e.served.Handler.ServeHTTP(&slowReader{httptest.NewRecorder(), writes},
				httptest.NewRequest(http.MethodGet, "/metrics", nil))
			synctest.Wait()
		}
		wants(t, e, "/metrics", http.StatusOK, "perdure_healthy 1")
		close(writes)
	})
}

// TestBounded checks that the metrics endpoint has the limits of NewHTTPServer.
func TestBounded(t *testing.T) {
	want := NewHTTPServer(nil)
	if s := prepare("", silent).served; s.ConnState == nil || s.MaxHeaderBytes != want.MaxHeaderBytes ||
		s.ReadTimeout != want.ReadTimeout || s.WriteTimeout != want.WriteTimeout || s.IdleTimeout != want.IdleTimeout {
		t.Errorf("unexpected limits: %+v", s)
	}
}

// TestReady checks that a process can be healthy but not ready, and that waiting for a disk does not make it unhealthy.
func TestReady(t *testing.T) {
	var look State
	e := prepare("", silent)
	e.SetProbe(NewProbe(time.Minute, func() State { return look }, nil))
	look = State{NotReady: "it has no slot"}
	wants(t, e, "/healthz", http.StatusOK, "is working")
	wants(t, e, "/readyz", http.StatusServiceUnavailable, "it has no slot\n")
	wants(t, e, "/metrics", http.StatusOK, "perdure_ready 0")
	look = State{BlockedOn: "waiting for the disk"}
	wants(t, e, "/healthz", http.StatusOK, "waiting for the disk\n")
	wants(t, e, "/readyz", http.StatusServiceUnavailable, "waiting for the disk\n")
	wants(t, e, "/other", http.StatusNotFound, "")
}

// TestMetrics checks that samples of the look and extra samples are exported.
func TestMetrics(t *testing.T) {
	counter := NewMetric(Counter, "perdure_test_cats_total", "Cats.", "colour")
	summary := NewMetric(Summary, "perdure_test_naps_seconds", "Naps of cats.")
	gauge := NewMetric(Gauge, "perdure_test_dogs", "Dogs.")
	p := NewProbe(time.Minute, func() State {
		return State{
			Samples: []Sample{counter.Sample(2, "black"), counter.Sample(1, "red"), summary.SummarySample(3, 1.5)},
		}
	}, func() []Sample { return []Sample{gauge.Sample(4)} })
	g := Gatherer(func() *Probe { return p })
	want := `
		# HELP perdure_test_cats_total Cats.
		# TYPE perdure_test_cats_total counter
		perdure_test_cats_total{colour="black"} 2
		perdure_test_cats_total{colour="red"} 1
		# HELP perdure_test_dogs Dogs.
		# TYPE perdure_test_dogs gauge
		perdure_test_dogs 4
		# HELP perdure_test_naps_seconds Naps of cats.
		# TYPE perdure_test_naps_seconds summary
		perdure_test_naps_seconds_sum 1.5
		perdure_test_naps_seconds_count 3
	`
	err := testutil.GatherAndCompare(g, strings.NewReader(want), "perdure_test_cats_total", "perdure_test_dogs",
		"perdure_test_naps_seconds")
	if err != nil {
		t.Error(err)
	}
	problems, err := testutil.GatherAndLint(g)
	if err != nil || len(problems) > 0 {
		t.Errorf("%v, %v", problems, err)
	}
}

// TestInUse checks the error for a port in use, and that OpenRetrying listens once the port is free.
func TestInUse(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	_, err = Open(addr, silent)
	if want := "cannot listen on " + addr + " for metrics: "; !errors.Is(err, syscall.EADDRINUSE) ||
		!strings.HasPrefix(err.Error(), want) || !strings.HasSuffix(err.Error(), "address for --metrics") {
		t.Errorf("unexpected error for a port in use: %v", err)
	}
	sent := make(lineWriter, 1)
	e := OpenRetrying(t.Context(), addr, slog.New(slog.NewTextHandler(sent, nil)))
	defer e.Close()
	if line := <-sent; !strings.Contains(line, "address already in use") {
		t.Errorf("unexpected log line: %s", line)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for ctx.Err() == nil {
		r, err := http.Get("http://" + addr + "/healthz")
		if err == nil {
			_ = r.Body.Close() // only the status code matters
			http.DefaultClient.CloseIdleConnections()
			if r.StatusCode != http.StatusOK {
				t.Errorf("status %s", r.Status)
			}
			return
		}
	}
	t.Error("no process listens on the freed port")
}

// lineWriter sends everything written to it over the channel.
type lineWriter chan string

func (c lineWriter) Write(b []byte) (int, error) {
	c <- string(b)
	return len(b), nil
}

func TestLoopback(t *testing.T) {
	for addr, want := range map[string]string{
		":9464": "127.0.0.1:9464", "0.0.0.0:1": "0.0.0.0:1", "[::1]:0": "[::1]:0", "9464": "", "a:b:c": "",
	} {
		if got, err := Loopback(addr); got != want || (err == nil) != (want != "") {
			t.Errorf("Loopback(%q) = %q, %v; want %q", addr, got, err, want)
		}
	}
}

// TestLog checks that each line names its process as far as it is known, in both formats.
func TestLog(t *testing.T) {
	var out bytes.Buffer
	log := NewLog(&out, JSON)
	log.Info("unnamed")
	SetIdentity(log, "", "server", -1)
	log.Info("no index yet")
	SetIdentity(log, "j1", "server", 2)
	log.With("shard", 3).Warn("a server", "err", errors.New("broken"))
	want := []map[string]any{
		{"msg": "unnamed", "level": "INFO"},
		{"msg": "no index yet", "level": "INFO", "role": "server"},
		{
			"msg": "a server", "level": "WARN", "role": "server", "job": "j1", "id": 2.0, "shard": 3.0, "err": "broken",
		},
	}
	lines := json.NewDecoder(&out)
	for _, w := range want {
		var got map[string]any
		if err := lines.Decode(&got); err != nil {
			t.Fatal(err)
		}
		delete(got, "time")
		if a, b := text(got), text(w); a != b {
			t.Errorf("got %s, want %s", a, b)
		}
	}
	out.Reset()
	log = NewLog(&out, "")
	SetIdentity(log, "j1", "worker", 0)
	log.Info("a worker", "clock", 7)
	if !strings.HasSuffix(out.String(), `level=INFO msg="a worker" clock=7 job=j1 role=worker id=0`+"\n") {
		t.Errorf("unexpected text line: %s", &out)
	}
	SetIdentity(silent, "j1", "worker", 0) // another kind of handler: does nothing
}

func text(v map[string]any) string {
	b, _ := json.Marshal(v) // v was decoded from JSON
	return string(b)
}
