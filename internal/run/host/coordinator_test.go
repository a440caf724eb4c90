package host

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/run/role"
	"github.com/perdure/perdure/internal/run/rundir"
	"github.com/perdure/perdure/internal/run/settings"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// job returns a request for a job of a user's programs, with the given file text.
func job(text string, workers int) Job {
	return Job{
		Name: "job.yaml", Text: []byte(text),
		Flags: &settings.Flags{
			Version: "test", Workload: settings.OwnWorkload, Grace: "7s", Keep: 1,
			Shape: settings.Shape{
				Workers: workers, Servers: 1, Shards: 2, Consistency: "bsp", Recovery: "none", Clocks: 5,
			},
		},
	}
}

// TestSettle checks that the first start creates the job, that a later one finds it, and that a different job is
// rejected with the name of the difference. Values that are not in run.json are taken from the new request. An
// incomplete directory is created again.
func TestSettle(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "job")
	c := &Coordinator{Dir: dir, Job: job("one", 2), Log: slog.New(slog.DiscardHandler)}
	first, err := c.openJob(t.Context())
	must(t, err)
	again, err := c.openJob(t.Context())
	must(t, err)
	grace := again.Checkpoints.Grace
	if again.Job.ID != first.Job.ID || grace != first.Checkpoints.Grace || grace == 0 {
		t.Errorf("second start: job %s and grace %v; the first had %s and %v", again.Job.ID,
			again.Checkpoints.Grace, first.Job.ID, first.Checkpoints.Grace)
	}
	c.Job = job("another text", 2)
	if again, err = c.openJob(t.Context()); err != nil || again.Job.ID != first.Job.ID {
		t.Errorf("the same job with another text: %v, %v", again.Job.ID, err)
	}
	c.Job = job("three", 3)
	_, err = c.openJob(t.Context())
	if !errors.Is(err, perdure.ErrUsage) || !strings.Contains(err.Error(), "job.slots is 2 there, but 3 is requested") {
		t.Errorf("different job: %v", err)
	}
	must(t, os.Remove(filepath.Join(dir, rundir.RunFile)))
	must(t, os.Remove(filepath.Join(dir, rundir.RequestFile)))
	third, err := c.openJob(t.Context())
	if err != nil || third.Job.ID == first.Job.ID || third.Job.Slots != 3 {
		t.Errorf("after an incomplete start: %+v, %v", third.Job, err)
	}
	must(t, os.Remove(filepath.Join(dir, rundir.RunFile)))
	must(t, os.WriteFile(filepath.Join(dir, "mine"), nil, 0o666))
	_, err = c.openJob(t.Context())
	if !errors.Is(err, perdure.ErrUsage) || !strings.Contains(err.Error(), "not empty") {
		t.Errorf("directory with other files: %v", err)
	}
	if _, err := os.Stat(filepath.Join(dir, "mine")); err != nil {
		t.Error(err)
	}
}

// TestSignal checks that a signal ends the coordinator but not its job.
func TestSignal(t *testing.T) {
	c := &Coordinator{
		Dir: filepath.Join(t.TempDir(), "job"), Job: job("", 1), Reach: settings.Reach{Listen: "127.0.0.1:0"},
		Control: "127.0.0.1:0",
		Log:     slog.New(slog.DiscardHandler),
	}
	for range 2 {
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- c.Run(ctx) }()
		cancel()
		if err := <-ended; err != nil && !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	}
	if _, err := os.Stat(filepath.Join(c.Dir, "summary.json")); err == nil {
		t.Error("the job is over")
	}
}

// TestTarget checks that a coordinator lists its metrics under an address that other machines can dial, until it ends.
func TestTarget(t *testing.T) {
	c := &Coordinator{
		Dir: t.TempDir(), Watch: role.Observability{Metrics: "0.0.0.0:0"}, Log: slog.New(slog.DiscardHandler),
	}
	list := func() string {
		b, err := os.ReadFile(filepath.Join(c.Dir, rundir.TargetsFile))
		must(t, err)
		return strings.Join(strings.Fields(string(b)), "")
	}
	must(t, c.showTarget("j1", "10.0.0.5:7000")) // without metrics
	c.hideTarget()
	if _, err := os.Stat(filepath.Join(c.Dir, rundir.TargetsFile)); err == nil {
		t.Error("a coordinator without metrics is listed")
	}
	var err error
	c.debug, err = c.Watch.Open(t.Context(), c.Log)
	must(t, err)
	defer c.debug.Close()
	must(t, c.showTarget("j1", "10.0.0.5:7000"))
	_, port, _ := net.SplitHostPort(c.debug.Addr())
	want := `[{"targets":["10.0.0.5:` + port + `"],"labels":{"id":"0","job":"j1","role":"coordinator"}}]`
	if got := list(); got != want {
		t.Errorf("list %s; want %s", got, want)
	}
	c.hideTarget()
	if got := list(); got != "[]" {
		t.Errorf("list at the end: %s", got)
	}
}

// TestSameRegistry checks that coordinators that name the members of etcd in another order, or some of them, have the
// same job, and that other prefixes and texts make other jobs.
func TestSameRegistry(t *testing.T) {
	id := func(registry, text string) string {
		return (&Coordinator{Registry: registry, Job: job(text, 1)}).jobID()
	}
	first := id("etcd://a:1,b:1,c:1/jobs/one", "text")
	for _, same := range []string{"etcd://c:1,a:1,b:1/jobs/one", "etcd://b:1/jobs/one/", "etcd://a:1/jobs/one?ca=/c"} {
		if got := id(same, "text"); got != first {
			t.Errorf("%s: %s; want %s", same, got, first)
		}
	}
	if id("etcd://a:1/jobs/two", "text") == first || id("etcd://a:1/jobs/one", "other") == first {
		t.Error("a different job has the same ID")
	}
}
