package checkpoint

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/protocol"
	"github.com/perdure/perdure/internal/core/recovery"
	"github.com/perdure/perdure/internal/data/disk"
	"github.com/perdure/perdure/internal/data/store"
)

// RunningVersion is the version of the running manifest format.
const RunningVersion = 1

// The manifest of a running checkpoint is a sealed document (see disk.Seal) whose JSON body is the type Running,
// indented. It is immutable.
const runningKind = "RUNNING-CHECKPOINT"

// Running describes a running checkpoint: for each row the value that was saved last, in segments of selected rows.
// Rows that are in no segment have their initial values.
type Running struct {
	Number     uint64              `json:"number"` // from 1; higher is newer
	Job        perdure.JobSpec     `json:"job"`
	Generation perdure.Generation  `json:"generation"`
	Clock      perdure.Clock       `json:"clock"` // the job's MinClock at that time
	Tables     []perdure.TableSpec `json:"tables"`
	// when each participates, as known at the time; empty: from the job's start to its end
	Slots      []protocol.Interval `json:"slots,omitempty"`
	PastClocks int64               `json:"past_clocks,omitempty"` // as in Manifest
	Shards     []RunningShard      `json:"shards"`                // exactly one per shard, in order
	SavedAt    time.Time           `json:"saved_at"`
}

// RunningShard names the segments of one shard's running checkpoint.
type RunningShard struct {
	Shard perdure.ShardID `json:"shard"`
	Files []FileRef       `json:"files,omitempty"` // oldest first; empty if nothing has been saved yet
	// States lists the objects that hold slot states to which the last file only refers.
	States []FileRef `json:"states,omitempty"`
}

// CheckJob returns ErrOtherJob unless the running checkpoint belongs to the job with that ID.
func (m *Running) CheckJob(id string) error {
	if m.Job.ID != id {
		return fmt.Errorf("checkpoint: %s %w: %q, not %q", m.name(), ErrOtherJob, m.Job.ID, id)
	}
	return nil
}

// Files returns all files that the running checkpoint needs: segments and slot states.
func (m *Running) Files() (files []FileRef) {
	for _, s := range m.Shards {
		files = append(append(files, s.Files...), s.States...)
	}
	return files
}

// Manifest returns the job's description in the form of a cut's manifest, without segments.
func (m *Running) Manifest() Manifest {
	return Manifest{
		Job: m.Job, Generation: m.Generation, Cut: m.Clock, Tables: m.Tables, Slots: m.Slots,
		PastClocks: m.PastClocks, SavedAt: m.SavedAt,
	}
}

func (m *Running) name() string { return RunningFile(m.Number) }

// RunningFile returns the name of the manifest with that number.
func RunningFile(number uint64) string { return fmt.Sprintf("r%012d.running", number) }

var runningName = regexp.MustCompile(`^r(\d+)\.running$`)

func parseRunningName(name string) (number uint64, ok bool) {
	m := runningName.FindStringSubmatch(name)
	if m == nil {
		return 0, false
	}
	number, err := strconv.ParseUint(m[1], 10, 64)
	return number, err == nil && RunningFile(number) == name
}

func (m *Running) encode() ([]byte, error) {
	body, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return nil, err
	}
	return disk.Seal(runningKind, RunningVersion, append(body, '\n')), nil
}

func decodeRunning(sealed []byte) (m Running, err error) {
	body, err := disk.Unseal(runningKind, RunningVersion, sealed)
	if err != nil {
		return m, err
	}
	if err := json.Unmarshal(body, &m); err != nil {
		return m, corrupt("%v", err)
	}
	if err := m.check(); err != nil {
		return m, corrupt("%v", err)
	}
	return m, nil
}

// check returns an error if the manifest is invalid in itself, whatever the store holds.
func (m *Running) check() error {
	if err := recovery.Check(&m.Job); err != nil {
		return err
	}
	if m.Number < 1 || m.Clock < 0 || m.PastClocks < 0 {
		return fmt.Errorf("invalid number %d (must be ≥ 1), clock %d (must be ≥ 0) or past clocks %d (must be ≥ 0)",
			m.Number, m.Clock,
			m.PastClocks)
	}
	for _, t := range m.Tables {
		if err := t.Validate(m.Job.Shards); err != nil {
			return err
		}
	}
	if len(m.Shards) != m.Job.Shards {
		return fmt.Errorf("it has %d shards, but the job has %d", len(m.Shards), m.Job.Shards)
	}
	for i, s := range m.Shards {
		if s.Shard != perdure.ShardID(i) {
			return fmt.Errorf("shard %d is at position %d of %d; each shard must occur once, in order", s.Shard, i,
				len(m.Shards))
		}
		if err := cmp.Or(checkRowsFiles(s.Shard, s.Files), checkStates(s.States)); err != nil {
			return err
		}
		if last := s.last(); last.generation > m.Generation {
			return fmt.Errorf("%s belongs to a later generation than %d", s.Files[len(s.Files)-1].File, m.Generation)
		}
	}
	return nil
}

// last returns the key of the shard's newest segment, or the zero rowsKey, which precedes all others, if there is none.
func (s *RunningShard) last() (k rowsKey) {
	if n := len(s.Files); n > 0 {
		k, _, _ = parseRowsName(s.Files[n-1].File)
	}
	return k
}

// PublishRunning creates a running checkpoint from segments that have been written. It checks that all named files
// exist at full length, then writes the manifest durably and atomically. Publishing the same manifest again has no
// effect. It returns perdure.ErrFenced if the number or the generation is lower than the newest, or if a different
// manifest has this number. A store holds the running checkpoints of one job.
func PublishRunning(in store.Store, m Running) error {
	m.Shards = slices.Clone(m.Shards)
	slices.SortFunc(m.Shards, func(a, b RunningShard) int { return cmp.Compare(a.Shard, b.Shard) })
	failed := func(err error) error { return fmt.Errorf("checkpoint: publish %s: %w", m.name(), err) }
	sealed, err := m.encode()
	if err == nil {
		_, err = decodeRunning(sealed) // a manifest that cannot be read back must not be published
	}
	if err != nil {
		return failed(err)
	}
	old, err := LatestRunning(in)
	if err != nil && !errors.Is(err, ErrNoCheckpoint) {
		return err
	}
	if err == nil {
		if err := old.CheckJob(m.Job.ID); err != nil {
			return err
		}
		if err := m.checkSuccessor(&old, sealed); err != nil {
			return failed(err)
		}
	}
	if err := writeManifest(in, m.name(), sealed, m.Files()); err != nil {
		return failed(err)
	}
	return nil
}

// checkSuccessor returns an error unless the manifest may be published while old is the newest.
func (m *Running) checkSuccessor(old *Running, sealed []byte) error {
	switch {
	case old.Generation > m.Generation:
		return fmt.Errorf("%s has generation %d, but the new manifest has %d: %w", old.name(), old.Generation,
			m.Generation, perdure.ErrFenced)
	case old.Number > m.Number:
		return fmt.Errorf("%s is newer: %w", old.name(), perdure.ErrFenced)
	case old.Number == m.Number:
		if there, err := old.encode(); err != nil || string(there) != string(sealed) {
			return fmt.Errorf("a different manifest has this number: %w", perdure.ErrFenced)
		}
	}
	return nil
}

// readRunning reads the manifest with that number.
func readRunning(in store.Store, number uint64) (m Running, err error) {
	sealed, err := store.Read(in, RunningFile(number))
	if err != nil {
		return m, fmt.Errorf("checkpoint: read manifest: %w", err)
	}
	m, err = decodeRunning(sealed)
	if err == nil && m.Number != number {
		err = corrupt("it describes %s", m.name())
	}
	if err != nil {
		return Running{}, fmt.Errorf("checkpoint: manifest %s/%s: %w", in, RunningFile(number), err)
	}
	return m, nil
}

// LatestRunning returns the newest running checkpoint whose manifest is valid; it is durable. Manifests that are
// damaged or written by another version of Perdure are treated as in Latest. Segments are not examined.
func LatestRunning(in store.Store) (Running, error) {
	numbers, err := manifests(in, "r", parseRunningName, cmp.Compare)
	if err != nil {
		return Running{}, err
	}
	return newest(in, numbers, readRunning)
}

// LatestCompleteRunning returns the newest complete running checkpoint: all its files were read and verified. Newer,
// damaged ones are skipped; passed lists their defects. A manifest of another version of Perdure is an error, as for
// Latest. If the store has no complete one, the error is ErrNoCheckpoint.
func LatestCompleteRunning(in store.Store) (m Running, passed []Defect, err error) {
	numbers, err := manifests(in, "r", parseRunningName, cmp.Compare)
	if err != nil {
		return m, nil, err
	}
	audit := NewAudit(in)
	m, err = newest(in, numbers, func(_ store.Store, number uint64) (Running, error) {
		m, err := readRunning(in, number)
		if errors.Is(err, ErrCorrupt) {
			passed = append(passed, Defect{File: RunningFile(number), Err: err})
		}
		if err != nil {
			return m, err
		}
		wrong, whole := audit.Running(m)
		passed = append(passed, wrong...)
		if !whole {
			return Running{}, fmt.Errorf("checkpoint: %s names a file that is %w", m.name(), ErrCorrupt)
		}
		return m, nil
	})
	return m, passed, err
}

// Running reads all segments of a running checkpoint and returns their defects. Defects of a file that was already
// reported for another checkpoint are not repeated; whole reports whether this checkpoint is free of defects.
func (a *Audit) Running(m Running) (defects []Defect, whole bool) {
	whole = true
	for _, s := range m.Shards {
		for _, f := range s.Files {
			one := a.auditFile(f.File)
			wrong := one.defects
			if len(wrong) == 0 {
				wrong = m.segmentDefects(s.Shard, f, one)
			} else if one.reported {
				wrong, whole = nil, false
			}
			one.reported = true
			whole, defects = whole && len(wrong) == 0, append(defects, wrong...)
		}
		wrong, good := a.states(s.States)
		whole, defects = whole && good, append(defects, wrong...)
	}
	return defects, whole
}

// segmentDefects returns the defects of a shard's segment with respect to the manifest.
func (m *Running) segmentDefects(shard perdure.ShardID, f FileRef, one *segmentAudit) []Defect {
	if err := checkRowsFile(m.Job.ID, shard, f, one.segment, one.sum); err != nil {
		return []Defect{{File: f.File, Err: err}}
	}
	for t, has := range one.tables {
		if err := checkRowCount(m.name(), m.Tables, m.Job.Shards, shard, t, has); err != nil {
			return []Defect{{File: f.File, Err: err}}
		}
	}
	return nil
}
