package settings

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/recovery"
	"github.com/perdure/perdure/internal/data/checkpoint"
	"github.com/perdure/perdure/internal/run/rundir"
	"github.com/perdure/perdure/internal/run/workload"
)

// Prefixes of the names of sealed settings. They match the keys of run.json where such keys exist.
const (
	sealJob    = "job"
	sealParams = "params"
	sealTables = "tables"
	sealData   = "data"
)

// sealedJob returns the parts of a job that its model depends on. The number of later workers, the handling of failures
// and the end of the job may change when the job is resumed.
func sealedJob(job *perdure.JobSpec) map[string]any {
	scale := job.StaleScale
	if scale == perdure.ScaleNone {
		scale = ""
	}
	return map[string]any{
		"workload": job.Workload, "seed": job.Seed, "slots": job.Slots, "shards": job.Shards,
		"consistency": job.Consistency, "table_consistency": job.TableConsistency, "stale_scale": scale,
		"init": job.Init,
	}
}

// sealedTables returns the tables by name. They include their update rules and consistency models.
func sealedTables(list []perdure.TableSpec) map[string]any {
	byName := map[string]any{}
	for _, t := range list {
		byName[t.Name] = t
	}
	return byName
}

// Seal seals the settings that determine the model. For the user's own programs these are the settings in the job.
// Otherwise they include the workload and its data. w is nil for the user's own programs.
func (s *Run) Seal(w workload.Workload, data string) (perdure.Seal, error) {
	values := map[string]any{sealJob: sealedJob(&s.Job)}
	if w != nil {
		p := s.Params
		p.Seed, p.Slots, p.Data = 0, 0, "" // the job contains the first two, and the location of the data may differ
		p.Marked = false                   // determined by the data
		values[sealParams], values[sealTables], values[sealData] = p, sealedTables(s.tables(w)), data
	}
	return perdure.NewSeal(values)
}

// checkSeal returns an error if the settings of the run.json at path would resume a checkpoint towards another model.
func (s *Run) checkSeal(path string, m *checkpoint.Manifest) error {
	return sameSeal(path, &s.Job.Seal, "the checkpoint was made", &m.Job.Seal)
}

// sameSeal returns an error that names the setting of a run.json that has changed.
func sameSeal(path string, now *perdure.Seal, since string, was *perdure.Seal) error {
	name, mine, others := now.Differs(was)
	switch {
	case name == "":
		return nil
	case name == sealData:
		return perdure.Usagef("the data of %s has changed since %s: its digest is %s, but was %s; restore the data",
			path, since, mine, others)
	}
	return perdure.Usagef("%s sets %s to %s, but %s with %s; change it back, because a different value produces a "+
		"different model", path, name, mine, since, others)
}

// readEarlier reads what the run in a directory resumes from: its settings and its newest checkpoint, or the state in
// its update log. It returns an error if that run is alive or if its settings are invalid. checkSeal compares the
// settings with the checkpoint's once they are complete.
func readEarlier(dir string, own bool) (s Run, m checkpoint.Manifest, err error) {
	if err := checkEnded(dir); err != nil {
		return s, m, err
	}
	if s, err = ReadForNewRun(filepath.Join(dir, "run.json")); err != nil {
		return s, m, err
	}
	if err := s.otherCommand(own, "--resume", dir); err != nil {
		return s, m, err
	}
	if err := recovery.Of(s.Job.Recovery).CheckResume(); err != nil {
		return s, m, perdure.Usagef("%s: %w; start over with --from %s", dir, err, filepath.Join(dir, "run.json"))
	}
	if recovery.Of(s.Job.Recovery).Traits().UsesLog() {
		st, err := s.readEnded(context.Background(), dir)
		if err != nil {
			return s, m, fmt.Errorf("%s: its update log: %w", dir, err)
		}
		return s, ResumeFromLog(st, &s), nil
	}
	from, err := s.OpenStore(context.Background(), dir)
	if err != nil {
		return s, m, err
	}
	known := lastRecord(context.Background(), dir)
	if s.Saved = nil; recovery.RoundsOf(s.Job.Recovery).Any() {
		m, err = ReadRunningCheckpoint(withRecordedManifests(from, known), &s)
	} else {
		m, err = readNewest(from, known, &s)
	}
	if err != nil {
		return s, m, err
	}
	s.Checkpoints.noteLost(from, known, &m, s.Saved)
	replaceSlots(&m, &s)
	return s, m, m.CheckJob(s.Job.ID)
}

// replaceSlots replaces the slots of the checkpoint that a run was itself resumed from with those of the run, since the
// run may have resumed with other workers. A checkpoint that the run saved itself has the right slots.
func replaceSlots(m *checkpoint.Manifest, s *Run) {
	if s.Resumed != "" && m.Generation <= s.Generation {
		m.Slots, m.PastClocks = s.Slots, s.Checkpoints.PastClocks
	}
}

// ReadSealed reads the run.json with which a checkpoint was made, and opens its workload. It returns an error if the
// settings or the data have changed.
func ReadSealed(path string, m *checkpoint.Manifest) (s Run, err error) {
	if s, err = ReadForNewRun(path); err != nil {
		return s, err
	}
	if err := s.openNamed(path); err != nil {
		return s, err
	}
	return s, s.checkSeal(path, m)
}

// checkEnded returns an error if the run in a directory is still running. The error names the process that runs it.
func checkEnded(dir string) error {
	holder, err := rundir.CheckEnded(dir)
	if errors.Is(err, rundir.ErrRunning) {
		return perdure.Usagef("the run in %s is still running, in %s; stop it first with perdure stop --run %s", dir,
			holder, dir)
	}
	return err
}

// CheckSameJob returns an error if the job's seal does not match the run.json at path, for example because the file was
// changed after the job started. It does not read the data again: the run that started the job has read them.
func (s *Run) CheckSameJob(path string, w workload.Workload, job perdure.JobSpec) error {
	now, err := s.Seal(w, "")
	if err != nil {
		return err
	}
	was := job.Seal.Without(func(name string) bool { return name == sealData })
	return sameSeal(path, &now, "the job began", &was)
}
