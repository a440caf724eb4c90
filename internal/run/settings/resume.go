package settings

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/membership"
	"github.com/perdure/perdure/internal/core/protocol"
	"github.com/perdure/perdure/internal/core/recovery"
	"github.com/perdure/perdure/internal/data/checkpoint"
)

// This file makes the settings of a run that resumes, forks or repeats an earlier run.

// DefaultWorkload is the workload that is trained unless the user names another.
const DefaultWorkload = "softmax"

// The flags that may be given with --from, --resume and --fork. All other settings are those of the earlier run.
var (
	repeatFlags    = []string{"out", "fault", "listen", "grace", "max-failures", "store", "delay", "bandwidth"}
	ownResumeFlags = append([]string{"clocks", "servers", "recovery", "mtbf", "keep-checkpoints"}, repeatFlags...)
	resumeFlags    = append([]string{"workers", "until", "eval-every"}, ownResumeFlags...)
)

// allowedFlags returns the flags that may be given with --resume, --fork or --from.
func (a *Flags) allowedFlags(with string) []string {
	switch {
	case with == "--from":
		return repeatFlags
	case a.isOwnWorkload():
		return ownResumeFlags
	}
	return resumeFlags
}

// CheckEffective returns an error for flags that would have no effect together with --resume or --from.
func (a *Flags) CheckEffective(with string) error {
	its := []string{strings.TrimPrefix(with, "--"), "quiet"}
	if a.isOwnWorkload() {
		its[1] = "exec"
	}
	for name := range a.Given {
		if name == "workers" && a.isOwnWorkload() { // python -m perdure launch always passes it; see checkSameWorkload
			continue
		}
		if !slices.Contains(its, name) && !slices.Contains(a.allowedFlags(with), name) {
			return perdure.Usagef("--%s cannot be changed with %s, which keeps the earlier run's value; remove it",
				name, with)
		}
	}
	return nil
}

// checkSameWorkload returns an error if the earlier run belongs to another command, or trains another workload than the
// named one.
func (a *Flags) checkSameWorkload(s *Run, with, path string) error {
	if err := s.otherCommand(a.isOwnWorkload(), with, path); err != nil {
		return err
	}
	if a.Workload != "" && a.Workload != s.Job.Workload {
		return perdure.Usagef("%s is a run of %s, not of %s; leave the workload out", path, s.Job.Workload, a.Workload)
	}
	if a.isOwnWorkload() && a.Given["workers"] && a.Shape.Workers != s.Job.Slots {
		return perdure.Usagef("--workers %d cannot be changed with %s: the run in %s has %d workers; start as many",
			a.Shape.Workers, with, path, s.Job.Slots)
	}
	return nil
}

// Repeat makes the settings of a run that starts another run over, from that run's run.json.
func (a *Flags) Repeat(file string) (s Run, err error) {
	if err := a.CheckEffective("--from"); err != nil {
		return s, err
	}
	if s, err = ReadForNewRun(file); err != nil {
		return s, err
	}
	if err := a.checkSameWorkload(&s, "--from", file); err != nil {
		return s, err
	}
	if len(a.Faults) > 0 {
		s.Faults = a.Faults
	}
	a.applyNetwork(&s)
	if err := a.applyStore(&s, file); err != nil {
		return s, err
	}
	s.Job.ID = NewJobID()
	if s.Resumed != "" {
		return s, perdure.Usagef("%s was itself resumed from %s; use %s", file, s.Resumed, s.RestartFlag())
	}
	if s.Checkpoints.Init != nil { // facts about the model's copy belong to that run
		s.Checkpoints.Init.Read, s.Tables, s.Saved = true, nil, nil
	}
	if err := s.checkFlags(); err != nil {
		return s, err
	}
	if err := s.openNamed(file); err != nil {
		return s, err
	}
	return s, a.CompletePerRun(&s)
}

// Resume makes the settings of a run that resumes the run in a directory from its checkpoint.
func (a *Flags) Resume(dir string) (s Run, err error) {
	if err := a.CheckEffective("--resume"); err != nil {
		return s, err
	}
	s, m, err := readEarlier(dir, a.isOwnWorkload())
	if err != nil {
		return s, err
	}
	if err := a.checkSameWorkload(&s, "--resume", dir); err != nil {
		return s, err
	}
	was := s.Job.Recovery
	if err := a.applyStore(&s, filepath.Join(dir, "run.json")); err != nil {
		return s, err
	}
	if err := a.applyTo(&s); err != nil {
		return s, err
	}
	if err := sameForm(was, s.Job.Recovery); err != nil {
		return s, err
	}
	s.Checkpoints.Forked = false
	if err := a.changeWorkers(&s, &m); err != nil {
		return s, err
	}
	if err := s.startFrom(dir, &m); err != nil {
		return s, err
	}
	if s.Checkpoints.Ended != nil { // its streams belong to the earlier job
		s.Job.ID = NewJobID()
	} else if s.Saved == nil { // otherwise its files were verified when it was chosen
		s.Checkpoints.From = m.Names()
		from, err := s.OpenEarlier(context.Background())
		if err == nil {
			err = checkpoint.Verify(from, m)
		}
		if err != nil {
			return s, err
		}
	}
	return s, a.CompletePerRun(&s)
}

// Fork makes the settings of a new job that starts from a checkpoint of the run in a directory. The earlier run is not
// changed and may still be running.
func (a *Flags) Fork(dir string, k *checkpoint.Info) (s Run, err error) {
	if err := a.CheckEffective("--fork"); err != nil {
		return s, err
	}
	if s, err = ReadForNewRun(filepath.Join(dir, "run.json")); err != nil {
		return s, err
	}
	if err := a.checkSameWorkload(&s, "--fork", dir); err != nil {
		return s, err
	}
	if err := a.applyStore(&s, filepath.Join(dir, "run.json")); err != nil {
		return s, err
	}
	if err := a.applyTo(&s); err != nil {
		return s, err
	}
	if k.Number > 0 { // rows that are all of one clock can be saved separately, but not the other way round
		if err := sameForm(k.Manifest.Job.Recovery, s.Job.Recovery); err != nil {
			return s, err
		}
	}
	s.Saved, s.Checkpoints.Fork, s.Checkpoints.Forked = nil, k, true
	if k.Number > 0 {
		from, err := openStore(context.Background(), s.Checkpoints.Earlier, dir)
		if err == nil {
			s.Checkpoints.furthest, err = checkpoint.MaxClock(from, &k.Running)
		}
		if err != nil {
			return s, err
		}
	}
	replaceSlots(&k.Manifest, &s)
	if err := a.changeWorkers(&s, &k.Manifest); err != nil {
		return s, err
	}
	if err := s.startFrom(dir, &k.Manifest); err != nil {
		return s, err
	}
	s.Job.ID = NewJobID()
	return s, a.CompletePerRun(&s)
}

// StartFrom makes a run start from a checkpoint of the run in a directory, or from an equivalent state.
func StartFrom(s *Run, dir string, m *checkpoint.Manifest) error {
	at := max(m.Clocks.Least(m.Cut), m.Clocks.Most(m.Cut)-1, s.Checkpoints.furthest-1)
	if s.Job.Clocks > 0 && s.Job.Clocks <= at {
		return perdure.Usagef("%s is already at clock %d; set a larger --clocks", dir, at)
	}
	if t := recovery.TraitsOf(&s.Job); m.Clocks != nil && !t.CutsBySlot {
		return perdure.Usagef("--recovery %s cannot start from the checkpoint of clock %d of %s, in which each "+
			"worker is at a clock of its own; choose checkpoint:C, resend:C or chain:N,checkpoint:C", s.Job.Recovery,
			m.Cut, dir)
	}
	s.Resumed, s.Generation, s.Cut, s.Tables, s.Slots = dir, m.Generation, m.Cut, m.Tables, m.Slots
	s.Checkpoints.PastClocks, s.Checkpoints.Clocks = m.PastClocks, m.Clocks
	return nil
}

// startFrom completes the settings of a run that starts from a checkpoint of the run in a directory.
func (s *Run) startFrom(dir string, m *checkpoint.Manifest) error {
	if err := StartFrom(s, dir, m); err != nil {
		return err
	}
	if err := s.checkFlags(); err != nil {
		return err
	}
	file := filepath.Join(dir, "run.json")
	if err := s.openNamed(file); err != nil {
		return err
	}
	return s.checkSeal(file, m)
}

// changeWorkers changes the number of workers of a resumed run if the user asked for that.
func (a *Flags) changeWorkers(s *Run, m *checkpoint.Manifest) error {
	if s.Checkpoints.Workers = 0; !a.Given["workers"] || a.isOwnWorkload() {
		return nil
	}
	return ChangeWorkers(s, a.Shape.Workers, m)
}

// ChangeWorkers makes a run resume from a checkpoint with a different number of workers. The new number applies from
// the first clock that no slot has started: the data of earlier clocks were divided among the earlier workers.
func ChangeWorkers(s *Run, workers int, m *checkpoint.Manifest) (err error) {
	at := max(m.Clocks.Most(m.Cut), s.Checkpoints.furthest)
	if at == 0 {
		return perdure.Usagef("--workers %d: the run is at clock 0; start a new run with that many workers, with "+
			"--init and the same model", workers)
	}
	saved := m.Slots
	if len(saved) == 0 { // all slots take part throughout
		saved = make([]protocol.Interval, s.Job.Slots)
	}
	s.Checkpoints.Workers = workers
	if m.Slots, err = membership.RescaledIntervals(saved, s.Checkpoints.Workers, at); err != nil {
		return err
	}
	if s.Job.Clocks > 0 && s.Job.Clocks <= at {
		return perdure.Usagef("--workers %d takes effect at clock %d, but the run ends at clock %d; set a larger "+
			"--clocks", s.Checkpoints.Workers, at, s.Job.Clocks)
	}
	return nil
}

// RestartFlag returns the flag that starts this run over if it was resumed or forked from another run.
func (s *Run) RestartFlag() string {
	workers := ""
	if s.Checkpoints.Workers > 0 {
		workers = fmt.Sprintf(" --workers %d", s.Checkpoints.Workers)
	}
	if s.Checkpoints.Forked {
		return fmt.Sprintf("--fork %s@%d%s", s.Resumed, s.Cut, workers)
	}
	return "--resume " + s.Resumed + workers
}

// applyTo applies the given flags to the settings of the resumed run.
func (a *Flags) applyTo(s *Run) (err error) {
	s.Faults = a.Faults
	a.applyNetwork(s)
	if a.Given["clocks"] {
		if s.Job.Clocks, err = parseClocks(a.Shape.Clocks); err != nil {
			return err
		}
	}
	if a.Given["servers"] {
		s.Job.Servers = a.Shape.Servers
	}
	if a.Given["recovery"] {
		if s.Job.Recovery, err = perdure.ParseRecovery(a.Shape.Recovery); err != nil {
			return err
		}
		if s.Log, err = a.newLog(&s.Job); err != nil {
			return err
		}
	}
	if err := a.applyMTBF(&s.Job); err != nil {
		return err
	}
	if a.Given["keep-checkpoints"] {
		s.Checkpoints.Keep = a.Keep
		if err := a.rejectIneffective(&s.Job); err != nil {
			return err
		}
	}
	if a.Given["eval-every"] {
		if s.EvalEvery, s.EvalMs, err = parseEvalEvery(a.Work.EvalEvery); err != nil {
			return err
		}
	}
	if a.Given["until"] {
		s.Until, err = parseGoal(a.Work.Until, s.Job.Workload)
	}
	return err
}

// applyNetwork applies --delay and --bandwidth to the settings of an earlier run.
func (a *Flags) applyNetwork(s *Run) {
	if a.Given["delay"] {
		s.Delay = a.Delay
	}
	if a.Given["bandwidth"] {
		s.Bandwidth = a.Bandwidth
	}
}

// applyMTBF applies --mtbf to the job of an earlier run. The earlier value is kept only if the recovery strategy uses
// it.
func (a *Flags) applyMTBF(job *perdure.JobSpec) (err error) {
	if !job.Recovery.Auto {
		job.MTBF = 0
	}
	if !a.Given["mtbf"] {
		return nil
	}
	if job.MTBF, err = a.mtbf(); err != nil {
		return err
	}
	return a.rejectIneffective(job)
}
