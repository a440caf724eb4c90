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

// get asks an Eye that does not listen.
func get(e *Eye, path string) (code int, body string) {
	w := httptest.NewRecorder()
	e.served.Handler.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
	return w.Code, w.Body.String()
}

// wants asks for a path, and looks for a code and for words in the answer.
func wants(t *testing.T, e *Eye, path string, code int, words string) {
	t.Helper()
	if is, body := get(e, path); is != code || !strings.Contains(body, words) {
		t.Errorf("%s: %d %s; want %d, with %q", path, is, body, code, words)
	}
}

// TestStuck: a process whose work is stuck says so in time, however many ask, and says when it goes on again.
func TestStuck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		work := make(chan struct{}, 1) // whoever has it may go on
		var looks atomic.Int32
		e := prepare("", silent)
		wants(t, e, "/healthz", http.StatusOK, begins)
		wants(t, e, "/readyz", http.StatusServiceUnavailable, begins)
		wants(t, e, "/metrics", http.StatusOK, "go_goroutines")
		e.Show(NewProbe(2*time.Second, func() Look {
			looks.Add(1)
			work <- struct{}{}
			<-work
			return Look{Does: "it works"}
		}, nil))
		wants(t, e, "/healthz", http.StatusOK, "goes on")
		wants(t, e, "/readyz", http.StatusOK, "it works")
		wants(t, e, "/metrics", http.StatusOK, "perdure_healthy 1")
		before := looks.Load()
		work <- struct{}{}
		began := time.Now()
		wants(t, e, "/healthz", http.StatusServiceUnavailable, "has not answered for 2s")
		if took := time.Since(began); took != 2*time.Second {
			t.Errorf("it said so after %v", took)
		}
		wants(t, e, "/readyz", http.StatusServiceUnavailable, "its work is stuck")
		wants(t, e, "/metrics", http.StatusOK, "perdure_healthy 0")
		if n := looks.Load() - before; n != 1 {
			t.Errorf("%d looks at work that is stuck; want one", n)
		}
		<-work
		synctest.Wait()
		wants(t, e, "/healthz", http.StatusOK, "goes on")
	})
}

// slowReader is whoever asks, and takes no answer until it is told to.
type slowReader struct {
	*httptest.ResponseRecorder
	writes chan struct{} // closed once it takes it
}

func (s *slowReader) Write(b []byte) (int, error) {
	<-s.writes
	return s.ResponseRecorder.Write(b)
}

// TestScrapes: however many scrape at once, a few wait for one gathering of numbers, and the others are told to come
// again; who reads slowly keeps nobody waiting.
func TestScrapes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var looks atomic.Int32
		work := make(chan struct{})
		e := prepare("", silent)
		e.Show(NewProbe(2*time.Second, func() Look {
			looks.Add(1)
			<-work
			return Look{Does: "it works"}
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
		if refused := len(codes); refused != many-MostScrapes || looks.Load() != 1 {
			t.Errorf("%d of %d scrapes are refused at once, and there are %d looks", refused, many, looks.Load())
		}
		close(work)
		synctest.Wait()
		counts := map[int]int{}
		for range many {
			counts[<-codes]++
		}
		if counts[http.StatusOK] != MostScrapes || counts[http.StatusServiceUnavailable] != many-MostScrapes {
			t.Errorf("they are answered %v", counts)
		}
		writes := make(chan struct{})
		for range 2 * MostScrapes {
			go e.served.Handler.ServeHTTP(&slowReader{httptest.NewRecorder(), writes},
				httptest.NewRequest(http.MethodGet, "/metrics", nil))
			synctest.Wait()
		}
		wants(t, e, "/metrics", http.StatusOK, "perdure_healthy 1")
		close(writes)
	})
}

// TestBounded: a process that is watched is served within the bounds of NewHTTPServer.
func TestBounded(t *testing.T) {
	want := NewHTTPServer(nil)
	if s := prepare("", silent).served; s.ConnState == nil || s.MaxHeaderBytes != want.MaxHeaderBytes ||
		s.ReadTimeout != want.ReadTimeout || s.WriteTimeout != want.WriteTimeout || s.IdleTimeout != want.IdleTimeout {
		t.Errorf("it is served by %+v", s)
	}
}

// TestReady: a process may be healthy and not ready, and a disk that takes its time makes it no less healthy.
func TestReady(t *testing.T) {
	var look Look
	e := prepare("", silent)
	e.Show(NewProbe(time.Minute, func() Look { return look }, nil))
	look = Look{NotReady: "it has no place"}
	wants(t, e, "/healthz", http.StatusOK, "goes on")
	wants(t, e, "/readyz", http.StatusServiceUnavailable, "it has no place\n")
	wants(t, e, "/metrics", http.StatusOK, "perdure_ready 0")
	look = Look{Waits: "it waits for its disk"}
	wants(t, e, "/healthz", http.StatusOK, "it waits for its disk\n")
	wants(t, e, "/readyz", http.StatusServiceUnavailable, "it waits for its disk\n")
	wants(t, e, "/other", http.StatusNotFound, "")
}

// TestMetrics: what a look has is shown, and what is known beside it, also while nobody answers.
func TestMetrics(t *testing.T) {
	counter := NewMetric(Counter, "perdure_test_cats_total", "Cats.", "colour")
	summary := NewMetric(Summary, "perdure_test_naps_seconds", "Naps of cats.")
	gauge := NewMetric(Gauge, "perdure_test_dogs", "Dogs.")
	p := NewProbe(time.Minute, func() Look {
		return Look{Samples: []Sample{counter.Is(2, "black"), counter.Is(1, "red"), summary.Sums(3, 1.5)}}
	}, func() []Sample { return []Sample{gauge.Is(4)} })
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

// TestInUse: a port in use is one clear line; whoever insists listens there once it is free.
func TestInUse(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	_, err = Open(addr, silent)
	if want := "cannot listen on " + addr + " for metrics: "; !errors.Is(err, syscall.EADDRINUSE) ||
		!strings.HasPrefix(err.Error(), want) || !strings.HasSuffix(err.Error(), "; choose another --metrics") {
		t.Errorf("a port in use: %v", err)
	}
	told := make(told, 1)
	e := Insist(t.Context(), addr, slog.New(slog.NewTextHandler(told, nil)))
	defer e.Close()
	if line := <-told; !strings.Contains(line, "address already in use") {
		t.Errorf("it says %s", line)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for ctx.Err() == nil {
		r, err := http.Get("http://" + addr + "/healthz")
		if err == nil {
			_ = r.Body.Close() // only its code counts
			http.DefaultClient.CloseIdleConnections()
			if r.StatusCode != http.StatusOK {
				t.Errorf("it answers %s", r.Status)
			}
			return
		}
	}
	t.Error("nobody listens there")
}

// told hands on what is written.
type told chan string

func (c told) Write(b []byte) (int, error) {
	c <- string(b)
	return len(b), nil
}

func TestLoopback(t *testing.T) {
	for addr, want := range map[string]string{
		":9464": "127.0.0.1:9464", "0.0.0.0:1": "0.0.0.0:1", "[::1]:0": "[::1]:0", "9464": "", "a:b:c": "",
	} {
		if got, err := Loopback(addr); got != want || (err == nil) != (want != "") {
			t.Errorf("%s is %q, %v; want %q", addr, got, err, want)
		}
	}
}

// TestLog: each line says who has written it, as far as that is known, in both formats.
func TestLog(t *testing.T) {
	var out bytes.Buffer
	log := NewLog(&out, JSON)
	log.Info("nobody knows")
	Name(log, "", "server", -1)
	log.Info("a newcomer")
	Name(log, "j1", "server", 2)
	log.With("shard", 3).Warn("a server", "err", errors.New("broken"))
	want := []map[string]any{
		{"msg": "nobody knows", "level": "INFO"},
		{"msg": "a newcomer", "level": "INFO", "role": "server"},
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
			t.Errorf("%s, want %s", a, b)
		}
	}
	out.Reset()
	log = NewLog(&out, "")
	Name(log, "j1", "worker", 0)
	log.Info("a worker", "clock", 7)
	if !strings.HasSuffix(out.String(), `level=INFO msg="a worker" clock=7 job=j1 role=worker id=0`+"\n") {
		t.Errorf("as text: %s", &out)
	}
	Name(silent, "j1", "worker", 0) // is of another kind
}

func text(v map[string]any) string {
	b, _ := json.Marshal(v) // it came from there
	return string(b)
}
