package main

import (
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/checkpoint"
	"github.com/perdure/perdure/internal/data/disk"
	"github.com/perdure/perdure/internal/run/settings"
)

// This file has how a run goes on from an earlier one's checkpoint, or repeats it.

// taken are the flags that go with --resume and --from; the run's own settings
// hold for all else.
var taken = map[string][]string{
	"train --resume": {
		"resume", "out", "quiet", "fault", "clocks", "servers", "recovery", "mtbf", "until",
		"eval-every", "listen", "grace", "delay", "bandwidth",
	},
	"train --from": {"from", "out", "quiet", "fault", "listen", "grace", "delay", "bandwidth"},
	"up --resume": {
		"resume", "out", "fault", "clocks", "servers", "recovery", "mtbf", "listen", "grace", "delay",
		"bandwidth",
	},
	"up --from": {"from", "out", "fault", "listen", "grace", "delay", "bandwidth"},
}

// onlyTaken refuses flags that would be ignored beside --resume or --from.
func (f *jobFlags) onlyTaken(command, with string) error {
	for name := range f.given {
		if !slices.Contains(taken[command+" "+with], name) {
			return fmt.Errorf("%w: --%s cannot be changed with %s, which takes that run's; leave it out",
				perdure.ErrUsage, name, with)
		}
	}
	return nil
}

// repeat makes the settings of a run that repeats another: that of a run.json.
func (f *jobFlags) repeat(file string, own bool) (settings.Run, error) {
	s, err := settings.ReadToRun(file)
	if err != nil {
		return s, err
	}
	if err := s.OtherCommand(own, "--from", file); err != nil {
		return s, err
	}
	if len(f.Fault) > 0 {
		s.Faults = f.Fault
	}
	f.takeDistance(&s)
	s.Version, s.Job.ID = version, settings.NewJobID()
	if s.Resumed != "" {
		return s, fmt.Errorf("%w: %s went on from %s; use --resume with that folder", perdure.ErrUsage, file, s.Resumed)
	}
	if err := s.CheckFlags(); err != nil {
		return s, err
	}
	return s, s.OpenOf(file)
}

// goOn makes the settings of a run that goes on from the checkpoint of the one in a
// folder; more lets flags of the command's own replace its settings.
func (f *jobFlags) goOn(folder string, own bool, more func(s *settings.Run) error) (settings.Run, error) {
	s, m, err := settings.ReadEarlier(folder, own)
	if err != nil {
		return s, err
	}
	s.Version, s.Faults = version, f.Fault
	f.takeDistance(&s)
	if f.given["clocks"] {
		if s.Job.Clocks, err = settings.ParseClocks(f.Clocks); err != nil {
			return s, err
		}
	}
	if f.given["servers"] {
		s.Job.Servers = f.Servers
	}
	if f.given["recovery"] {
		if s.Job.Recovery, err = perdure.ParseRecovery(f.Recovery); err != nil {
			return s, err
		}
		if s.Log, err = f.log(&s.Job); err != nil {
			return s, err
		}
	}
	if err := f.takeMTBF(&s.Job); err != nil {
		return s, err
	}
	if err := more(&s); err != nil {
		return s, err
	}
	if s.Job.Clocks <= m.Cut {
		return s, fmt.Errorf("%w: %s stands at clock %d already; ask for more with --clocks", perdure.ErrUsage, folder,
			m.Cut)
	}
	s.Resumed, s.Generation, s.Cut, s.Tables, s.Slots = folder, m.Generation, m.Cut, m.Tables, m.Slots
	if err := s.CheckFlags(); err != nil {
		return s, err
	}
	file := filepath.Join(folder, "run.json")
	if err := s.OpenOf(file); err != nil {
		return s, err
	}
	if err := s.CheckSeal(file, &m); err != nil {
		return s, err
	}
	return s, checkpoint.Verify(disk.OS(), filepath.Join(folder, "checkpoint"), m)
}

// parseGrace reads --grace.
func (f *jobFlags) parseGrace() (time.Duration, error) {
	if f.Grace == "" {
		return 0, nil
	}
	d, err := time.ParseDuration(f.Grace)
	if err != nil || d < 0 {
		return 0, fmt.Errorf("%w: --grace %q; write how long a last checkpoint may take, for example 10s, or 0s to "+
			"make none", perdure.ErrUsage, f.Grace)
	}
	return d, nil
}
