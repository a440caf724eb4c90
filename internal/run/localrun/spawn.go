package localrun

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/supervisor"
	"github.com/perdure/perdure/internal/run/humanize"
	"github.com/perdure/perdure/watch"
	"github.com/perdure/perdure/worker"
)

// spawn starts the processes. program returns the command of a worker; nil means no workers.
func (r *Run) spawn(exe, out string, frames, web socket, program func(slot int) supervisor.Spec) error {
	start := func(role wire.Role, index int, files []*os.File, args ...string) error {
		return r.job.Group().Start(r.spec(exe, out, role, index, files, args...))
	}
	var with []string
	if program != nil {
		with = append(with, "--starts-workers")
	}
	if err := start(wire.RoleCoordinator, 0, []*os.File{frames.file, web.file}, with...); err != nil {
		return err
	}
	if r.s.HasOwnLog() {
		spec := supervisor.Spec{
			Role: supervisor.RoleLog, Command: append(logCommand(&r.s, exe, out), r.watched.flags()...),
			LogPath: r.dir.LogFile(string(supervisor.RoleLog)),
			Files:   r.secrets.InheritedBy(wire.RoleWorker), Grace: logGrace,
		}
		if err := r.job.Group().Start(spec); err != nil {
			return err
		}
	}
	host, _, err := net.SplitHostPort(r.coordinatorAddr)
	if err != nil {
		return err
	}
	for i := range r.s.Job.Servers {
		args := []string{
			"--index", fmt.Sprint(i), "--coordinator", r.coordinatorAddr, "--listen",
			net.JoinHostPort(host, "0"),
		}
		if zone := r.s.ZoneOf(i); zone != "" {
			args = append(args, "--zone", zone)
		}
		if err := start(wire.RoleServer, i, nil, args...); err != nil {
			return err
		}
	}
	for i := range r.s.Job.Slots {
		if program == nil {
			break
		}
		at := r.s.Checkpoints.Clocks.Of(perdure.Slot(i), r.s.Cut)
		if i < len(r.s.Slots) && !r.s.Slots[i].Has(at) {
			continue // it left before the checkpoint that the run resumes from
		}
		if err := r.job.Group().Start(program(i)); err != nil {
			return err
		}
	}
	return nil
}

// EnvRun is the environment variable with the run's directory, for a user's program that may read it.
const EnvRun = "PERDURE_RUN"

// programGrace is how long a user's programs may continue after the job is done, for example to write their results,
// before they are asked to end.
const programGrace = time.Minute

// exitNoticeAfter is how long programs may take to exit before users are notified that the run waits for them.
const exitNoticeAfter = time.Second

// ErrFailedProgram means that the job is done, but a program failed afterwards, or was killed.
var ErrFailedProgram = errors.New("the job is done, but a program failed afterwards")

// awaitPrograms waits until the user's programs in g have ended, for at most grace. If that takes longer than
// noticeAfter, it calls waits once. It returns an error if a program failed, was killed, or is still running.
func awaitPrograms(ctx context.Context, g *supervisor.Group, grace, noticeAfter time.Duration, waits func()) error {
	ctx, cancel := context.WithTimeout(ctx, grace)
	defer cancel()
	soon, cancelSoon := context.WithTimeout(ctx, noticeAfter)
	defer cancelSoon()
	failed := g.Await(soon, wire.RoleWorker)
	if soon.Err() != nil && ctx.Err() == nil {
		waits()
		failed = g.Await(ctx, wire.RoleWorker)
	}
	what := make([]string, len(failed))
	for i, e := range failed {
		what[i] = fmt.Sprintf("worker:%d %s", e.Index, e.Description)
		if e.Signal == "" && e.LastLine != "" {
			what[i] += ": " + e.LastLine
		}
	}
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		for _, i := range g.Running(wire.RoleWorker) {
			what = append(what, fmt.Sprintf("worker:%d did not exit within %v and was stopped", i, grace))
		}
	}
	if len(what) == 0 {
		return nil
	}
	return fmt.Errorf("%w: %s; files of a program may be missing: resume the run to write them again",
		ErrFailedProgram, strings.Join(what, ", "))
}

// ownProgram returns the process of a slot whose worker is a user's program. The program replaces the shell, so that
// signals reach the program itself.
func (r *Run) ownProgram(command string, slot int) supervisor.Spec {
	env := []string{
		worker.EnvCoordinator + "=" + r.coordinatorAddr, worker.EnvSecretFile + "=" + r.secrets.Path,
		worker.EnvSlot + "=" + fmt.Sprint(slot), EnvRun + "=" + r.dir.Path(),
		wire.HostVariable + "=" + rand.Text(), // identifies the processes of one slot
	}
	if r.s.Reach.Keys != "" {
		env = append(env, worker.EnvKeys+"="+r.s.Reach.Keys)
	}
	if at := r.targets.addrOf(wire.RoleWorker, slot); at != "" {
		env = append(env, watch.EnvMetrics+"="+at)
	}
	return supervisor.Spec{
		Role: wire.RoleWorker, Index: slot, Command: []string{"/bin/sh", "-c", "exec " + command}, Env: env,
		LogPath: r.dir.LogFile(fmt.Sprintf("%s-%d", wire.RoleWorker, slot)),
	}
}

// plainWord matches a word that the shell does not interpret.
var plainWord = regexp.MustCompile(`^[\w./+,:@%-]+$`)

// findProgram returns an error if a shell command line names a program that does not exist, as far as that can be seen
// without a shell. Otherwise each process would fail, and the run's directory would remain.
func findProgram(command string) error {
	words := strings.Fields(command)
	if len(words) == 0 || !plainWord.MatchString(words[0]) {
		return nil
	}
	if _, err := exec.LookPath(words[0]); err != nil {
		return perdure.Usagef("--exec %s: %w; give a program that this machine can start", words[0],
			humanize.Cause(errors.Unwrap(err)))
	}
	return nil
}

// spec returns the process for a role and index.
func (r *Run) spec(exe, out string, role wire.Role, index int, files []*os.File, args ...string) supervisor.Spec {
	name := string(role)
	if role != wire.RoleCoordinator {
		name = fmt.Sprintf("%s-%d", role, index)
	}
	args = append(args, r.watched.flags()...)
	if r.s.Reach.Keys != "" {
		args = append(args, "--keys", r.s.Reach.Keys)
	}
	if at := r.targets.addrOf(role, index); at != "" {
		args = append(args, "--metrics", at)
	}
	return supervisor.Spec{
		Role: role, Index: index, Command: append([]string{exe, string(role), "--run", out}, args...),
		LogPath: r.dir.LogFile(name), Files: slices.Concat(files, r.secrets.InheritedBy(role)),
	}
}
