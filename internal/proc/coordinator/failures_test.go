package coordinator_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/membership"
	"github.com/perdure/perdure/internal/core/protocol"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/coordinator"
	"github.com/perdure/perdure/internal/proc/transport"
	"github.com/perdure/perdure/internal/testcluster"
)

// failing is a job with a supervisor and a host. Worker 0 is a process of the host or of the supervisor.
type failing struct {
	*testing.T
	on         *lone
	supervisor transport.Conn
	host       transport.Conn
}

const (
	hostName = "a name that nobody guesses"
	arrives  = 10 * time.Millisecond // transmission time, in virtual time
)

func inFailing(t *testing.T, most int, test func(f *failing)) {
	t.Helper()
	inFailingJob(t, testcluster.Job("bsp", "resend:5", 2, 1, 1), most, test)
}

func inFailingJob(t *testing.T, job perdure.JobSpec, most int, test func(f *failing)) {
	t.Helper()
	inJob(t, job, func(t *testing.T, on *lone) {
		f := &failing{T: t, on: on}
		f.supervisor = peer(t, on.Net, wire.Hello{Role: wire.RoleSupervisor, Process: "supervisor"})
		f.host = peer(t, on.Net, wire.Hello{Role: wire.RoleObserver, Process: hostName, DisplayName: "rack-7"})
		await(t, f.host, wire.KindWelcome, &wire.Welcome{})
		test(f)
	}, func(cfg *coordinator.Config) { cfg.MaxFailures = most })
}

// comes lets a process of the host ask for a slot and disconnect, as a program's agent does.
func (f *failing) comes(slot, pid int) {
	f.Helper()
	conn := peer(f.T, f.on.Net, wire.Hello{
		Role: wire.RoleWorker, Index: slot, PID: pid, Process: wire.OfHost(hostName, pid) + "x", Nonce: "drawn",
	})
	<-time.After(arrives)
	if err := conn.Send(wire.Control(wire.KindExited, wire.Exited{
		Role: wire.RoleWorker, Index: slot, PID: pid, How: "it left", Failed: true, Final: true,
	})); err != nil {
		f.Fatal(err)
	}
	<-time.After(arrives)
}

// says lets the supervisor or the host report the end of a worker.
func (f *failing) says(by transport.Conn, e wire.Exited) {
	f.Helper()
	e.Role, e.How = wire.RoleWorker, fmt.Sprintf("ended with code %d", e.Code)
	if by == f.host {
		e.Host = hostName
	}
	if err := by.Send(wire.Control(wire.KindExited, e)); err != nil {
		f.Fatal(err)
	}
	<-time.After(arrives)
}

// failed returns why the job has failed, or "".
func (f *failing) failed() (why string) {
	f.Helper()
	if err := f.on.Ask(f.Context(), func(core *membership.Core, _ coordinator.Latest) {
		why = core.Record().Failed
	}); err != nil {
		f.Fatal(err)
	}
	return why
}

// TestProgramFails checks that a program which fails as often as the job allows ends the job, with its last output
// line. A usage error ends the job immediately. Two kinds of ends do not count: by signals that a supervisor does not
// call failures, and those that workers report of themselves.
func TestProgramFails(t *testing.T) {
	const most = 3
	for name, c := range map[string]struct {
		e     wire.Exited
		times int // number of failures that end the job; 0: it never ends
	}{
		"an error":      {wire.Exited{Failed: true, Code: 1, Detail: "no memory"}, most},
		"a usage error": {wire.Exited{Failed: true, Final: true, Code: 2, Detail: "no such optimizer"}, 1},
		"code 0":        {wire.Exited{Failed: true}, most},
		"a signal":      {wire.Exited{Code: -1}, 0},
		"no known slot": {wire.Exited{Failed: true, Code: 1, Index: 9}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			inFailing(t, most, func(f *failing) {
				f.comes(0, 6)
				for n := 1; n <= 2*most && f.failed() == ""; n++ {
					f.says(f.supervisor, c.e)
					if failed := f.failed(); (failed != "") != (n == c.times) ||
						!strings.Contains(failed, c.e.Detail) &&
							failed != "" {
						f.Fatalf("after %d failures of %d the job has failed: %q", n, c.times, failed)
					}
				}
			})
		})
	}
}

// TestRolledBackProgram checks that the end of a program because of a rollback does not count as a failure, but that
// the same exit code without a rollback does.
func TestRolledBackProgram(t *testing.T) {
	const most = 3
	ended := wire.Exited{Failed: true, Code: wire.ExitRolledBack}
	inFailingJob(t, testcluster.Job("bsp", "checkpoint:5", 2, 1, 1), most, func(f *failing) {
		f.on.StartServer("server:0")
		for n := range 2 * most {
			f.comes(0, 10+n)
			if err := f.on.Ask(f.Context(), func(core *membership.Core, _ coordinator.Latest) {
				core.Drop([]perdure.ShardID{0})
			}); err != nil {
				f.Fatal(err)
			}
			f.says(f.supervisor, ended)
			if failed := f.failed(); failed != "" {
				f.Fatalf("after %d rollbacks: %q", n+1, failed)
			}
		}
		f.comes(0, 9)
		for n := 1; n <= most; n++ {
			f.says(f.supervisor, ended)
			if failed := f.failed(); (failed != "") != (n == most) {
				f.Fatalf("after %d exits without a rollback: %q", n, failed)
			}
		}
	})
}

// TestProgramOfHostFails checks that failures of hosts' programs count like those of a supervisor, on whichever host
// the slot is held. A host whose program fails before it joins is rejected, and the job continues without it.
func TestProgramOfHostFails(t *testing.T) {
	const most = 3
	failure := wire.Exited{Failed: true, Code: 1, Detail: "Inf at batch 150"}
	t.Run("in a slot", func(t *testing.T) {
		inFailing(t, most, func(f *failing) {
			for n := 1; n <= most; n++ {
				f.comes(-1, n)
				failure.PID = n
				f.says(f.host, failure)
				if failed := f.failed(); (failed != "") != (n == most) {
					f.Fatalf("after %d failures: %q", n, failed)
				}
			}
			var e wire.Event
			for e.Kind != "failed" {
				await(f.T, f.supervisor, wire.KindEvent, &e)
			}
			if !strings.Contains(e.Text, "worker:0 failed 3 times at clock 0") ||
				!strings.Contains(e.Text, failure.Detail) {
				f.Errorf("the event is %q", e.Text)
			}
		})
	})
	for name, c := range map[string]struct {
		final bool
		times int
	}{"before it joins": {false, most}, "a usage error before it joins": {true, 1}} {
		t.Run(name, func(t *testing.T) {
			inFailing(t, most, func(f *failing) {
				e := failure
				e.PID, e.Final = 77, c.final
				for range c.times {
					f.says(f.host, e)
				}
				var r wire.Refusal
				await(f.T, f.host, wire.KindRefuse, &r)
				if r.Temporary || r.JobEnded || !strings.Contains(r.Reason, "worker-0 of host rack-7") ||
					!strings.Contains(r.Reason, e.Detail) {
					f.Errorf("the host received %+v", r)
				}
				if why := f.failed(); why != "" {
					f.Errorf("the job has failed: %s", why)
				}
			})
		})
	}
}

// TestNewcomerIsUsedWrongly checks that a usage error of a new process does not end a job that makes progress, but one
// of a process that has finished clocks does.
func TestNewcomerIsUsedWrongly(t *testing.T) {
	for name, works := range map[string]bool{"a newcomer": false, "one that has worked": true} {
		t.Run(name, func(t *testing.T) {
			inFailing(t, 3, func(f *failing) {
				f.reach(0, 1, 5)
				f.reach(1, 2, 5)
				f.says(f.host, wire.Exited{PID: 1, Code: -1})
				f.comes(0, 3)
				if works {
					f.reach(0, 4, 6)
				}
				f.says(f.host, wire.Exited{PID: 3, Failed: true, Final: true, Code: 2, Detail: "another model"})
				if failed := f.failed(); (failed != "") != works {
					f.Errorf("the job has failed: %q", failed)
				}
			})
		})
	}
}

// reach lets a process of the host take a slot and report a clock.
func (f *failing) reach(slot, pid int, clock perdure.Clock) {
	f.Helper()
	name := wire.OfHost(hostName, pid) + "x"
	if err := f.on.Ask(f.Context(), func(core *membership.Core, _ coordinator.Latest) {
		core.Join(membership.Worker, slot, membership.Applicant{Process: name, PID: pid})
		core.HandleWorkerStatus(slot, name,
			protocol.WorkerStatus{Generation: core.Record().View.Generation, Clock: clock})
	}); err != nil {
		f.Fatal(err)
	}
}

// TestMissingIsTold checks that within 10 s the user is notified which processes are missing and how the job can
// continue, at its start and later.
func TestMissingIsTold(t *testing.T) {
	for name, c := range map[string]struct {
		model  string
		begins bool // all processes had joined, and one has died
		starts bool // a supervisor starts the workers
		want   []string
	}{
		"at first": {"bsp", false, false, []string{"server:0 (no process has joined), worker:0", "fewer --servers"}},
		"later":    {"bsp", true, false, []string{"8s: worker:1 (its process is dead", "fewer --workers"}},
		"where it may leave": {
			"asp", true, false,
			[]string{"8s: worker:1 (its process is dead", "perdure scale --leave 1"},
		},
		"its program is started": {"bsp", false, true, []string{"worker:0", "may still be loading", "run/logs"}},
	} {
		t.Run(name, func(t *testing.T) {
			inJob(t, testcluster.Job(c.model, "resend:5", 2, 1, 1), func(t *testing.T, on *lone) {
				f := &failing{T: t, on: on}
				supervisor := peer(t, on.Net, wire.Hello{Role: wire.RoleSupervisor, Process: "supervisor"})
				if c.begins {
					_ = peer(t, on.Net, wire.Hello{Role: wire.RoleServer, Process: "s", PID: 9})
					_ = peer(t, on.Net, wire.Hello{Role: wire.RoleWorker, Process: "w", PID: 8, Nonce: "drawn"})
					<-time.After(arrives)
					f.reach(1, 7, 1)
					f.says(supervisor, wire.Exited{Index: 1, PID: 7, Code: -1})
				}
				began := time.Now()
				var e wire.Event
				for e.Kind != "missing" {
					await(t, supervisor, wire.KindEvent, &e)
				}
				if took := time.Since(began); took > 10*time.Second {
					t.Errorf("the user is notified after %v", took)
				}
				for _, want := range c.want {
					if !strings.Contains(e.Text, want) {
						t.Errorf("the event is %q; want %q in it", e.Text, want)
					}
				}
			}, func(cfg *coordinator.Config) {
				if cfg.StartsWorkers = c.starts; c.starts {
					cfg.Dir = "run"
				}
			})
		})
	}
}
