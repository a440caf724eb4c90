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
	"github.com/perdure/perdure/internal/proc/logauth"
	"github.com/perdure/perdure/internal/proc/logserver"
)

// Log holds the settings of the update log in run.json.
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

	chosen bool // the user chose the size
}

const (
	defaultLogMB      = 4096
	MinLogMB          = 32      // for each shard: all updates in flight at the same time must fit
	MaxLogMB          = 1 << 30 // a PiB
	defaultSnapshotMB = 256
	maxReplicas       = 5 // the most that a NATS cluster supports
)

// LogFlags holds a user's settings of a job's log. Empty options get a default. Given holds the options that the
// user wrote: an option that is given but empty is an error.
type LogFlags struct {
	Log
	Given map[string]bool
}

// NewLog makes the settings of a job's log. It returns nil for a job without a log.
func NewLog(asked LogFlags, job *perdure.JobSpec) (*Log, error) {
	if !recovery.Of(job.Recovery).Traits().UsesLog() {
		return nil, nil
	}
	l := &asked.Log
	l.Sync, l.chosen = cmp.Or(l.Sync, updatelog.SyncInterval), l.MB != 0 || asked.Given["mb"]
	if !l.chosen {
		l.MB = max(defaultLogMB, l.minMB(job))
	}
	if l.SnapshotMB == 0 && !asked.Given["snapshot-mb"] {
		l.SnapshotMB = min(defaultSnapshotMB, l.MB)
	}
	if err := l.check(job); err != nil {
		return nil, err
	}
	if l.Replicas == 0 && asked.Given["replicas"] {
		return nil, wrongOption("nats_replicas", l.invalidReplicas())
	}
	return l, CheckPair(l.Cert, l.Key)
}

// CheckPair returns an error if only one of a certificate and its key is given.
func CheckPair(cert, key string) error {
	if (cert == "") != (key == "") {
		return perdure.Usagef("a log's cert and key belong together; give both, or neither")
	}
	return nil
}

// minMB returns the smallest permitted size of a job's log, in MiB.
func (l *Log) minMB(job *perdure.JobSpec) int { return MinLogMB * job.Shards }

// invalid returns the key in run.json of the first setting that no log of the job can have, and a message that starts
// with its value. Both are "" if all settings are valid.
func (l *Log) invalid(job *perdure.JobSpec) (key, wrong string) {
	switch {
	case l.MB < l.minMB(job):
		return "mb", fmt.Sprintf("%d; a log of %d shards needs at least %d", l.MB, job.Shards, l.minMB(job))
	case l.MB > MaxLogMB:
		return "mb", fmt.Sprintf("%d; choose at most %d", l.MB, MaxLogMB)
	case l.Sync != updatelog.SyncInterval && l.Sync != updatelog.SyncAlways:
		return "sync", fmt.Sprintf("%s; choose interval or always", l.Sync)
	case l.SnapshotMB < 1 || l.SnapshotMB > l.MB:
		return "snapshot_mb", fmt.Sprintf("%d; choose 1 to %d, the size of the log", l.SnapshotMB, l.MB)
	case l.Replicas < 0 || l.Replicas > maxReplicas:
		return "nats_replicas", l.invalidReplicas()
	}
	return "", ""
}

// invalidReplicas returns the message for a wrong number of replicas. In run.json, 0 means that the user chose none.
func (l *Log) invalidReplicas() string {
	return fmt.Sprintf("%d; choose 1 to %d", l.Replicas, maxReplicas)
}

// wrongOption returns the error for an option of --log, given its key in run.json.
func wrongOption(key, wrong string) error {
	name := strings.ReplaceAll(strings.TrimPrefix(key, "nats_"), "_", "-")
	return perdure.Usagef("--log: %s is %s", name, wrong)
}

// check returns the error for the first invalid option.
func (l *Log) check(job *perdure.JobSpec) error {
	if key, wrong := l.invalid(job); key != "" {
		return wrongOption(key, wrong)
	}
	return nil
}

// Fit checks that the disk of the job's own log has space for the largest size of the log. If the user did not choose a
// size, Fit reduces it to three quarters of the free space where that is less.
func (l *Log) Fit(job *perdure.JobSpec, dir string) error {
	if err := l.check(job); err != nil {
		return err
	}
	bytes, known := disk.FreeBytes(dir)
	free := int(bytes >> 20)
	if !known || l.NATS != "" || l.MB <= free {
		return nil
	}
	if some := free / 4 * 3; !l.chosen && some >= l.minMB(job) {
		l.MB, l.SnapshotMB = some, min(l.SnapshotMB, some)
		return nil
	}
	return perdure.Usagef("the update log may grow to %d MiB, but only %d MiB are free for %s; free some space, "+
		"choose another --out, or set a smaller log with mb in --log (at least %d)", l.MB, free, dir, l.minMB(job))
}

// bytes returns the size of the log of one shard. A run.json that was edited by hand may have 0 shards.
func (l *Log) bytes(shards int) int64 { return int64(l.MB) << 20 / int64(max(1, shards)) }

// SnapshotBytes returns how many bytes of the log are read between two snapshots; 0 means the default.
func (s *Run) SnapshotBytes() int64 {
	if s.Log == nil {
		return 0
	}
	return int64(s.Log.SnapshotMB) << 20
}

// LogBytes returns the limit for the log of all shards; 0 means no limit or no log.
func (s *Run) LogBytes() int64 {
	if s.Log == nil {
		return 0
	}
	return int64(s.Log.MB) << 20
}

// OpenLog returns a function that opens a job's update log with the run's settings. Servers create the log; a process
// with appends set only appends to it. ring holds the credentials of the process and is nil if the job has no keys.
func (s *Run) OpenLog(ring *keys.Ring, appends bool) func(context.Context, string, updatelog.Options) (
	updatelog.Log, error,
) {
	return func(ctx context.Context, addr string, o updatelog.Options) (updatelog.Log, error) {
		d := s.LogOptions(o, logauth.NewAccess(ring))
		d.ReadOnly = appends
		return updatelog.Dial(ctx, addr, d)
	}
}

// LogOptions returns the options for connecting to the run's log and for creating it. access holds the credentials for
// a log that requires keys.
func (s *Run) LogOptions(o updatelog.Options, access *updatelog.Access) updatelog.DialOptions {
	d := updatelog.DialOptions{Options: o, Access: access}
	if l := s.Log; l != nil {
		d.MaxBytes, d.Credentials, d.CA, d.Cert, d.Key, d.Replicas = l.bytes(d.Shards), l.Creds, l.CA, l.Cert, l.Key,
			l.Replicas
	}
	return d
}

// LogAccess returns a role's credentials for the run's log, from the run's keys. It returns nil if the log requires
// none.
func (s *Run) LogAccess(role keys.Role) (*updatelog.Access, error) {
	if !updatelog.RequiresKeys(s.Job.Log) {
		return nil, nil
	}
	return logauth.Open(s.Reach.Keys, role)
}

// readEnded reads the state that the job left in its update log, which is in the run's directory or elsewhere.
func (s *Run) readEnded(ctx context.Context, dir string) (st *EndedState, err error) {
	start, err := s.InitialState()
	if err != nil {
		return nil, err
	}
	r := EndedRun{Job: s.Job, View: start.View}
	if f := lastRecord(ctx, dir); f != nil {
		r.Job = f.Job
	}
	if r.Checkpoints, err = s.OpenStore(ctx, dir); err != nil {
		return nil, err
	}
	if r.Snapshots, err = s.OpenSnapshots(ctx, dir); err != nil {
		return nil, err
	}
	access, err := s.LogAccess(keys.Coordinator)
	if err != nil {
		return nil, err
	}
	var log *updatelog.Inspector
	looks := s.LogOptions(updatelog.Options{Shards: s.Job.Shards}, access)
	if s.HasOwnLog() {
		log, err = logserver.InspectDir(ctx, LogFolder(dir), logTimeout, looks)
	} else {
		soon, cancel := context.WithTimeout(ctx, logTimeout)
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

// ResumeFromLog makes a run resume from the state that an earlier run left in its update log. It returns the manifest
// that a checkpoint of that state would have.
func ResumeFromLog(st *EndedState, s *Run) checkpoint.Manifest {
	s.Checkpoints.Ended, s.Checkpoints.furthest = st, st.Furthest
	m := st.Manifest()
	if len(m.Slots) == 0 {
		m.Slots, m.PastClocks = s.Slots, s.Checkpoints.PastClocks // no shard knew of them
	}
	return m
}

// lastRecord returns the last record of a run's coordinator: the job, with the seal of its initial settings, and the
// membership. It returns nil if the record cannot be read; then the job of the settings applies.
func lastRecord(ctx context.Context, dir string) *membership.JobRecord {
	f := new(membership.JobRecord)
	file := filepath.Join(dir, "registry", "facts")
	if _, err := os.Stat(file); err != nil { // opening it would create its directory
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

// logTimeout is how long the log of an ended run may take to answer.
const logTimeout = 5 * time.Second

func LogFolder(run string) string { return filepath.Join(run, "log") }

// OpenSnapshots opens the store of the job's snapshots if it has any. They are stored with the checkpoints, or in a
// directory of their own in the run's directory.
func (s *Run) OpenSnapshots(ctx context.Context, dir string) (store.Store, error) {
	switch {
	case !recovery.Of(s.Job.Recovery).Traits().UsesLog():
		return nil, nil
	case s.Checkpoints.Store != "":
		return s.OpenStore(ctx, dir)
	}
	return store.NewDir(disk.OS(), filepath.ToSlash(SnapshotFolder(dir))), nil
}

func SnapshotFolder(run string) string { return filepath.Join(run, "snapshots") }

// HasOwnLog reports whether a process of the job serves its log.
func (s *Run) HasOwnLog() bool { return s.Log != nil && s.Log.NATS == "" }
