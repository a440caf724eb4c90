package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/url"
	"os"
	"path/filepath"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/recovery"
	"github.com/perdure/perdure/internal/data/disk"
	"github.com/perdure/perdure/internal/data/updatelog"
	"github.com/perdure/perdure/internal/proc/supervisor"
	"github.com/perdure/perdure/internal/proc/transport"
	"github.com/perdure/perdure/internal/run/plain"
)

// logFlags are about the update log of a job under stateless.
type logFlags struct {
	LogSync    string `name:"log-sync" help:"stateless: when an update counts as in the log: interval (the system has it, which syncs it every few seconds: it survives any process's death, but not the machine's) or always (it is on the disk) (default interval)." placeholder:"WHEN"`
	LogMB      int    `name:"log-mb" help:"stateless: what the log takes on the disk at most, in MiB, over all shards; who would append more waits (default 4096, or 32 for each shard; if the disk has less, three quarters of that)." placeholder:"N"`
	SnapshotMB int    `name:"snapshot-mb" help:"stateless: write a snapshot of the shards, and cut the log, after so many MiB of updates (default 256)." placeholder:"N"`
	NATS       string `name:"nats" help:"stateless: keep the log on that NATS cluster with JetStream, not in a process of this job's, for example nats://log.example:4222, or on one that perdure log serves (default none)." placeholder:"URL"`
	NATSCreds  string `name:"nats-creds" help:"Credentials for --nats: a file as nsc makes it." placeholder:"FILE" type:"path"`
	NATSCA     string `name:"nats-ca" help:"The certificate authority that vouches for --nats." placeholder:"FILE" type:"path"`
	NATSCert   string `name:"nats-cert" help:"This job's own certificate for --nats." placeholder:"FILE" type:"path"`
	NATSKey    string `name:"nats-key" help:"The key of --nats-cert." placeholder:"FILE" type:"path"`

	NATSReplicas int `name:"nats-replicas" help:"On how many servers of the cluster at --nats each update is kept, 1 to 5 (default 1)." placeholder:"N"`
}

// logSettings are what they ask for, in run.json.
type logSettings struct {
	Sync       updatelog.Sync `json:"sync"`
	MB         int            `json:"mb"`
	SnapshotMB int            `json:"snapshot_mb"`
	NATS       string         `json:"nats,omitempty"`
	Creds      string         `json:"nats_creds,omitempty"`
	CA         string         `json:"nats_ca,omitempty"`
	Cert       string         `json:"nats_cert,omitempty"`
	Key        string         `json:"nats_key,omitempty"`
	Replicas   int            `json:"nats_replicas,omitempty"`

	chosen bool // by the user, how large it is
}

const (
	defaultLogMB      = 4096
	leastLogMB        = 32      // for each shard: what is on its way together must fit
	mostLogMB         = 1 << 30 // a PiB
	defaultSnapshotMB = 256
	mostReplicas      = 5 // that a NATS cluster keeps
)

// log turns the flags into settings; nil for a job that has no log.
func (f *jobFlags) log(job *perdure.JobSpec) (*logSettings, error) {
	if !recovery.Of(job.Recovery).Traits().Logged() {
		return nil, nil
	}
	s := &logSettings{
		Sync: updatelog.Sync(cmp.Or(f.LogSync, string(updatelog.SyncInterval))), MB: f.LogMB,
		NATS: f.NATS, Creds: f.NATSCreds, CA: f.NATSCA, Cert: f.NATSCert, Key: f.NATSKey, Replicas: f.NATSReplicas,
		chosen: f.LogMB != 0 || f.given["log-mb"],
	}
	if !s.chosen {
		s.MB = max(defaultLogMB, s.least(job))
	}
	if err := s.checkSize(job); err != nil {
		return nil, err
	}
	s.SnapshotMB = cmp.Or(f.SnapshotMB, min(defaultSnapshotMB, s.MB))
	switch {
	case s.Sync != updatelog.SyncInterval && s.Sync != updatelog.SyncAlways:
		return nil, fmt.Errorf("%w: --log-sync %s; choose interval or always", perdure.ErrUsage, f.LogSync)
	case s.SnapshotMB < 1 || s.SnapshotMB > s.MB || f.SnapshotMB == 0 && f.given["snapshot-mb"]:
		return nil, fmt.Errorf("%w: --snapshot-mb %d; choose 1 to %d, the size of the log", perdure.ErrUsage, f.SnapshotMB, s.MB)
	}
	return s, s.checkPlace(f)
}

// checkPlace refuses what is said of a log elsewhere if that cannot be.
func (l *logSettings) checkPlace(f *jobFlags) error {
	u, err := url.Parse(l.NATS)
	switch {
	case (f.given["nats"] || l.NATS != "") && (err != nil || u.Host == "" || u.Scheme != "nats" && u.Scheme != "tls"):
		return fmt.Errorf("%w: --nats %s; write nats://HOST:PORT or tls://HOST:PORT", perdure.ErrUsage, updatelog.WithoutSecrets(l.NATS))
	case l.NATS == "" && (l.Creds != "" || l.CA != "" || l.Cert != "" || l.Key != "" || l.Replicas != 0):
		return fmt.Errorf("%w: credentials, certificates and replicas are for a log at --nats URL; leave them out, or name it", perdure.ErrUsage)
	case l.NATS != "" && f.LogSync != "":
		return fmt.Errorf("%w: --log-sync is for the job's own log; that at --nats syncs as it is configured", perdure.ErrUsage)
	case l.Replicas < 0 || l.Replicas > mostReplicas || l.Replicas == 0 && f.given["nats-replicas"]:
		return fmt.Errorf("%w: --nats-replicas %d; choose 1 to %d", perdure.ErrUsage, l.Replicas, mostReplicas)
	}
	return checkPair(l.Cert, l.Key)
}

// checkPair refuses half of a certificate.
func checkPair(cert, key string) error {
	if (cert == "") != (key == "") {
		return fmt.Errorf("%w: --nats-cert and --nats-key belong together; give both, or neither", perdure.ErrUsage)
	}
	return nil
}

// least is how small, in MiB, the log of a job may be.
func (l *logSettings) least(job *perdure.JobSpec) int { return leastLogMB * job.Shards }

// checkSize refuses a size that no log of the job can have.
func (l *logSettings) checkSize(job *perdure.JobSpec) error {
	switch {
	case l.MB < l.least(job):
		return fmt.Errorf("%w: --log-mb %d; a log of %d shards needs at least %d", perdure.ErrUsage, l.MB, job.Shards, l.least(job))
	case l.MB > mostLogMB:
		return fmt.Errorf("%w: --log-mb %d; choose at most %d", perdure.ErrUsage, l.MB, mostLogMB)
	}
	return nil
}

// fit sees that the disk on which the job's own log is to be kept has room for all that
// the log may come to take. One whose size nobody chose takes three quarters of what is
// free, where that is less.
func (l *logSettings) fit(job *perdure.JobSpec, folder string) error {
	if err := l.checkSize(job); err != nil {
		return err
	}
	bytes, known := disk.Free(folder)
	free := int(bytes >> 20)
	if !known || l.NATS != "" || l.MB <= free {
		return nil
	}
	if some := free / 4 * 3; !l.chosen && some >= l.least(job) {
		l.MB, l.SnapshotMB = some, min(l.SnapshotMB, some)
		return nil
	}
	return fmt.Errorf("%w: the update log may take %d MiB, and %d are free for %s; make room, choose another --out, or a smaller log with --log-mb (%d at least)",
		perdure.ErrUsage, l.MB, free, folder, l.least(job))
}

// bytes is the size of the log of one shard.
func (l *logSettings) bytes(shards int) int64 { return int64(l.MB) << 20 / int64(shards) }

// snapshotBytes is how much of the log is read before shards are written; 0: the usual.
func (s *settings) snapshotBytes() int64 {
	if s.Log == nil {
		return 0
	}
	return int64(s.Log.SnapshotMB) << 20
}

// logBytes bounds the log of all shards; 0: there is no bound, or no log.
func (s *settings) logBytes() int64 {
	if s.Log == nil {
		return 0
	}
	return int64(s.Log.MB) << 20
}

// openLog opens a job's update log, as the run's settings say, for a server, which makes
// it.
func (s *settings) openLog(ctx context.Context, addr string, o updatelog.Options) (updatelog.Log, error) {
	return updatelog.Dial(ctx, addr, s.logOptions(o))
}

// openLogThere opens it for a worker.
func (s *settings) openLogThere(ctx context.Context, addr string, o updatelog.Options) (updatelog.Log, error) {
	d := s.logOptions(o)
	d.ReadOnly = true
	return updatelog.Dial(ctx, addr, d)
}

// logOptions are how the run's settings say that its log is to be reached, and what it is like.
func (s *settings) logOptions(o updatelog.Options) updatelog.DialOptions {
	d := updatelog.DialOptions{Options: o}
	if l := s.Log; l != nil {
		d.MaxBytes, d.Credentials, d.CA, d.Cert, d.Key, d.Replicas = l.bytes(d.Shards), l.Creds, l.CA, l.Cert, l.Key, l.Replicas
	}
	return d
}

func logFolder(run string) string { return filepath.Join(run, "log") }

// snapshotDir is the folder, if the job has snapshots.
func (s *settings) snapshotDir(folder string) string {
	if !recovery.Of(s.Job.Recovery).Traits().Logged() {
		return ""
	}
	return folder
}

func snapshots(run string) string { return filepath.Join(run, "snapshots") }

// sizeLog sees that there is room for the log of a run that will be in a folder.
func (s *settings) sizeLog(run string) (err error) {
	if !recovery.Of(s.Job.Recovery).Traits().Logged() {
		s.Log = nil
		return nil
	}
	if s.Log == nil {
		if s.Log, err = (&jobFlags{}).log(&s.Job); err != nil {
			return err
		}
	}
	return s.Log.fit(&s.Job, run)
}

// placeLog says where the job's log is to be: at --nats, or a free port of this machine,
// which asks for the run's secret, as its process finds it in its folder. Until hold is closed,
// nobody else is given the port: not the job's servers, which take any while the log's
// process starts, nor others while it is dead.
func (s *settings) placeLog(ctx context.Context, run string, secret perdure.Secret) (hold io.Closer, err error) {
	if s.Job.Log, s.Job.LogSecret = "", false; s.Log == nil {
		return io.NopCloser(nil), nil
	}
	if s.Log.NATS != "" {
		s.Job.Log = s.Log.NATS
		return io.NopCloser(nil), s.tryLog(ctx)
	}
	host, _, err := net.SplitHostPort(cmp.Or(s.Listen, localAny))
	if err != nil {
		return nil, err
	}
	addr, hold, err := transport.Reserve(host)
	if err != nil {
		return nil, fmt.Errorf("cannot listen on %s: %w; choose another --listen", host, plain.Cause(err))
	}
	u := url.URL{Scheme: "nats", Host: addr}
	s.Job.Log, s.Job.LogSecret = u.String(), true
	if err = os.MkdirAll(logFolder(run), 0o777); err == nil {
		err = os.WriteFile(filepath.Join(logFolder(run), "url"), []byte(updatelog.Authorized(s.Job.Log, secret.Reveal())+"\n"), 0o600)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("run folder: %w", err), hold.Close())
	}
	return hold, nil
}

// tryLog makes the job's streams in a log elsewhere, before anything is started; it refuses
// one that cannot be used, and leaves nothing behind there.
func (s *settings) tryLog(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, logPatience)
	defer cancel()
	return updatelog.Create(ctx, s.Job.Log, s.logOptions(updatelog.Options{Job: s.Job.ID, Shards: s.Job.Shards}))
}

// logLine says how full the update log is of the run in a folder of this machine, and where
// if no process of the job serves it; "" if it has none.
func logLine(ctx context.Context, run string) string {
	s, err := readSettings(filepath.Join(run, "run.json"))
	if err != nil || s.Log == nil {
		return ""
	}
	ctx, cancel := context.WithTimeout(ctx, logPatience)
	defer cancel()
	kept, streams, where, err := s.logKept(ctx)
	if err != nil {
		return "update log: " + plain.Text(err)
	}
	line := fmt.Sprintf("update log: %.1f MB of at most %.1f, in %d streams", float64(kept)/1e6, float64(s.logBytes())/1e6, streams)
	if !s.hasOwnLog() {
		line += ", at " + where
	}
	return line
}

// logKept returns what the job's streams hold now, and where that is.
func (s *settings) logKept(ctx context.Context) (bytes uint64, streams int, where string, err error) {
	i, err := s.inspectLog(ctx)
	if err != nil {
		return 0, 0, "", err
	}
	defer i.Close()
	all, err := i.Streams(ctx)
	for _, one := range streamsOf(all, s.Job.ID) {
		bytes, streams = bytes+one.Bytes, streams+1
	}
	return bytes, streams, i.URL(), err
}

// hasOwnLog reports whether a process of the job serves its log.
func (s *settings) hasOwnLog() bool { return s.Log != nil && s.Log.NATS == "" }

// logAddr is where the job's own log listens.
func (s *settings) logAddr() string {
	u, err := url.Parse(s.Job.Log)
	if err != nil || !s.hasOwnLog() {
		return ""
	}
	return u.Host
}

// logCommand is the command line of the job's own log.
func (s *settings) logCommand(exe, run string) []string {
	return []string{exe, string(supervisor.RoleLog), "--dir", logFolder(run), "--listen", s.logAddr(), "--log-sync", string(s.Log.Sync), "--log-mb", fmt.Sprint(s.Log.MB), "--inherits"}
}

// logUsed returns the bytes of the files of a job's own log; nil: it has none.
func (j *localJob) logUsed() *int64 {
	if !j.s.hasOwnLog() {
		return nil
	}
	var n int64
	err := filepath.WalkDir(logFolder(j.dir.Path()), func(_ string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			if info, err := d.Info(); err == nil {
				n += info.Size()
			}
		}
		return nil // what is just being deleted does not count
	})
	if err != nil {
		return nil
	}
	return &n
}
