package watch_test

import (
	"errors"
	"io"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"go.uber.org/goleak"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/proc/coordinator"
	"github.com/perdure/perdure/internal/proc/server"
	"github.com/perdure/perdure/internal/run/metrics"
	"github.com/perdure/perdure/internal/testcluster"
	"github.com/perdure/perdure/watch"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// get asks for a path of a program that is watched.
func get(t *testing.T, addr, path string) (code int, body string) {
	t.Helper()
	r, err := http.Get("http://" + addr + path)
	must(t, err)
	defer http.DefaultClient.CloseIdleConnections()
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	must(t, err)
	return r.StatusCode, string(text)
}

// wants asks, and looks for a code and for words in the answer.
func wants(t *testing.T, addr, path string, code int, words string) {
	t.Helper()
	if is, body := get(t, addr, path); is != code || !strings.Contains(body, words) {
		t.Errorf("%s: %d %s; want %d, with %q", path, is, body, code, words)
	}
}

// TestWatch: a program in Go is watched while it begins, while it works in its job, and once it has ended. It shows the
// metrics of a worker, all of them and no other, and Prometheus' own linter has nothing to say.
func TestWatch(t *testing.T) {
	ctx, h := testcluster.NewForTest(t, time.Minute, testcluster.Options{Ended: func(*testcluster.Process, error) {}})
	_, err := h.StartCoordinator(testcluster.Job("bsp", "none", 1, 1, 4), func(*coordinator.Config) {})
	must(t, err)
	h.StartServer("server:0", func(*server.Config) {})
	seen, err := watch.Open(":0", nil)
	must(t, err)
	defer seen.Close()
	if host, _, _ := net.SplitHostPort(seen.Addr()); host != "127.0.0.1" {
		t.Errorf("without a host it listens on %s", seen.Addr())
	}
	wants(t, seen.Addr(), "/readyz", http.StatusServiceUnavailable, "starting")
	wants(t, seen.Addr(), "/metrics", http.StatusOK, "go_goroutines")
	c, err := h.NewProcess("worker:0").Dial(ctx, 0)
	must(t, err)
	seen.Show(c)
	wants(t, seen.Addr(), "/readyz", http.StatusOK, "it is worker:0, at clock 0\n")
	table, err := c.Table(ctx, perdure.TableSpec{
		Name: "t", Rows: 8, Dim: 2, Rule: perdure.Rule{Kind: perdure.RuleAdd},
	})
	must(t, err)
	for range 3 {
		must(t, table.GetRun(ctx, 0, make([]float32, 16)))
		must(t, table.IncRun(0, make([]float32, 16)))
		_, err := c.Clock(ctx)
		must(t, err)
	}
	wants(t, seen.Addr(), "/healthz", http.StatusOK, "the process is working")
	_, body := get(t, seen.Addr(), "/metrics")
	for _, line := range []string{
		"\nperdure_worker_clock 3\n", "\nperdure_ready 1\n", "\nperdure_healthy 1\n",
		`perdure_process_info{go="go`, `perdure_id="0",perdure_job="` + c.Job().ID + `",perdure_role="worker",`,
	} {
		if !strings.Contains(body, line) {
			t.Errorf("it does not show %q:\n%s", line, body)
		}
	}
	checkNames(t, body)
	must(t, c.Close())
	wants(t, seen.Addr(), "/readyz", http.StatusServiceUnavailable, "it has ended")
	must(t, seen.Close())
	if r, err := http.Get("http://" + seen.Addr() + "/metrics"); err == nil {
		r.Body.Close()
		t.Error("it answers after it was closed")
	}
}

// checkNames checks what a scrape has against the list of all metrics.
func checkNames(t *testing.T, body string) {
	t.Helper()
	problems, err := promlint.New(strings.NewReader(body)).Lint()
	if err != nil || len(problems) > 0 {
		t.Errorf("%v, %v", problems, err)
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(body))
	must(t, err)
	got := slices.DeleteFunc(slices.Sorted(maps.Keys(families)), func(name string) bool {
		return !strings.HasPrefix(name, "perdure_")
	})
	var want []string
	for _, m := range slices.Concat(metrics.All()[""], metrics.All()["worker"]) {
		want = append(want, m.Name)
	}
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("it shows\n%v, want\n%v", got, want)
	}
}

// TestAddress: where nobody says where, there is nothing, which costs nothing and shows nothing. What is no address is
// one line, and so is a port in use that the program has chosen; one that it was given is no reason to end.
func TestAddress(t *testing.T) {
	t.Setenv(watch.EnvMetrics, "")
	seen, err := watch.Open("", nil)
	must(t, err)
	seen.Show(nil)
	if seen.Addr() != "" || seen.Close() != nil {
		t.Errorf("without an address it listens on %q", seen.Addr())
	}
	t.Setenv(watch.EnvMetrics, "9464")
	for _, addr := range []string{"", "9464", "a:b:c"} {
		if _, err := watch.Open(addr, nil); !errors.Is(err, perdure.ErrUsage) ||
			!strings.Contains(err.Error(), "write HOST:PORT") {
			t.Errorf("%q: %v", addr, err)
		}
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	addr := l.Addr().String()
	want := "watch: cannot listen on " + addr + ": address already in use; choose another address"
	if _, err := watch.Open(addr, nil); err == nil || err.Error() != want {
		t.Errorf("a port in use: %v; want %s", err, want)
	}
	t.Setenv(watch.EnvMetrics, addr)
	seen, err = watch.Open("", nil)
	must(t, err)
	must(t, seen.Close())
	must(t, l.Close())
	seen, err = watch.Open("", nil)
	must(t, err)
	defer seen.Close()
	wants(t, addr, "/healthz", http.StatusOK, "starting")
}

var _ io.Closer = (*watch.Watch)(nil)
