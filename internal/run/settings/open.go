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
	"github.com/perdure/perdure/internal/core/protocol"
	"github.com/perdure/perdure/internal/core/recovery"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/supervisor"
	"github.com/perdure/perdure/internal/run/workload"
)

// Check completes the settings, and returns an error if they cannot be run, before anything is started or written.
func (s *Run) Check() error {
	if err := s.checkFlags(); err != nil {
		return err
	}
	return s.open(false)
}

// checkFlags is Check without the workload and its data.
func (s *Run) checkFlags() error {
	if err := recovery.Check(&s.Job); err != nil {
		return err
	}
	if _, err := s.InitialState(); err != nil {
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
		return perdure.Usagef("invalid --compute-ms %d; choose 0 to %d milliseconds", s.ComputeMs, maxComputeMs)
	}
	own := s.Job.Workload == OwnWorkload // such programs choose both themselves
	if !own && (s.CacheMB < 1 || s.CacheMB > maxCacheMB) {
		return perdure.Usagef("invalid --cache-mb %d; choose 1 to %d MiB", s.CacheMB, maxCacheMB)
	}
	if !own && (s.RetainMB < 1 || s.RetainMB > maxCacheMB) {
		return perdure.Usagef("invalid --retain-mb %d; choose 1 to %d MiB", s.RetainMB, maxCacheMB)
	}
	if s.Checkpoints.Keep < 0 || s.Checkpoints.Keep > maxKept {
		return perdure.Usagef("invalid --keep-checkpoints %d; choose 1 to %d, or 0 to keep all", s.Checkpoints.Keep,
			maxKept)
	}
	s.Job.Alarms = supervisor.NewSchedule(faults).Alarms()
	return nil
}

const (
	maxComputeMs    = 60_000
	DefaultCacheMB  = 256
	DefaultRetainMB = 512
	maxCacheMB      = 1 << 20
	maxKept         = 10_000 // checkpoints; all of their manifests are read whenever one is deleted
	MaxOutageMB     = wire.MaxUpdateBytes / 2 >> 20
)

// fitModels returns an error for consistency models of tables that the job does not have, and normalises the others to
// the shortest form. A default model that no table uses would be announced, and would make clocks take two steps, for
// no benefit.
func fitModels(job *perdure.JobSpec, tables []perdure.TableSpec) error {
	models, names := map[string]perdure.Consistency{}, []string{}
	others := false // some table has no model of its own
	for _, t := range tables {
		c, named := job.TableConsistency[t.Name]
		if named {
			models[t.Name] = c
		}
		names, others = append(names, t.Name), others || !named
	}
	for _, name := range slices.Sorted(maps.Keys(job.TableConsistency)) {
		if !slices.Contains(names, name) {
			return perdure.Usagef("--consistency names the unknown table %s; the tables of %s are %s", name,
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
			err = f.Validate(s.Job.Servers, slots, s.HasOwnLog(), (&protocol.View{}).ClockLimit(&s.Job))
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

// otherCommand returns an error for a run of the other command, whose workers are of another kind.
func (s *Run) otherCommand(own bool, with, path string) error {
	switch {
	case own && s.Job.Workload != OwnWorkload:
		return perdure.Usagef("%s is a run of perdure train; use: perdure train %s %s", path, with, path)
	case !own && s.Job.Workload == OwnWorkload:
		return perdure.Usagef("%s is a run of perdure up, whose workers run your own program; use: perdure up %s %s",
			path, with, path)
	}
	return nil
}

// openNamed calls open for the settings of a run.json, and names that file in errors.
func (s *Run) openNamed(path string) (err error) {
	if s.Job.Workload == OwnWorkload { // its programs create the tables
		s.Job.Seal, err = s.Seal(nil, "")
		return err
	}
	if err := s.open(false); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

// open opens the workload and completes the settings from it. It returns an error for settings that cannot be trained.
// The seal covers the completed settings. If fewer is set, that is, the user did not choose the number of shards, a
// small data set gets fewer shards than the default.
func (s *Run) open(fewer bool) error {
	most := s.WorkParams()
	if _, most.Slots = s.PlannedSlots(); most.Slots > s.Params.Slots { // there must be data for all of them
		if _, err := workload.New(s.Job.Workload, most); err != nil {
			return err
		}
	}
	w, err := workload.New(s.Job.Workload, s.WorkParams()) // as the run's processes will
	if err != nil {
		return err
	}
	s.Trained = w.Describe()
	s.Params.Marked = s.Trained.Marked
	s.Params.Rule.Rate = s.Trained.Rate // the workload may have chosen it
	if err := fitModels(&s.Job, w.Tables()); err != nil {
		return err
	}
	for _, t := range s.tables(w) {
		if fewer && !t.Sparse && !t.Whole && t.Rows < int64(s.Job.Shards) {
			s.Job.Shards = max(int(t.Rows), s.Job.Servers)
		}
	}
	for _, t := range s.tables(w) {
		if err := cmp.Or(t.Validate(s.Job.Shards), s.Job.Recovery.ValidateTable(t)); err != nil {
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

// WorkParams returns the parameters that a process opens the workload with.
func (s *Run) WorkParams() workload.Params {
	p := s.Params
	p.Lossy = recovery.Of(s.Job.Recovery).Traits().MayLoseUpdates()
	p.Steps = s.Job.Consistency.TwoStep()
	for _, c := range s.Job.TableConsistency {
		p.Steps = p.Steps && c.TwoStep()
	}
	return p
}

// tables returns the tables that the job will have for a workload.
func (s *Run) tables(w workload.Workload) []perdure.TableSpec {
	list := w.Tables()
	for i := range list {
		list[i].Consistency = cmp.Or(list[i].Consistency, s.Job.ConsistencyOf(list[i].Name))
	}
	return list
}
