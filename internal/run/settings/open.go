package settings

import (
	"cmp"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/recovery"
	"github.com/perdure/perdure/internal/core/words"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/supervisor"
	"github.com/perdure/perdure/internal/run/workload"
)

// Check completes the settings and refuses what cannot be run, before anything
// is started or written.
func (s *Run) Check() error {
	if err := s.checkFlags(); err != nil {
		return err
	}
	return s.open(false)
}

// checkFlags is check without the workload and its data.
func (s *Run) checkFlags() error {
	if err := recovery.Check(&s.Job); err != nil {
		return err
	}
	if _, err := s.Begin(); err != nil {
		return err
	}
	faults, err := s.ParseFaults()
	if err != nil {
		return err
	}
	if _, err := s.Link(); err != nil {
		return err
	}
	if s.ComputeMs < 0 || s.ComputeMs > maxComputeMs {
		return fmt.Errorf("%w: --compute-ms %d; choose 0 to %d milliseconds", perdure.ErrUsage, s.ComputeMs,
			maxComputeMs)
	}
	own := s.Job.Workload == OwnWorkload // whose programs choose both themselves
	if !own && (s.CacheMB < 1 || s.CacheMB > maxCacheMB) {
		return fmt.Errorf("%w: --cache-mb %d; choose 1 to %d MiB", perdure.ErrUsage, s.CacheMB, maxCacheMB)
	}
	if !own && (s.RetainMB < 1 || s.RetainMB > maxCacheMB) {
		return fmt.Errorf("%w: --retain-mb %d; choose 1 to %d MiB", perdure.ErrUsage, s.RetainMB, maxCacheMB)
	}
	if s.Checkpoints.Keep < 0 || s.Checkpoints.Keep > maxKept {
		return fmt.Errorf("%w: --keep-checkpoints %d; choose 1 to %d, or 0 to keep all", perdure.ErrUsage,
			s.Checkpoints.Keep, maxKept)
	}
	s.Job.Alarms = supervisor.NewSchedule(faults).Alarms()
	return nil
}

const (
	maxComputeMs    = 60_000
	DefaultCacheMB  = 256
	DefaultRetainMB = 512
	maxCacheMB      = 1 << 20
	maxKept         = 10_000 // checkpoints, of which all manifests are read when one is deleted
	MaxOutageMB     = wire.MaxUpdate / 2 >> 20
)

// fitModels refuses models of tables that the job does not have, and writes the
// others in the one shortest way: a model alone that no table uses would be told
// of, and make clocks take two steps, for nothing.
func fitModels(job *perdure.JobSpec, tables []perdure.TableSpec) error {
	models, names := map[string]perdure.Consistency{}, []string{}
	others := false // there is a table without a model of its own
	for _, t := range tables {
		c, named := job.TableConsistency[t.Name]
		if named {
			models[t.Name] = c
		}
		names, others = append(names, t.Name), others || !named
	}
	for _, name := range slices.Sorted(maps.Keys(job.TableConsistency)) {
		if !slices.Contains(names, name) {
			return fmt.Errorf("%w: --consistency names table %s; the tables of %s are %s", perdure.ErrUsage, name,
				job.Workload, strings.Join(names, ", "))
		}
	}
	if !others && len(names) > 0 {
		job.Consistency = models[names[0]]
	}
	maps.DeleteFunc(models, func(_ string, c perdure.Consistency) bool { return c == job.Consistency })
	job.TableConsistency = nil
	if len(models) > 0 {
		job.TableConsistency = models
	}
	return nil
}

func (s *Run) ParseFaults() (faults []supervisor.Fault, err error) {
	slots, _ := s.PlannedSlots()
	for _, text := range s.Faults {
		f, err := supervisor.ParseFault(text)
		if err == nil {
			err = f.Validate(s.Job.Servers, slots, s.HasOwnLog(), (&words.View{}).Latest(&s.Job))
		}
		if err != nil {
			return nil, err
		}
		faults = append(faults, f)
	}
	return faults, nil
}

func NewJobID() string {
	b := make([]byte, 8)
	_, _ = rand.Read(b) // never fails
	return hex.EncodeToString(b)
}

// otherCommand refuses a run of the other command: its workers are others.
func (s *Run) otherCommand(own bool, with, path string) error {
	switch {
	case own && s.Job.Workload != OwnWorkload:
		return fmt.Errorf("%w: %s is a run of perdure train; use: perdure train %s %s", perdure.ErrUsage, path, with,
			path)
	case !own && s.Job.Workload == OwnWorkload:
		return fmt.Errorf("%w: %s is a run of perdure up, whose workers are programs of your own; "+
			"use: perdure up %s %s",
			perdure.ErrUsage, path, with, path)
	}
	return nil
}

// openOf is open for the settings of a run.json, which is to blame for what is wrong.
func (s *Run) openOf(path string) (err error) {
	if s.Job.Workload == OwnWorkload { // its tables come with its programs
		s.Job.Seal, err = s.Seal(nil, "")
		return err
	}
	if err := s.open(false); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

// open opens the workload, and completes the settings with what it has to say: it refuses
// what cannot be trained. The seal is of what it then is. Where data are few, and nobody has said how many shards there
// are to be, there are fewer than usual.
func (s *Run) open(fewer bool) error {
	most := s.WorkParams()
	if _, most.Slots = s.PlannedSlots(); most.Slots > s.Params.Slots { // there must be data for all
		if _, err := workload.New(s.Job.Workload, most); err != nil {
			return err
		}
	}
	w, err := workload.New(s.Job.Workload, s.WorkParams()) // as its processes will
	if err != nil {
		return err
	}
	s.Trained = w.Describe()
	s.Params.Marked = s.Trained.Marked
	s.Params.Rule.Rate = s.Trained.Rate // which it may have chosen
	if err := fitModels(&s.Job, w.Tables()); err != nil {
		return err
	}
	for _, t := range s.tables(w) {
		if fewer && !t.Sparse && !t.Whole && t.Rows < int64(s.Job.Shards) {
			s.Job.Shards = max(int(t.Rows), s.Job.Servers)
		}
	}
	for _, t := range s.tables(w) {
		if err := cmp.Or(t.Validate(s.Job.Shards), s.Job.Recovery.Suits(t)); err != nil {
			return err
		}
	}
	if s.Checkpoints.Init != nil && s.Checkpoints.Init.Read {
		if s.Tables, err = s.Checkpoints.Init.inherit(w, &s.Job, s.tables(w)); err != nil {
			return fmt.Errorf("--init: %w", err)
		}
	}
	s.Job.Seal, err = s.Seal(w, w.Digest())
	return err
}

// WorkParams are what a process opens the workload with.
func (s *Run) WorkParams() workload.Params {
	p := s.Params
	p.Lossy = recovery.Of(s.Job.Recovery).Traits().MayLose()
	p.Steps = s.Job.Consistency.TwoStep()
	for _, c := range s.Job.TableConsistency {
		p.Steps = p.Steps && c.TwoStep()
	}
	return p
}

// tables are those that the job is to have for a workload.
func (s *Run) tables(w workload.Workload) []perdure.TableSpec {
	list := w.Tables()
	for i := range list {
		list[i].Consistency = cmp.Or(list[i].Consistency, s.Job.ConsistencyOf(list[i].Name))
	}
	return list
}
