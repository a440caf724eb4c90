package settings

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/membership"
	"github.com/perdure/perdure/internal/core/recovery"
	"github.com/perdure/perdure/internal/data/checkpoint"
	"github.com/perdure/perdure/internal/data/disk"
	"github.com/perdure/perdure/internal/data/registry"
	"github.com/perdure/perdure/internal/data/store"
	"github.com/perdure/perdure/internal/data/updatelog"
	"github.com/perdure/perdure/internal/proc/keys"
	"github.com/perdure/perdure/internal/proc/logkeys"
	"github.com/perdure/perdure/internal/proc/logserver"
)

// Log are what they ask for, in run.json.
type Log struct {
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
	LeastLogMB        = 32      // for each shard: what is on its way together must fit
	MostLogMB         = 1 << 30 // a PiB
	defaultSnapshotMB = 256
	mostReplicas      = 5 // that a NATS cluster keeps
)

// LogAsked is what a user asks of a job's log; what is empty is chosen. Given are the options that the user wrote: one
// that is given and empty is a mistake.
type LogAsked struct {
	Log
	Given map[string]bool
}

// NewLog makes the settings of a job's log; nil for a job that has none.
func NewLog(asked LogAsked, job *perdure.JobSpec) (*Log, error) {
	if !recovery.Of(job.Recovery).Traits().Logged() {
		return nil, nil
	}
	l := &asked.Log
	l.Sync, l.chosen = cmp.Or(l.Sync, updatelog.SyncInterval), l.MB != 0 || asked.Given["mb"]
	if !l.chosen {
		l.MB = max(defaultLogMB, l.least(job))
	}
	if l.SnapshotMB == 0 && !asked.Given["snapshot-mb"] {
		l.SnapshotMB = min(defaultSnapshotMB, l.MB)
	}
	if err := l.check(job); err != nil {
		return nil, err
	}
	if l.Replicas == 0 && asked.Given["replicas"] {
		return nil, wrongOption("nats_replicas", l.oddReplicas())
	}
	return l, CheckPair(l.Cert, l.Key)
}

// CheckPair refuses half of a certificate.
func CheckPair(cert, key string) error {
	if (cert == "") != (key == "") {
		return fmt.Errorf("%w: cert and key of a log belong together; give both, or neither", perdure.ErrUsage)
	}
	return nil
}

// least is how small, in MiB, the log of a job may be.
func (l *Log) least(job *perdure.JobSpec) int { return LeastLogMB * job.Shards }

// odd says what no log of the job can have: its key in run.json, and what is wrong with its
// value, which it begins with; "": nothing.
func (l *Log) odd(job *perdure.JobSpec) (key, wrong string) {
	switch {
	case l.MB < l.least(job):
		return "mb", fmt.Sprintf("%d; a log of %d shards needs at least %d", l.MB, job.Shards, l.least(job))
	case l.MB > MostLogMB:
		return "mb", fmt.Sprintf("%d; choose at most %d", l.MB, MostLogMB)
	case l.Sync != updatelog.SyncInterval && l.Sync != updatelog.SyncAlways:
		return "sync", fmt.Sprintf("%s; choose interval or always", l.Sync)
	case l.SnapshotMB < 1 || l.SnapshotMB > l.MB:
		return "snapshot_mb", fmt.Sprintf("%d; choose 1 to %d, the size of the log", l.SnapshotMB, l.MB)
	case l.Replicas < 0 || l.Replicas > mostReplicas:
		return "nats_replicas", l.oddReplicas()
	}
	return "", ""
}

// oddReplicas says what is wrong with their number. In run.json 0 is one that nobody chose.
func (l *Log) oddReplicas() string {
	return fmt.Sprintf("%d; choose 1 to %d", l.Replicas, mostReplicas)
}

// wrongOption is the error of an option of --log, by its key in run.json.
func wrongOption(key, wrong string) error {
	name := strings.ReplaceAll(strings.TrimPrefix(key, "nats_"), "_", "-")
	return fmt.Errorf("%w: --log: %s %s", perdure.ErrUsage, name, wrong)
}

// check refuses what odd finds, by the option.
func (l *Log) check(job *perdure.JobSpec) error {
	if key, wrong := l.odd(job); key != "" {
		return wrongOption(key, wrong)
	}
	return nil
}

// Fit sees that the disk on which the job's own log is to be kept has room for all that
// the log may come to take. One whose size nobody chose takes three quarters of what is
// free, where that is less.
func (l *Log) Fit(job *perdure.JobSpec, folder string) error {
	if err := l.check(job); err != nil {
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
	return fmt.Errorf("%w: the update log may take %d MiB, and %d are free for %s; make room, choose another --out, "+
		"or a smaller log with mb in --log (%d at least)",
		perdure.ErrUsage, l.MB, free, folder, l.least(job))
}

// bytes is the size of the log of one shard. A run.json that somebody has written may name no shards.
func (l *Log) bytes(shards int) int64 { return int64(l.MB) << 20 / int64(max(1, shards)) }

// SnapshotBytes is how much of the log is read before shards are written; 0: the usual.
func (s *Run) SnapshotBytes() int64 {
	if s.Log == nil {
		return 0
	}
	return int64(s.Log.SnapshotMB) << 20
}

// LogBytes bounds the log of all shards; 0: there is no bound, or no log.
func (s *Run) LogBytes() int64 {
	if s.Log == nil {
		return 0
	}
	return int64(s.Log.MB) << 20
}

// OpenLog opens a job's update log, as the run's settings say, for a server, which makes it, or for who only appends.
// ring is what the process shows; nil: the job has no keys.
func (s *Run) OpenLog(ring *keys.Ring, appends bool) func(context.Context, string, updatelog.Options) (
	updatelog.Log, error,
) {
	return func(ctx context.Context, addr string, o updatelog.Options) (updatelog.Log, error) {
		d := s.LogOptions(o, logkeys.Access(ring))
		d.ReadOnly = appends
		return updatelog.Dial(ctx, addr, d)
	}
}

// LogOptions are how the run's settings say that its log is to be reached, and what it is like; access is what is shown
// to one that asks for keys.
func (s *Run) LogOptions(o updatelog.Options, access *updatelog.Access) updatelog.DialOptions {
	d := updatelog.DialOptions{Options: o, Access: access}
	if l := s.Log; l != nil {
		d.MaxBytes, d.Credentials, d.CA, d.Cert, d.Key, d.Replicas = l.bytes(d.Shards), l.Creds, l.CA, l.Cert, l.Key,
			l.Replicas
	}
	return d
}

// LogAccess returns the credentials of a role for the run's log, from the run's keys; nil if the log asks for none.
func (s *Run) LogAccess(role keys.Role) (*updatelog.Access, error) {
	if !updatelog.AsksForKeys(s.Job.Log) {
		return nil, nil
	}
	return logkeys.Open(s.Reach.Keys, role)
}

// readEnded reads what the job has left in its update log, which is that of a run's folder, or elsewhere.
func (s *Run) readEnded(ctx context.Context, folder string) (st *EndedState, err error) {
	begin, err := s.Begin()
	if err != nil {
		return nil, err
	}
	r := EndedRun{Job: s.Job, View: begin.View}
	if f := recorded(ctx, folder); f != nil {
		r.Job = f.Job
	}
	if r.Checkpoints, err = s.OpenStore(ctx, folder); err != nil {
		return nil, err
	}
	if r.Snapshots, err = s.OpenSnapshots(ctx, folder); err != nil {
		return nil, err
	}
	access, err := s.LogAccess(keys.Coordinator)
	if err != nil {
		return nil, err
	}
	var log *updatelog.Inspector
	looks := s.LogOptions(updatelog.Options{Shards: s.Job.Shards}, access)
	if s.HasOwnLog() {
		log, err = logserver.InspectFolder(ctx, LogFolder(folder), logPatience, looks)
	} else {
		soon, cancel := context.WithTimeout(ctx, logPatience)
		defer cancel()
		log, err = updatelog.Inspect(soon, s.Log.NATS, looks)
	}
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, log.Close()) }()
	r.Log = log
	return ReadEnded(ctx, &r)
}

// TakeEnded has a run go on from what an earlier one has left in its update log. It returns what a checkpoint
// of that would say of the job.
func TakeEnded(st *EndedState, s *Run) checkpoint.Manifest {
	s.Checkpoints.Ended, s.Checkpoints.furthest = st, st.Furthest
	m := st.Manifest()
	if len(m.Slots) == 0 {
		m.Slots, m.PastClocks = s.Slots, s.Checkpoints.PastClocks // no shard had heard of them
	}
	return m
}

// recorded is what a run's coordinator has recorded last: the job with the seal of what it began with, and who takes
// part; nil: that cannot be read, and the job is that of the settings.
func recorded(ctx context.Context, folder string) *membership.Facts {
	f := new(membership.Facts)
	file := filepath.Join(folder, "registry", "facts")
	if _, err := os.Stat(file); err != nil { // to open it would make its directory
		return nil
	}
	reg, err := registry.OpenFile(disk.OS(), file)
	if err != nil {
		return nil
	}
	doc, revision, err := reg.Load(ctx)
	if err = errors.Join(err, reg.Close()); err != nil || revision == 0 || json.Unmarshal(doc, f) != nil {
		return nil
	}
	return f
}

// logPatience is how long the log of a run that has ended may take to answer.
const logPatience = 5 * time.Second

func LogFolder(run string) string { return filepath.Join(run, "log") }

// OpenSnapshots opens where the job has its snapshots, if it has any: with its checkpoints, or in a folder of
// their own in the run's.
func (s *Run) OpenSnapshots(ctx context.Context, folder string) (store.Store, error) {
	switch {
	case !recovery.Of(s.Job.Recovery).Traits().Logged():
		return nil, nil
	case s.Checkpoints.Store != "":
		return s.OpenStore(ctx, folder)
	}
	return store.Folder(disk.OS(), filepath.ToSlash(SnapshotFolder(folder))), nil
}

func SnapshotFolder(run string) string { return filepath.Join(run, "snapshots") }

// HasOwnLog reports whether a process of the job serves its log.
func (s *Run) HasOwnLog() bool { return s.Log != nil && s.Log.NATS == "" }
