package metrics_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.yaml.in/yaml/v3"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/membership"
	"github.com/perdure/perdure/internal/data/registry"
	"github.com/perdure/perdure/internal/proc/coordinator"
	"github.com/perdure/perdure/internal/proc/httpdebug"
	"github.com/perdure/perdure/internal/proc/server"
	"github.com/perdure/perdure/internal/run/metrics"
	"github.com/perdure/perdure/internal/run/rundir"
	"github.com/perdure/perdure/internal/testcluster"
	"github.com/perdure/perdure/worker"
)

// sick is a registry that can be made to fail.
type sick struct {
	registry.Registry
	fails chan bool // has capacity 1
}

type sickLease struct {
	registry.Lease
	of *sick
}

var errSick = errors.New("no room")

func (s *sick) Acquire(ctx context.Context, h registry.Holder) (registry.Lease, error) {
	l, err := s.Registry.Acquire(ctx, h)
	return sickLease{l, s}, err
}

func (l sickLease) Save(ctx context.Context, doc []byte, previous uint64) (uint64, error) {
	fails := <-l.of.fails
	l.of.fails <- fails
	if fails {
		return 0, errSick
	}
	return l.Lease.Save(ctx, doc, previous)
}

func (s *sick) set(fails bool) {
	<-s.fails
	s.fails <- fails
}

// job is a job of one worker and one server in memory, with a probe of each process.
type job struct {
	coordinator, server, worker *httpdebug.Probe

	sick *sick
	lead *coordinator.Coordinator
	w    *worker.Client
	t    *worker.Table
}

func begin(t *testing.T, ctx context.Context, h *testcluster.Hosts) *job {
	t.Helper()
	j := &job{sick: &sick{fails: make(chan bool, 1)}}
	j.sick.fails <- false
	var counted *registry.SaveCounter
	_, err := h.StartCoordinator(testcluster.Job("bsp", "checkpoint:2", 1, 1, 4), func(c *coordinator.Config) {
		j.sick.Registry = c.Registry
		counted = registry.CountSaves(j.sick)
		c.Registry = counted
	})
	must(t, err)
	j.lead = h.Leader()
	who := metrics.Identity{Job: "job-1", Version: "v", ID: -1}
	j.coordinator = metrics.Coordinator(ctx, j.lead, counted, who)
	joined := make(chan server.Monitor, 1)
	h.StartServer("server:0", func(c *server.Config) { c.OnJoined = func(e server.Monitor, _ int) { joined <- e } })
	j.w, err = h.NewProcess("worker:0").Dial(ctx, 0)
	must(t, err)
	j.server, j.worker = metrics.Server(<-joined, who), metrics.Worker(j.w, who)
	j.t, err = j.w.Table(ctx, perdure.TableSpec{Name: "t", Rows: 8, Dim: 2, Rule: perdure.Rule{Kind: perdure.RuleAdd}})
	must(t, err)
	return j
}

// clock does one clock.
func (j *job) clock(t *testing.T, ctx context.Context) {
	t.Helper()
	must(t, j.t.GetRun(ctx, 0, make([]float32, 16)))
	must(t, j.t.IncRun(0, make([]float32, 16)))
	_, err := j.w.Clock(ctx)
	must(t, err)
}

func (j *job) end(t *testing.T) {
	t.Helper()
	must(t, j.w.Close())
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func gatherer(p *httpdebug.Probe) prometheus.Gatherer {
	return httpdebug.Gatherer(func() *httpdebug.Probe { return p })
}

// ended ignores the ends of processes.
var ended = testcluster.Options{Ended: func(*testcluster.Process, error) {}}

// TestExported checks that each role exports the metrics of All, except those that depend on the job, and no others,
// and that Prometheus's linter finds no problem.
func TestExported(t *testing.T) {
	testcluster.RunVirtual(t, time.Minute, ended, func(t *testing.T, ctx context.Context, h *testcluster.Hosts) {
		j := begin(t, ctx, h)
		defer j.end(t)
		for range 5 {
			j.clock(t, ctx)
		}
		depends := []string{"perdure_server_log_unread_records"} // a job without a log lacks it
		probes := map[string]*httpdebug.Probe{"coordinator": j.coordinator, "server": j.server, "worker": j.worker}
		for role, p := range probes {
			g := gatherer(p)
			problems, err := testutil.GatherAndLint(g)
			if err != nil || len(problems) > 0 {
				t.Errorf("%s: %v, %v", role, problems, err)
			}
			families, err := g.Gather()
			must(t, err)
			var got, want []string
			for _, f := range families {
				if name := f.GetName(); strings.HasPrefix(name, "perdure_") {
					got = append(got, name)
				}
			}
			for _, m := range slices.Concat(metrics.All()[""], metrics.All()[role]) {
				if !slices.Contains(depends, m.Name) {
					want = append(want, m.Name)
				}
			}
			slices.Sort(want)
			if !slices.Equal(got, want) {
				t.Errorf("%s shows\n%s\nwant\n%s", role, strings.Join(got, "\n"), strings.Join(want, "\n"))
			}
		}
	})
}

// TestStuckLoop checks that a coordinator whose loop is stuck is unhealthy until the loop continues.
func TestStuckLoop(t *testing.T) {
	testcluster.RunVirtual(t, time.Minute, ended, func(t *testing.T, ctx context.Context, h *testcluster.Hosts) {
		j := begin(t, ctx, h)
		defer j.end(t)
		if seen := j.coordinator.Ask(ctx); seen.Err != nil || seen.Activity != "it leads job job-1, at clock 0" {
			t.Fatalf("%+v", seen)
		}
		at, resume := make(chan struct{}), make(chan struct{})
		h.Go(func() {
			// does not wait for an end
			_ = j.lead.Ask(ctx, func(*membership.Core, coordinator.Latest) { close(at); <-resume })
		})
		<-at
		if seen := j.coordinator.Ask(ctx); seen.Err == nil || seen.Took != metrics.StuckTimeout {
			t.Errorf("%+v", seen)
		}
		close(resume)
		if seen := j.coordinator.Ask(ctx); seen.Err != nil {
			t.Error(seen.Err)
		}
	})
}

// TestSickRegistry checks that a coordinator that cannot save the job record is healthy but not ready, and reports the
// reason.
func TestSickRegistry(t *testing.T) {
	testcluster.RunVirtual(t, time.Minute, ended, func(t *testing.T, ctx context.Context, h *testcluster.Hosts) {
		j := begin(t, ctx, h)
		defer j.end(t)
		j.sick.set(true)
		table := make(chan error, 1)
		h.Go(func() { // changes the view
			spec := perdure.TableSpec{Name: "u", Rows: 4, Dim: 1, Rule: perdure.Rule{Kind: perdure.RuleAdd}}
			_, err := j.w.Table(ctx, spec)
			table <- err
		})
		seen := j.coordinator.Ask(ctx)
		for seen.BlockedOn == "" && seen.Err == nil { // the coordinator may not have received the table yet
			<-time.After(time.Millisecond)
			seen = j.coordinator.Ask(ctx)
		}
		if !strings.HasSuffix(seen.BlockedOn, "no room") {
			t.Errorf("%+v", seen)
		}
		n, err := testutil.GatherAndCount(gatherer(j.coordinator), "perdure_coordinator_registry_failures_total",
			"perdure_coordinator_min_clock")
		if err != nil || n != 1 {
			t.Errorf("%d of two metrics, one of which needs the loop: %v", n, err)
		}
		j.sick.set(false)
		must(t, <-table)
		if seen := j.coordinator.Ask(ctx); seen.BlockedOn != "" || seen.NotReady != "" || seen.Err != nil {
			t.Errorf("%+v", seen)
		}
	})
}

// TestEndedWorker checks that a client that has ended is not ready.
func TestEndedWorker(t *testing.T) {
	testcluster.RunVirtual(t, time.Minute, ended, func(t *testing.T, ctx context.Context, h *testcluster.Hosts) {
		j := begin(t, ctx, h)
		if seen := j.worker.Ask(ctx); seen.NotReady != "" || seen.Activity != "it is worker:0, at clock 0" {
			t.Errorf("%+v", seen)
		}
		j.end(t)
		if seen := j.worker.Ask(ctx); !strings.HasPrefix(seen.NotReady, "it has ended") {
			t.Errorf("%+v", seen)
		}
	})
}

// all returns all exported series by name.
func all() map[string]*httpdebug.Metric {
	names := map[string]*httpdebug.Metric{}
	for _, list := range metrics.All() {
		for _, m := range list {
			names[m.Name] = m
			if m.Kind == httpdebug.Summary {
				names[m.Name+"_sum"], names[m.Name+"_count"] = m, m
			}
		}
	}
	return names
}

// example returns one of the example files for monitoring.
func example(t *testing.T, file string) []byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "..", "examples", "watch", file))
	must(t, err)
	return text
}

// TestNamed checks that the metrics in the dashboard and the alerts exist.
func TestNamed(t *testing.T) {
	names := all()
	name := regexp.MustCompile(`\bperdure_[a-z_]+\b`)
	for _, file := range []string{"board.json", "alerts.yml"} {
		found := name.FindAllString(string(example(t, file)), -1)
		if len(found) < 5 {
			t.Errorf("%s names %v", file, found)
		}
		for _, n := range found {
			if names[n] == nil {
				t.Errorf("%s names %s, which is not exported", file, n)
			}
		}
	}
}

// TestDiscovery checks that the files in Prometheus's configuration have valid names, and that runs write them.
func TestDiscovery(t *testing.T) {
	list := regexp.MustCompile(`- files: \[([^,\]]*)\]`)
	files := list.FindAllStringSubmatch(string(example(t, "prometheus.yml")), -1)
	if len(files) != 1 {
		t.Fatalf("it reads %v", files)
	}
	valid := regexp.MustCompile(`^[^*]*(\*[^/]*)?\.(json|yml|yaml)$`) // as in Prometheus
	if file := files[0][1]; !valid.MatchString(file) || filepath.Base(file) != rundir.TargetsFile {
		t.Errorf("it reads %s", file)
	}
}

// labelled returns the labels that the metrics in an expression have, including those of every target.
func labelled(t *testing.T, expr string) (may []string) {
	t.Helper()
	if by := regexp.MustCompile(`by \(([^)]*)\)`).FindStringSubmatch(expr); by != nil {
		return strings.Split(by[1], ", ")
	}
	for _, n := range regexp.MustCompile(`\bperdure_[a-z_]+\b`).FindAllString(expr, -1) {
		m := all()[n]
		if m == nil {
			t.Fatalf("%s is not exported", n)
		}
		may = append(may, m.Labels...)
	}
	return append(may, slices.Collect(maps.Keys(metrics.NewTarget("", "", "", "").Labels))...)
}

// TestLabels checks that the labels in the dashboard and the alerts exist in every job.
func TestLabels(t *testing.T) {
	var board struct {
		Panels []struct {
			Title   string
			Targets []struct {
				Expr   string
				Legend string `yaml:"legendFormat"`
			}
		}
	}
	var alerts struct {
		Groups []struct {
			Rules []struct {
				Alert, Expr string
				Annotations map[string]string
			}
		}
	}
	must(t, yaml.Unmarshal(example(t, "board.json"), &board))
	must(t, yaml.Unmarshal(example(t, "alerts.yml"), &alerts))
	if len(board.Panels) < 10 || len(alerts.Groups) != 1 || len(alerts.Groups[0].Rules) < 5 {
		t.Fatalf("%d panels, %d groups", len(board.Panels), len(alerts.Groups))
	}
	check := func(where, expr, text string, use *regexp.Regexp) {
		t.Helper()
		for _, l := range use.FindAllStringSubmatch(text, -1) {
			if may := labelled(t, expr); !slices.Contains(may, l[1]) {
				t.Errorf("%s: %s has no label %s, only %v", where, expr, l[1], may)
			}
		}
	}
	inside := regexp.MustCompile(`[{,]\s*([a-z_]+)\s*(?:=|!)`) // in {…}
	within := regexp.MustCompile(`by \([^)]*\)`)
	matches := func(where, expr string) { // sums may be selected by other labels
		check(where, within.ReplaceAllString(expr, ""), expr, inside)
		for _, by := range within.FindAllString(expr, -1) {
			check(where, within.ReplaceAllString(expr, ""), by, regexp.MustCompile(`([a-z_]+)(?:,|\))`))
		}
	}
	for _, p := range board.Panels {
		for _, x := range p.Targets {
			matches(p.Title, x.Expr)
			check(p.Title, x.Expr, x.Legend, regexp.MustCompile(`\{\{([a-z_]+)\}\}`))
		}
	}
	for _, r := range alerts.Groups[0].Rules {
		matches(r.Alert, r.Expr)
		check(r.Alert, r.Expr, r.Annotations["summary"], regexp.MustCompile(`\$labels\.([a-z_]+)`))
	}
}

// TestPage checks that the user documentation has a table of all metrics.
func TestPage(t *testing.T) {
	b, err := os.ReadFile(filepath.Join("..", "..", "..", "docs", "guide", "metrics.md"))
	must(t, err)
	page := string(b)
	for _, role := range slices.Sorted(maps.Keys(metrics.All())) {
		for _, m := range metrics.All()[role] {
			labels := ""
			if len(m.Labels) > 0 {
				labels = "{" + strings.Join(m.Labels, ",") + "}"
			}
			row := fmt.Sprintf("| `%s%s` | %s | %s |\n", m.Name, labels, m.Kind, m.Help)
			if !strings.Contains(page, row) {
				t.Errorf("the page lacks, of %q\n%s", role, row)
			}
		}
	}
	names := all()
	for _, n := range regexp.MustCompile("(?m)^\\| `(perdure_[a-z_]+)").FindAllStringSubmatch(page, -1) {
		if names[n[1]] == nil {
			t.Errorf("the page has %s, which is not exported", n[1])
		}
	}
}
