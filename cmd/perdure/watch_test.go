package main

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	perdurelib "github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/proc/transport"
	"github.com/perdure/perdure/internal/run/metrics"
)

// watched returns the metrics addresses of a run's processes by ROLE:ID.
func watched(t *testing.T, dir string, n int) map[string]string {
	t.Helper()
	var targets []struct {
		Targets []string
		Labels  map[string]string
	}
	await(t, func() bool {
		b, err := os.ReadFile(filepath.Join(dir, "metrics.json"))
		return err == nil && json.Unmarshal(b, &targets) == nil && len(targets) == n
	}, func() string { return "metrics.json never lists all processes" })
	at := map[string]string{}
	for _, x := range targets {
		at[x.Labels["role"]+":"+x.Labels["id"]] = x.Targets[0]
	}
	return at
}

// reserved returns an address of this machine that no other process is given until the test ends.
func reserved(t *testing.T) string {
	t.Helper()
	addr, hold, err := transport.Reserve("127.0.0.1")
	must(t, err)
	t.Cleanup(func() { _ = hold.Close() })
	return addr
}

// look requests a path from a process. Code 0 means that it does not answer in time.
func look(t *testing.T, addr, path string, patience time.Duration) (code int, body string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+path, nil)
	must(t, err)
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	answer, err := client.Do(r)
	if err != nil {
		return 0, err.Error()
	}
	defer answer.Body.Close()
	b, err := io.ReadAll(answer.Body)
	if err != nil {
		return 0, err.Error()
	}
	return answer.StatusCode, string(b)
}

// values returns a process's metrics by name and labels, as NAME or NAME{LABEL=VALUE,…}.
func values(t *testing.T, addr string) map[string]float64 {
	t.Helper()
	code, text := look(t, addr, "/metrics", time.Minute)
	if code != http.StatusOK {
		t.Fatalf("%s: %d %s", addr, code, text)
	}
	if problems, err := promlint.New(strings.NewReader(text)).Lint(); err != nil || len(problems) > 0 {
		t.Errorf("%s: %v, %v", addr, problems, err)
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(text))
	must(t, err)
	all := map[string]float64{}
	for name, f := range families {
		for _, m := range f.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, l.GetName()+"="+l.GetValue())
			}
			key := name
			if len(labels) > 0 {
				key += "{" + strings.Join(labels, ",") + "}"
			}
			all[key] = m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetSummary().GetSampleCount())
		}
	}
	return all
}

// awaitReady waits until a process is ready. If ready is false, it waits until the process reports that it is not ready
// or does not answer.
func awaitReady(t *testing.T, dir, addr string, ready bool) {
	t.Helper()
	var code int
	var body string
	await(t, func() bool {
		code, body = look(t, addr, "/readyz", time.Second)
		return (code == http.StatusOK) == ready
	}, func() string { return "readiness stays: " + strconv.Itoa(code) + " " + body + "\n" + logs(dir) })
}

// TestWatch: every process of a run serves its health and metrics. A killed process does not, and its successor does at
// the same address.
func TestWatch(t *testing.T) {
	t.Parallel()
	dir := newFolder(t)
	p := atClock30(t, dir, "--metrics", "127.0.0.1:0", "--log-format", "json")
	at := watched(t, dir, 6)
	for who, addr := range at {
		role, id, _ := strings.Cut(who, ":")
		awaitReady(t, dir, addr, true)
		if code, body := look(t, addr, "/healthz", time.Minute); code != http.StatusOK {
			t.Errorf("%s: %d %s", who, code, body)
		}
		got := values(t, addr)
		for _, m := range metrics.All()[role] {
			if len(m.Labels) == 0 && m.Name != "perdure_server_log_unread_records" {
				if _, shown := got[m.Name]; !shown {
					t.Errorf("%s does not export %s", who, m.Name)
				}
			}
		}
		if got["perdure_ready"] != 1 || got["perdure_healthy"] != 1 || got["perdure_network_sent_bytes_total"] == 0 ||
			got["process_start_time_seconds"] == 0 {
			t.Errorf("the metrics of %s:%s are %v", role, id, got)
		}
	}
	if got := values(t, at["coordinator:0"]); got["perdure_coordinator_min_clock"] < 30 ||
		got["perdure_coordinator_places{place_role=server,state=alive}"] != 2 ||
		got["perdure_coordinator_slots_active"] != 3 || got["perdure_coordinator_deaths_total{of=server}"] != 0 {
		t.Errorf("the coordinator's metrics are %v", got)
	}
	if got := values(t, at["server:1"]); got["perdure_server_shards{part=head}"] != 3 ||
		got["perdure_server_checkpoint_save_seconds"] < 3*2 || got["perdure_server_updates_applied_total"] < 3*3*30 {
		t.Errorf("a server's metrics are %v", got)
	}
	if got := values(t, at["worker:2"]); got["perdure_worker_clock"] < 30 ||
		got["perdure_worker_updates_sent_total"] < 6*30 ||
		got["perdure_worker_time_seconds_total{cause=compute}"] <= 0 {
		t.Errorf("a worker's metrics are %v", got)
	}
	wantOut(t, 0, []string{"fault", "--run", dir, "kill:server:1@0s+1s"}, "planned")
	awaitReady(t, dir, at["server:1"], false)
	awaitReady(t, dir, at["server:1"], true)
	awaitEvent(t, dir, "server:1 serves again", 1)
	if got := values(t, at["coordinator:0"]); got["perdure_coordinator_deaths_total{of=server}"] != 1 ||
		got["perdure_coordinator_recoveries_total{of=server}"] != 1 ||
		got["perdure_coordinator_outage_seconds_total"] <= 0 ||
		got["perdure_coordinator_generation"] != 2 || got["perdure_coordinator_place_alive{place=server:1}"] != 1 {
		t.Errorf("after a death the coordinator's metrics are %v", got)
	}
	wantOut(t, 0, []string{"fault", "--run", dir, "freeze:worker:0@0s+1s"}, "planned")
	awaitReady(t, dir, at["worker:0"], false)
	awaitReady(t, dir, at["worker:0"], true)
	if code, _, errs := p.Stop(); code != exitSignal {
		t.Errorf("exit code %d: %s", code, errs)
	}
	watched(t, dir, 0)
	checkLogs(t, dir)
}

// checkLogs: every line of a process's log, except those of its parent, is JSON and names its process.
func checkLogs(t *testing.T, dir string) {
	t.Helper()
	for file, role := range map[string]string{
		"coordinator.log": "coordinator", "server-1.log": "server", "worker-0.log": "worker",
	} {
		n := 0
		for line := range strings.Lines(fileOf(t, dir, "logs", file)) {
			if strings.HasPrefix(line, "===") || strings.HasPrefix(line, "perdure: ") {
				continue
			}
			n++
			var of struct {
				Msg, Job, Role string
				ID             *int
			}
			if err := json.Unmarshal([]byte(line), &of); err != nil || of.Msg == "" || of.Job == "" ||
				of.Role != role || of.ID == nil {
				t.Errorf("%s: %v in %s", file, err, line)
			}
		}
		if n == 0 {
			t.Errorf("%s has no lines", file)
		}
	}
}

// TestWatchedCounts: the counters of a job without failures agree with its summary.
func TestWatchedCounts(t *testing.T) {
	t.Parallel()
	const clocks, shards = 20, 4
	dir := newFolder(t)
	p, coordinator := up(t, dir, "--workers", "1", "--servers", "2", "--shards", "4", "--clocks", "20", "--recovery",
		"none", "--metrics", "127.0.0.1:0")
	w, err := joins(t.Context(), dir, coordinator, 0)
	must(t, err)
	defer w.Close()
	table, err := w.Table(t.Context(), perdurelib.TableSpec{
		Name: "t", Rows: 100, Dim: 3, Rule: perdurelib.Rule{Kind: perdurelib.RuleAdd},
	})
	must(t, err)
	values300 := make([]float32, 300)
	for range clocks {
		must(t, table.GetRun(t.Context(), 0, values300))
		must(t, table.IncRun(0, values300))
		_, err := w.Clock(t.Context())
		must(t, err)
	}
	at := watched(t, dir, 3) // the worker is this test, not a child of the run's supervisor
	var applied, answered, rows, sent, received float64
	await(t, func() bool {
		applied, answered, rows, sent, received = 0, 0, 0, 0, 0
		for _, server := range []string{"server:0", "server:1"} {
			got := values(t, at[server])
			applied += got["perdure_server_updates_applied_total"]
			answered += got["perdure_server_reads_answered_total"]
			rows += got["perdure_server_rows{table=t}"]
			sent += got["perdure_network_sent_bytes_total"]
			received += got["perdure_network_received_bytes_total"]
		}
		return applied >= clocks*shards
	}, func() string { return "not all updates are applied" })
	l := w.Snapshot()
	if applied != clocks*shards || answered < clocks*shards || rows != 100 || l.Counters.UpdatesSent != clocks*shards ||
		l.Resent != 0 || sent < float64(l.Counters.BytesPulled) || received < float64(l.Counters.BytesPushed) {
		t.Errorf("%v updates applied, %v reads answered, %v rows, %v bytes sent, %v received; the worker: %+v", applied,
			answered, rows, sent, received, l)
	}
	var got map[string]float64
	await(t, func() bool { // servers report once a second
		got = values(t, at["coordinator:0"])
		return got["perdure_coordinator_updates_contained"] == applied
	}, func() string { return "the coordinator never counts all updates" })
	must(t, w.Finish(t.Context()))
	must(t, w.Close())
	if code, out, errs := p.Wait(); code != 0 {
		t.Fatalf("exit code %d: %s%s", code, out, errs)
	}
	s := summary(t, dir)
	if *s.UpdatesLost != int64(got["perdure_coordinator_updates_lost_total"]) ||
		*s.ClocksRedone != int64(got["perdure_coordinator_clocks_redone_total"]) ||
		s.UpdatesApplied == nil || float64(*s.UpdatesApplied) != applied {
		t.Errorf("the summary is %+v, but the coordinator's metrics are %v", s, got)
	}
}

// freeAndTaken returns a free address and a listener at the next port. Both are below the range from which systems
// assign ports, so other tests do not take the free one.
func freeAndTaken(t *testing.T) (string, net.Listener) {
	t.Helper()
	for port := 20000; port < 30000; port += 2 {
		free := net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
		first, err := net.Listen("tcp", free)
		if err != nil {
			continue
		}
		l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port+1)))
		must(t, first.Close())
		if err == nil {
			return free, l
		}
	}
	t.Fatal("no two free ports between 20000 and 30000")
	return "", nil
}

// TestWatchRefused: invalid settings yield a one-line error before any process starts.
func TestWatchRefused(t *testing.T) {
	t.Parallel()
	before, l := freeAndTaken(t)
	defer l.Close()
	dir := newFolder(t)
	wantRefused(t, exitError, `^perdure: cannot listen on \S+ for the metrics of server:0: address already in use;`,
		small("--metrics", before, "--out", dir)...)
	if _, err := os.Stat(dir); err == nil {
		t.Error("the rejected run left a directory")
	}
	wantRefused(t, exitUsage, `--metrics 9464: write HOST:PORT`, small("--metrics", "9464", "--out", dir)...)
	wantRefused(t, exitUsage, `--log-format`, small("--log-format", "xml", "--out", dir)...)
	wantRefused(t, exitError, `cannot listen on \S+ for metrics: address already in use`,
		"server", "--join", "127.0.0.1:1", "--run", dir, "--metrics", l.Addr().String())
}

// TestProgramIsWatched: the README's program, with the main function of the user guide, serves its metrics at the
// address from perdure up. So does its replacement after a kill.
func TestProgramIsWatched(t *testing.T) {
	t.Parallel()
	page := fileOf(t, "../../docs/guide", "watch.md")
	m := regexp.MustCompile("(?s)\n```go\n(func main.*?)```").FindStringSubmatch(page)
	if m == nil {
		t.Fatal("the page does not contain the program")
	}
	program := readmeProgram(t, func(source string) string {
		source = strings.Replace(source, "\t\"github.com/perdure/perdure/worker\"\n",
			"\t\"github.com/perdure/perdure/watch\"\n\t\"github.com/perdure/perdure/worker\"\n", 1)
		return regexp.MustCompile(`(?s)func main.*?\n}\n`).ReplaceAllLiteralString(source, m[1])
	})
	dir := newFolder(t)
	p := start(t, "up", "--workers", "1", "--servers", "1", "--clocks", "100000000", "--recovery", "resend:1000",
		"--exec", program, "--metrics", "127.0.0.1:0", "--out", dir)
	addr := watched(t, dir, 3)["worker:0"]
	var got map[string]float64
	await(t, func() bool {
		if code, _ := look(t, addr, "/readyz", time.Second); code == http.StatusOK {
			got = values(t, addr)
		}
		return got["perdure_worker_clock"] > 0
	}, func() string { return "the metrics show no clock\n" + logs(dir) })
	for _, m := range metrics.All()["worker"] {
		if _, shown := got[m.Name]; len(m.Labels) == 0 && !shown {
			t.Errorf("the program does not export %s", m.Name)
		}
	}
	if got["perdure_ready"] != 1 || got["perdure_worker_updates_sent_total"] == 0 {
		t.Errorf("the program's metrics are %v", got)
	}
	wantOut(t, 0, []string{"fault", "--run", dir, "kill:worker:0@0s"}, "planned")
	awaitEvent(t, dir, "worker:0 resumes at clock", 1)
	awaitReady(t, dir, addr, true)
	if code, _, errs := p.Stop(); code != exitSignal {
		t.Errorf("exit code %d: %s", code, errs)
	}
}
