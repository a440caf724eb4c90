package localrun

import (
	"encoding/json"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/run/metrics"
	"github.com/perdure/perdure/internal/run/rundir"
	"github.com/perdure/perdure/internal/run/settings"
)

func runOf(servers, workers int) *settings.Run {
	return &settings.Run{Job: perdure.JobSpec{ID: "j1", Servers: servers, Slots: workers}}
}

// listed returns the addresses and seats in a run's directory, without the job, which is the same for all.
func listed(t *testing.T, dir string) (addrs, places []string) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(dir, rundir.TargetsFile))
	if err != nil {
		t.Fatal(err)
	}
	var all []metrics.Target
	if err := json.Unmarshal(b, &all); err != nil {
		t.Fatal(err)
	}
	for _, a := range all {
		if len(a.Targets) != 1 || len(a.Labels) != 3 || a.Labels["job"] != "j1" {
			t.Errorf("target %+v", a)
		}
		addrs, places = append(addrs, a.Targets...), append(places, a.Labels["role"]+":"+a.Labels["id"])
	}
	return addrs, places
}

// TestTargets checks that the address of a seat never changes. The file follows processes that join and leave, and is
// empty at the end.
func TestTargets(t *testing.T) {
	dir := t.TempDir()
	r, err := newTargets(&Observability{Metrics: ":0"}, runOf(1, 2), nil)
	if err != nil {
		t.Fatal(err)
	}
	r.setDir(dir)
	tell := func(text string) { t.Error(text) }
	first := r.addrOf(wire.RoleCoordinator, 0)
	r.addrOf(wire.RoleServer, 0)
	r.addrOf(wire.RoleWorker, 0)
	r.update(nil, tell)
	if addrs, places := listed(t, dir); !slices.Equal(places, []string{"coordinator:0", "server:0", "worker:0"}) ||
		addrs[0] != first || first != r.addrOf(wire.RoleCoordinator, 0) || !strings.HasPrefix(first, "127.0.0.1:") {
		t.Errorf("at the start: %v at %v", places, addrs)
	}
	r.addrOf(wire.RoleWorker, 7) // it joins without having been planned
	left := []wire.MemberProgress{{Role: wire.RoleWorker, State: "left"}, {Role: wire.RoleServer, State: "dead"}}
	r.update(left, tell)
	if addrs, places := listed(t, dir); !slices.Equal(places, []string{"coordinator:0", "server:0", "worker:7"}) {
		t.Errorf("later: %v at %v", places, addrs)
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	if _, places := listed(t, dir); len(places) > 0 {
		t.Errorf("at the end: %v", places)
	}
	var none *targets
	none.update(left, tell)
	if none.addrOf(wire.RoleServer, 0) != "" || none.Close() != nil {
		t.Error("a run without metrics has targets")
	}
}

// TestFixedPorts checks that each seat has a predictable port, and that a port in use is reported in one line.
func TestFixedPorts(t *testing.T) {
	r := &targets{host: "127.0.0.1", port: 9464, servers: 2}
	for want, p := range map[int]member{
		9464: {wire.RoleCoordinator, 0}, 9465: {wire.RoleServer, 0}, 9466: {wire.RoleServer, 1},
		9467: {wire.RoleWorker, 0},
	} {
		if got := r.fixed(p); got != "127.0.0.1:"+strconv.Itoa(want) {
			t.Errorf("%v is at %s; want port %d", p, got, want)
		}
	}
	if got := r.fixed(member{wire.RoleWorker, 60_000}); got != "" {
		t.Errorf("worker without a port has address %s", got)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	want := "cannot listen on " + l.Addr().String() + " for the metrics of coordinator: address already in use; " +
		"choose another address for --metrics"
	if _, err := newTargets(
		&Observability{Metrics: l.Addr().String()},
		runOf(1, 1),
		nil,
	); err == nil ||
		err.Error() != want {
		t.Errorf("a port in use: %v", err)
	}
	for _, wrong := range []string{"9464", "127.0.0.1:65534", "127.0.0.1:-1", "127.0.0.1:http"} {
		if _, err := newTargets(&Observability{Metrics: wrong}, runOf(1, 1), nil); !errors.Is(err, perdure.ErrUsage) {
			t.Errorf("--metrics %s: %v", wrong, err)
		}
	}
	warned := ""
	r, err = newTargets(&Observability{Metrics: "0.0.0.0:0"}, runOf(1, 1), func(line string) { warned = line })
	if err != nil || !strings.Contains(warned, "machines can reach") {
		t.Errorf("on an address that others can reach: %q, %v ", warned, err)
	} else if err := r.Close(); err != nil {
		t.Error(err)
	}
}
