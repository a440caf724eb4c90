package localrun

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"path/filepath"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/recovery"
	"github.com/perdure/perdure/internal/data/updatelog"
	"github.com/perdure/perdure/internal/proc/keys"
	"github.com/perdure/perdure/internal/proc/supervisor"
	"github.com/perdure/perdure/internal/proc/transport"
	"github.com/perdure/perdure/internal/run/checkpoints"
	"github.com/perdure/perdure/internal/run/humanize"
	"github.com/perdure/perdure/internal/run/rundir"
	"github.com/perdure/perdure/internal/run/settings"
)

// removeLogStreams removes the job's streams from an external log after the job's processes have ended. If the model is
// safe, the streams are not needed any more. Otherwise removeLogStreams keeps them for inspection and notifies the
// user.
func (r *Run) removeLogStreams() {
	if r.s.Log == nil || r.s.HasOwnLog() {
		return
	}
	rm := howToRemove(&r.s.Job)
	if !r.safe {
		r.showLine("the updates of this run stay in its log, and use space there, until you remove them: " + rm)
	} else if err := checkpoints.RemoveLogOf(&r.s); err != nil {
		r.showLine(fmt.Sprintf("cannot remove the updates of this run from its log (%s); try again later: %s",
			humanize.ErrorText(err), rm))
	}
}

// leftoverLogLine returns a line about the streams of the earlier run that remain in an external log, or "" if nothing
// remains.
func leftoverLogLine(s *settings.Run) string {
	if s.Checkpoints.Ended == nil || s.HasOwnLog() {
		return ""
	}
	return "the updates of the earlier run stay in its log, and use space there, until you remove them: " +
		howToRemove(&s.Checkpoints.Ended.Job)
}

// howToRemove returns the command that removes a job's streams.
func howToRemove(job *perdure.JobSpec) string {
	return fmt.Sprintf("nats stream rm perdure-%s-N, for N from 0 to %d", job.ID, job.Shards-1)
}

// checkLogSpace checks that there is space for the log of a run in the given directory.
func checkLogSpace(s *settings.Run, run string) (err error) {
	if !recovery.Of(s.Job.Recovery).Traits().UsesLog() {
		s.Log = nil
		return nil
	}
	if s.Log == nil {
		if s.Log, err = settings.NewLog(settings.LogFlags{}, &s.Job); err != nil {
			return err
		}
	}
	return s.Log.Fit(&s.Job, run)
}

// chooseLogAddr chooses the address of the job's log: the cluster of --log, or a free port of this machine. A log on
// this machine requires the run's secret, which its process finds in the run's directory. The port stays reserved until
// hold is closed. Otherwise the job's servers, which take any free port, could take it while the log's process starts,
// and other processes while it is dead.
func chooseLogAddr(
	ctx context.Context,
	s *settings.Run,
	run string,
	secret perdure.Secret,
) (hold io.Closer, err error) {
	if s.Job.Log, s.Job.LogSecret = "", false; s.Log == nil {
		return io.NopCloser(nil), nil
	}
	if s.Log.NATS != "" {
		s.Job.Log = s.Log.NATS
		return io.NopCloser(nil), createLogStreams(ctx, s)
	}
	host, _, err := net.SplitHostPort(cmp.Or(s.Reach.Listen, AnyPort))
	if err != nil {
		return nil, err
	}
	addr, hold, err := transport.Reserve(host)
	if err != nil {
		return nil, fmt.Errorf("cannot listen on %s: %w; choose another address for --listen",
			host, humanize.Cause(err))
	}
	u := url.URL{Scheme: "nats", Host: addr}
	if s.Reach.Keys != "" {
		u.Scheme = updatelog.KeysScheme
	}
	s.Job.Log, s.Job.LogSecret = u.String(), true
	if err = os.MkdirAll(settings.LogFolder(run), 0o777); err == nil {
		err = os.WriteFile(filepath.Join(settings.LogFolder(run), "url"),
			[]byte(updatelog.WithToken(s.Job.Log, secret.Reveal())+"\n"), 0o600)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("run directory: %w", err), hold.Close())
	}
	return hold, nil
}

// createLogStreams creates the job's streams in an external log before anything is started. It returns an error if the
// log cannot be used, and then leaves nothing there.
func createLogStreams(ctx context.Context, s *settings.Run) error {
	ctx, cancel := context.WithTimeout(ctx, checkpoints.LogPatience)
	defer cancel()
	access, err := s.LogAccess(keys.Coordinator)
	if err != nil {
		return err
	}
	return updatelog.Create(ctx, s.Job.Log,
		s.LogOptions(updatelog.Options{Job: s.Job.ID, Shards: s.Job.Shards}, access))
}

// logAddr returns the listen address of the job's own log.
func logAddr(s *settings.Run) string {
	u, err := url.Parse(s.Job.Log)
	if err != nil || !s.HasOwnLog() {
		return ""
	}
	return u.Host
}

// logCommand returns the command line of the job's own log.
func logCommand(s *settings.Run, exe, run string) []string {
	args := []string{
		exe, string(supervisor.RoleLog), "--dir", settings.LogFolder(run), "--listen", logAddr(s),
		"--sync", string(s.Log.Sync), "--mb", fmt.Sprint(s.Log.MB), "--inherits",
	}
	if s.Reach.Keys != "" {
		args = append(args, "--keys", s.Reach.Keys)
	}
	return args
}

// logUsed returns the size of the files of a job's own log, or nil if the job has none.
func (r *Run) logUsed() *int64 {
	if !r.s.HasOwnLog() {
		return nil
	}
	return new(rundir.Bytes(settings.LogFolder(r.dir.Path())))
}
