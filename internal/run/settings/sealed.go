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

// The names of sealed settings begin so, as the keys of run.json do where there are some.
const (
	sealJob    = "job"
	sealParams = "params"
	sealTables = "tables"
	sealData   = "data"
)

// sealedJob is the part of a job that its model depends on. How many workers take part later, what
// becomes of failures and where the job ends may be otherwise when it goes on.
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

// sealedTables are the tables by name: their rules and models are in them.
func sealedTables(list []perdure.TableSpec) map[string]any {
	byName := map[string]any{}
	for _, t := range list {
		byName[t.Name] = t
	}
	return byName
}

// Seal seals the settings that make the model: of programs of the user's own what the job
// knows of them, and else also what is trained, on which data. w is nil for the former.
func (s *Run) Seal(w workload.Workload, data string) (perdure.Seal, error) {
	values := map[string]any{sealJob: sealedJob(&s.Job)}
	if w != nil {
		p := s.Params
		p.Seed, p.Slots, p.Data = 0, 0, "" // they are the job's; and wherever the data are
		p.Marked = false                   // which the data say
		values[sealParams], values[sealTables], values[sealData] = p, sealedTables(s.tables(w)), data
	}
	return perdure.NewSeal(values)
}

// checkSeal refuses settings, of the run.json at path, that would go on from a checkpoint
// to another model than the one that it is of.
func (s *Run) checkSeal(path string, m *checkpoint.Manifest) error {
	return sameSeal(path, &s.Job.Seal, "the checkpoint was made", &m.Job.Seal)
}

// sameSeal says which setting of a run.json is another one than it was.
func sameSeal(path string, now *perdure.Seal, since string, was *perdure.Seal) error {
	name, mine, others := now.Differs(was)
	switch {
	case name == "":
		return nil
	case name == sealData:
		return fmt.Errorf("%w: the data of %s are not those with which %s: their digest is %s, and was %s; bring "+
			"them back", perdure.ErrUsage, path, since, mine, others)
	}
	return fmt.Errorf("%w: %s says %s %s, and %s with %s; put it back: another one makes another model",
		perdure.ErrUsage, path, name, mine, since, others)
}

// readEarlier reads what a run of that folder is to go on from: its settings and its newest
// checkpoint, or what it has left in its update log. It refuses a run that is alive, and settings that no run can
// have; whether they are those of the checkpoint says checkSeal, once they are complete.
func readEarlier(folder string, own bool) (s Run, m checkpoint.Manifest, err error) {
	if err := refuseAlive(folder); err != nil {
		return s, m, err
	}
	if s, err = ReadToRun(filepath.Join(folder, "run.json")); err != nil {
		return s, m, err
	}
	if err := s.otherCommand(own, "--resume", folder); err != nil {
		return s, m, err
	}
	if err := recovery.Of(s.Job.Recovery).MayResume(); err != nil {
		return s, m, fmt.Errorf("%w: %s: %w; begin anew with --from %s", perdure.ErrUsage, folder, err,
			filepath.Join(folder, "run.json"))
	}
	if recovery.Of(s.Job.Recovery).Traits().Logged() {
		st, err := s.readEnded(context.Background(), folder)
		if err != nil {
			return s, m, fmt.Errorf("%s: its update log: %w", folder, err)
		}
		return s, TakeEnded(st, &s), nil
	}
	from, err := s.OpenStore(context.Background(), folder)
	if err != nil {
		return s, m, err
	}
	known := recorded(context.Background(), folder)
	if s.Saved = nil; recovery.RoundsOf(s.Job.Recovery).Any() {
		m, err = ReadSaved(naming(from, known), &s)
	} else {
		m, err = readNewest(from, known, &s)
	}
	if err != nil {
		return s, m, err
	}
	s.Checkpoints.noteLost(from, known, &m, s.Saved)
	takeSlots(&m, &s)
	return s, m, m.CheckJob(s.Job.ID)
}

// takeSlots puts the slots of a run in the place of those of the checkpoint that it went on from itself: it may have
// gone on with other workers. One that it has saved says itself who takes part.
func takeSlots(m *checkpoint.Manifest, s *Run) {
	if s.Resumed != "" && m.Generation <= s.Generation {
		m.Slots, m.PastClocks = s.Slots, s.Checkpoints.PastClocks
	}
}

// ReadSealed reads the run.json with which a checkpoint was made, and opens what it trains: another
// one, and other data, are refused.
func ReadSealed(path string, m *checkpoint.Manifest) (s Run, err error) {
	if s, err = ReadToRun(path); err != nil {
		return s, err
	}
	if err := s.openOf(path); err != nil {
		return s, err
	}
	return s, s.checkSeal(path, m)
}

// refuseAlive refuses the folder of a run that goes on, in a process that it names.
func refuseAlive(folder string) error {
	holder, err := rundir.Alive(folder)
	if errors.Is(err, rundir.ErrAlive) {
		return fmt.Errorf("%w: the run in %s goes on, in %s; end it first, with perdure stop --run %s",
			perdure.ErrUsage, folder, holder, folder)
	}
	return err
}

// CheckSameJob refuses to work in a job whose seal is not of the run.json at path: it was changed
// since the job began, say. The data are not read again: the run that began the job has read them.
func (s *Run) CheckSameJob(path string, w workload.Workload, job perdure.JobSpec) error {
	now, err := s.Seal(w, "")
	if err != nil {
		return err
	}
	was := job.Seal.Without(func(name string) bool { return name == sealData })
	return sameSeal(path, &now, "the job began", &was)
}
