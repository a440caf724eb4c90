package coordinator_test

import (
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/membership"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/coordinator"
	"github.com/perdure/perdure/internal/testcluster"
)

// TestStandbyIsLoggedOnce checks that a standby worker, which asks for a slot again and again, appears in the log once
// and without a warning. Other rejected connections are logged each time.
func TestStandbyIsLoggedOnce(t *testing.T) {
	var log strings.Builder // used only by the loop while it runs
	inJob(t, testcluster.Job("bsp", "none", 1, 1, 1), func(t *testing.T, on *lone) {
		ask := func(process string, slot int) {
			conn := peer(t, on.Net, wire.Hello{
				Role: wire.RoleWorker, Index: slot, Process: process, PID: len(process), Nonce: "drawn",
				Version: process,
			})
			var r wire.Refusal
			if await(t, conn, wire.KindRefuse, &r); !r.Temporary {
				t.Errorf("%s is refused permanently: %s", process, r.Reason)
			}
			_ = conn.Close()
		}
		_ = peer(t, on.Net, wire.Hello{
			Role: wire.RoleWorker, Index: 0, Process: "holder", PID: 1, Nonce: "drawn", Version: "held",
		})
		<-time.After(10 * time.Millisecond) // it has the slot
		for range 5 {
			ask("first", -1)
			ask("second", -1)
		}
		ask("third", 0)
		ask("escape\x1b[2J", -1) // its version could change a user's terminal
		checkStandbys(t, on, "first", "second", "")
		<-time.After(time.Second)
		on.Stop(testcluster.CoordinatorHost)
		for text, want := range map[string]int{
			`level=INFO msg="a process is on standby"`: 3, `level=WARN msg="rejected a connection"`: 1,
		} {
			if n := strings.Count(log.String(), text); n != want {
				t.Errorf("the log has %d times %q, want %d:\n%s", n, text, want, log.String())
			}
		}
	}, func(cfg *coordinator.Config) { cfg.Log = slog.New(slog.NewTextHandler(&log, nil)) })
}

// checkStandbys checks the versions of the processes on standby, in the order of their PIDs, and that all are gone when
// they have been silent for a while.
func checkStandbys(t *testing.T, on *lone, versions ...string) {
	t.Helper()
	if err := on.Ask(t.Context(), func(core *membership.Core, latest coordinator.Latest) {
		got := []string{}
		for _, p := range latest.Standbys(time.Now()) {
			got = append(got, p.Version)
		}
		if !slices.Equal(got, versions) || len(latest.Standbys(time.Now().Add(time.Minute))) != 0 {
			t.Errorf("standbys of the versions %q; want %q", got, versions)
		}
		holder := core.Record().Slots[0].Process
		if v := latest.Version(membership.Worker, 0, holder); v != "held" {
			t.Errorf("the slot's process has version %q", v)
		}
		if v := latest.Version(membership.Worker, 0, "another"); v != "" {
			t.Errorf("a process that is not connected has version %q", v)
		}
	}); err != nil {
		t.Error(err)
	}
}

// TestStandbyReceivesEnd checks that the coordinator waits for the next request of a standby worker before it ends, so
// that the worker does not keep looking for it.
func TestStandbyReceivesEnd(t *testing.T) {
	slow := func(cfg *coordinator.Config) { cfg.Linger = time.Minute }
	inJob(t, testcluster.Job("bsp", "none", 1, 1, 1), func(t *testing.T, on *lone) {
		ask := func() (r wire.Refusal) {
			conn := peer(t, on.Net, wire.Hello{
				Role: wire.RoleWorker, Index: -1, Process: "standby", PID: 1, Nonce: "drawn",
			})
			await(t, conn, wire.KindRefuse, &r)
			_ = conn.Close()
			return r
		}
		supervisor := peer(t, on.Net, wire.Hello{Role: wire.RoleSupervisor, Process: "supervisor"})
		await(t, supervisor, wire.KindWelcome, &wire.Welcome{})
		holder := peer(t, on.Net, wire.Hello{
			Role: wire.RoleWorker, Index: 0, Process: "holder", PID: 1, Nonce: "drawn",
		})
		<-time.After(10 * time.Millisecond) // it has the slot
		if r := ask(); !r.Temporary {
			t.Fatalf("a standby receives %+v", r)
		}
		if err := supervisor.Send(wire.Control(wire.KindOrder, wire.Order{Kind: "end", Spec: "enough"})); err != nil {
			t.Fatal(err)
		}
		_ = holder.Close()
		<-time.After(time.Second)
		if r := ask(); !r.JobEnded {
			t.Errorf("after the end, a standby receives %+v", r)
		}
		ended := time.Now()
		if err := on.process.Wait(); !errors.Is(err, perdure.ErrStopped) || time.Since(ended) > time.Second {
			t.Errorf("it ended with %v, %v after all processes knew", err, time.Since(ended))
		}
	}, slow)
}
