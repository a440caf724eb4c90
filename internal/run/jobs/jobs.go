// Package jobs is the jobs of a registry of many: what each was asked to be, how it is, and what people want of it. A
// Registry is asked by people (Create, List, Find, Stop, Remove) and by coordinators (Await, Lead). What of it is
// whose, and why no two of them meet, is the catalog's (see registry.Catalog); here is what its documents mean.
//
// A Registry is safe for concurrent use, and a Leader too.
package jobs

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/recovery"
	"github.com/perdure/perdure/internal/data/disk"
	"github.com/perdure/perdure/internal/data/registry"
	"github.com/perdure/perdure/internal/data/registry/location"
	"github.com/perdure/perdure/internal/data/updatelog"
	"github.com/perdure/perdure/internal/run/settings"
)

// Variable is the environment variable that says where the registry is, where nobody says it otherwise.
const Variable = "PERDURE_REGISTRY"

// Version is the version of the documents written here.
const Version = 1

// The kinds of documents.
const (
	recordKind = "JOB"
	stateKind  = "JOB-STATE"
	wishKind   = "JOB-WISH"
)

// Record is what a job was asked to be, and by whom. It never changes.
type Record struct {
	ID       string        `json:"id"`
	Name     string        `json:"name"`
	Workload string        `json:"workload"`
	Clocks   perdure.Clock `json:"clocks"` // 0: it has no end
	Made     time.Time     `json:"made"`
	Version  string        `json:"version"` // of Perdure
	File     string        `json:"file"`    // without its folder
	Text     string        `json:"text"`    // of the file
	By       string        `json:"by,omitempty"`
}

// Phase is how a job is.
type Phase string

// The phases of a job. Its leader publishes those from Running on; Waiting, Away and Damaged are what others conclude.
const (
	Waiting  Phase = "waiting" // no coordinator has come yet
	Away     Phase = "away"    // nobody leads it now
	Damaged  Phase = "damaged" // what the registry has of it cannot be read
	Running  Phase = "running"
	Stopping Phase = "stopping"
	Done     Phase = "done"
	Stopped  Phase = "stopped"
	Failed   Phase = "failed"
)

// Ended reports whether nobody is to lead such a job any more.
func (p Phase) Ended() bool { return p == Done || p == Stopped || p == Failed }

// State is how a job is, as its leader says.
type State struct {
	ID      string        `json:"id"`
	Phase   Phase         `json:"state"`
	Clock   perdure.Clock `json:"clock"`
	End     perdure.Clock `json:"end"` // 0: none
	At      time.Time     `json:"at"`  // by the leader's wall clock
	Address string        `json:"address,omitempty"`
	Folder  string        `json:"folder,omitempty"` // of the leader's, on its machine
	Why     string        `json:"why,omitempty"`    // it has ended so
}

// Wish is what people want of a job, and who does. Older versions say of neither a record nor a wish whose it is.
type Wish struct {
	ID   string    `json:"id"`
	Want string    `json:"want"`
	At   time.Time `json:"at"`
	By   string    `json:"by,omitempty"`
}

// stop is the one thing that people may want.
const stop = "stop"

// Job is all that a registry says of a job.
type Job struct {
	Record
	State  *State // nil: nobody has led it
	Wish   *Wish  // nil: nobody wants anything
	Holder string // who leads it, for people; "": nobody
	Err    error  // of a list: why it cannot be read; then it has a name alone

	raw []byte // the record, which tells it from a later job of the same name
}

// Phase is how the job is.
func (j *Job) Phase() Phase {
	switch {
	case j.Err != nil:
		return Damaged
	case j.State != nil && j.State.Phase.Ended():
		return j.State.Phase
	case j.Stops():
		return Stopping
	case j.Holder == "" && j.State == nil:
		return Waiting
	case j.Holder == "":
		return Away
	case j.State == nil:
		return Running
	}
	return j.State.Phase
}

// Stops reports whether somebody wants the job to end.
func (j *Job) Stops() bool { return j.Wish != nil && j.Wish.Want == stop }

// Registry is a registry of many jobs.
type Registry struct {
	written string
	shown   string
	folder  string // "": it is no folder
	catalog registry.Catalog
	now     func() time.Time
	by      string // who asks
}

// Open opens the registry at a location, as people write it: a folder, or etcd://HOST:PORT,…/PREFIX.
func Open(ctx context.Context, at string) (*Registry, error) {
	if at == "" {
		return nil, fmt.Errorf("%w: which registry? write --registry etcd://HOST:PORT,HOST:PORT/PREFIX, or the path "+
			"of a folder, or set %s", perdure.ErrUsage, Variable)
	}
	l, err := location.Parse(at)
	if err != nil {
		return nil, fmt.Errorf("%w: --registry: a registry of many jobs is a folder, or "+
			"etcd://HOST:PORT,HOST:PORT/PREFIX: %w", perdure.ErrUsage, err)
	}
	shown := l.String()
	path, is := l.File()
	if is { // people copy what is shown
		if shown, err = filepath.Abs(path); err != nil {
			return nil, fmt.Errorf("--registry %s: %w", l, err)
		}
	}
	c, err := location.OpenCatalog(ctx, at)
	if err != nil {
		return nil, fmt.Errorf("--registry %s: %w", l, err)
	}
	return &Registry{written: at, shown: shown, folder: path, catalog: c, now: time.Now, by: asker()}, nil
}

// Close lets go of the registry.
func (r *Registry) Close() error { return r.catalog.Close() }

// String is where the registry is, as messages have it.
func (r *Registry) String() string { return r.shown }

// Written is where the registry is, as somebody has written it: with the files that its client shows.
func (r *Registry) Written() string { return r.written }

// Asked is a job that is to be recorded.
type Asked struct {
	Name     string // "": that of the file, without what is behind its dot
	File     string
	Text     []byte
	Settings *settings.Run // that the text asks for
	Log      string        // the update log, as the text has it
	Version  string        // of Perdure
}

// Create records a job. What its text asks for was checked before.
func (r *Registry) Create(ctx context.Context, a Asked) (*Job, error) {
	file := filepath.Base(a.File)
	name := cmp.Or(a.Name, strings.TrimSuffix(file, filepath.Ext(file)))
	if err := registry.CheckName(name); err != nil {
		if a.Name == "" {
			err = fmt.Errorf("%w; name the job with --name", err)
		}
		return nil, err
	}
	if where, _, _ := strings.Cut(a.Log, "?"); updatelog.WithoutSecrets(where) != where {
		return nil, fmt.Errorf("%w: %s: log has a user, a password or a token in it, which everybody would see who "+
			"may read the registry; write it without, and name a file with ?creds=FILE", perdure.ErrUsage, a.File)
	}
	var id [8]byte
	_, _ = rand.Read(id[:]) // it never fails
	rec := Record{
		ID: hex.EncodeToString(id[:]), Name: name, Workload: a.Settings.Job.Workload, Clocks: a.Settings.Job.Clocks,
		Made: r.now().UTC().Truncate(time.Second), Version: a.Version, File: file, Text: string(a.Text),
		By: r.by,
	}
	sealed, err := seal(recordKind, rec)
	if err != nil {
		return nil, err
	}
	if len(sealed) > registry.MostRecord {
		return nil, fmt.Errorf("%w: %s is too long: a registry takes %d bytes of a job, with what it adds; leave out "+
			"comments, say", perdure.ErrUsage, a.File, registry.MostRecord)
	}
	err = r.catalog.Create(ctx, name, sealed)
	if errors.Is(err, registry.ErrTaken) {
		return nil, fmt.Errorf("%w: %s has a job %s already; choose another --name, or remove that one with perdure "+
			"job rm %s", perdure.ErrUsage, r, name, name)
	}
	return &Job{Record: rec, raw: sealed}, err
}

// Lacks says what a job of several machines needs, and its file does not name; "": nothing.
func Lacks(s *settings.Run) string {
	if s.Checkpoints.Store == "" && recovery.Of(s.Job.Recovery).Traits().Closes() {
		return fmt.Sprintf("recovery %s keeps checkpoints, and no store is named: they are in a folder of each "+
			"machine, and none finds those of others; name one that all reach with store: URL",
			s.Job.Recovery)
	}
	return ""
}

// List returns all jobs, by name. One that cannot be read says why. A folder that does not exist is an error: the path
// may be mistyped.
func (r *Registry) List(ctx context.Context) ([]Job, error) {
	if _, err := os.Stat(r.folder); r.folder != "" && errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: registry folder %s does not exist; correct the path, or record a job there with "+
			"perdure job create", perdure.ErrUsage, r)
	}
	entries, err := r.catalog.List(ctx)
	if err != nil {
		return nil, err
	}
	all := make([]Job, len(entries))
	for i, e := range entries {
		j, err := r.jobOf(e)
		if err != nil {
			j = &Job{Record: Record{Name: e.Name}, Err: err, Holder: e.Holder, raw: e.Record}
		}
		all[i] = *j
	}
	return all, nil
}

// Find returns one job.
func (r *Registry) Find(ctx context.Context, name string) (*Job, error) {
	e, err := r.catalog.Find(ctx, name)
	if err != nil {
		return nil, r.missing(name, err)
	}
	return r.jobOf(e)
}

// missing says in one line that there is no such job, where that is the error.
func (r *Registry) missing(name string, err error) error {
	if errors.Is(err, registry.ErrNoJob) {
		return goneError{fmt.Errorf("%w: %s has no job %s; perdure job ls lists those that it has", perdure.ErrUsage, r,
			name)}
	}
	return err
}

// goneError says in its own words that a job is not there: it is registry.ErrNoJob.
type goneError struct{ error }

func (e goneError) Is(target error) bool { return target == registry.ErrNoJob }

func (e goneError) Unwrap() error { return e.error }

// jobOf reads what a registry has of a job.
func (r *Registry) jobOf(e registry.Entry) (*Job, error) {
	j := &Job{Holder: e.Holder, raw: e.Record}
	err := e.Err
	if err == nil {
		err = open(recordKind, e.Record, &j.Record)
	}
	if err == nil && (j.ID == "" || j.Record.Name != e.Name) {
		err = fmt.Errorf("%w: it is of job %q", disk.ErrCorrupt, j.Record.Name)
	}
	if err == nil && e.State != nil {
		j.State = &State{}
		if err = open(stateKind, e.State, j.State); err == nil && j.State.ID != j.ID {
			err = fmt.Errorf("%w: its state is another job's", disk.ErrCorrupt)
		}
	}
	if err == nil && e.Wish != nil {
		j.Wish = &Wish{}
		if err = open(wishKind, e.Wish, j.Wish); err == nil && j.Wish.ID != j.ID {
			err = fmt.Errorf("%w: its wish is another job's", disk.ErrCorrupt)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("job %s in %s: %w; perdure job rm --force %s removes it", e.Name, r, err, e.Name)
	}
	return j, nil
}

func seal(kind string, doc any) ([]byte, error) {
	b, err := json.Marshal(doc)
	if err != nil {
		return nil, err
	}
	return disk.Seal(kind, Version, append(b, '\n')), nil
}

func open(kind string, sealed []byte, doc any) error {
	b, err := disk.Unseal(kind, Version, sealed)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(b, doc); err != nil {
		return fmt.Errorf("%w: %w", disk.ErrCorrupt, err)
	}
	return nil
}
