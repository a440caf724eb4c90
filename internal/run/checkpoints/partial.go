package checkpoints

import (
	"slices"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/protocol"
	"github.com/perdure/perdure/internal/core/scar"
	"github.com/perdure/perdure/internal/data/checkpoint"
	"github.com/perdure/perdure/internal/data/store"
	"github.com/perdure/perdure/internal/data/table"
)

// PartialCheckpoint is the running checkpoint of one shard whose rows are in this process. Like a server under scar, it
// saves some rows at a time and restores them as last saved. A scar.Ledger chooses the rows, and they are stored as
// segments of a checkpoint. A simulated loss of a shard thus runs the same code as a real one. PartialCheckpoint
// belongs to one goroutine.
type PartialCheckpoint struct {
	in     store.Store
	job    *perdure.JobSpec
	id     perdure.ShardID
	ledger *scar.Ledger
	saves  uint64
	taken  int64
	bytes  int64
	files  []string // existing files
}

// NewPartialCheckpoint starts with a shard whose rows are initial and of which nothing is saved.
func NewPartialCheckpoint(
	in store.Store,
	job *perdure.JobSpec,
	id perdure.ShardID,
	parts []*table.Part,
) *PartialCheckpoint {
	s := &PartialCheckpoint{in: in, job: job, id: id, ledger: scar.New(ledgerSettings(job, id))}
	for t, p := range parts {
		s.ledger.Added(perdure.TableID(t), p)
	}
	return s
}

func ledgerSettings(job *perdure.JobSpec, id perdure.ShardID) scar.Settings {
	return scar.Settings{
		Selector: job.Recovery.Selector, Share: job.Recovery.Share, Seed: job.Seed, Shard: id,
	}
}

// Changed records that an update has changed count rows: those in ids or, for a dense table, consecutive ones from
// first.
func (s *PartialCheckpoint) Changed(
	t perdure.TableID,
	p *table.Part,
	first perdure.RowID,
	ids []perdure.RowID,
	count int,
) {
	s.ledger.Changed(t, p, first, ids, count)
}

// Save saves the rows chosen for the given number of due rounds. of holds the progress of the shard and its slot
// states; Save adds the rows and a name.
func (s *PartialCheckpoint) Save(parts []*table.Part, rounds int64, of *checkpoint.Segment) error {
	s.taken += rounds
	choice := s.ledger.Choose(parts, rounds)
	if choice.Bytes == 0 {
		s.ledger.Unwritten(choice)
		return nil
	}
	s.saves++
	of.Job, of.Shard, of.Epoch, of.Number, of.Tables = s.job.ID, s.id, 1, s.saves, nil
	for t, p := range parts {
		of.Tables = append(of.Tables, SegmentRows(p, choice.Runs[t]))
	}
	ref, err := checkpoint.WriteSegment(s.in, of)
	if err != nil {
		return err
	}
	s.bytes += ref.Bytes
	s.ledger.Written(choice, protocol.SegmentFile(ref.Self()))
	return s.drop(ref.File)
}

// drop deletes files that the running checkpoint no longer needs.
func (s *PartialCheckpoint) drop(newest string) error {
	var stay, gone []string
	for _, name := range append(s.files, newest) {
		if slices.ContainsFunc(s.ledger.Files(), func(f protocol.SegmentFile) bool { return f.File == name }) {
			stay = append(stay, name)
		} else {
			gone = append(gone, name)
		}
	}
	s.files = stay
	return s.in.Delete(gone...)
}

// Bytes returns the number of bytes written.
func (s *PartialCheckpoint) Bytes() int64 { return s.bytes }

// SavedRows returns the shard's rows as last saved. It changes nothing.
func (s *PartialCheckpoint) SavedRows(specs []perdure.TableSpec) ([]*table.Part, error) {
	r, err := s.restore(specs)
	if err != nil {
		return nil, err
	}
	return r.parts, nil
}

func (s *PartialCheckpoint) restore(specs []perdure.TableSpec) (*restoredShard, error) {
	var files []checkpoint.FileRef
	for _, f := range s.ledger.Files() {
		files = append(files, checkpoint.FileRef(f))
	}
	return restoreRows(s.in, s.job, s.id, files, specs)
}

// SimulateLoss simulates the death of the shard. It returns the rows as last saved, with which the shard continues, and
// starts a new ledger.
func (s *PartialCheckpoint) SimulateLoss(specs []perdure.TableSpec) ([]*table.Part, error) {
	r, err := s.restore(specs)
	if err != nil {
		return nil, err
	}
	with := ledgerSettings(s.job, s.id)
	with.Saves = uint64(s.taken) // prevents random from repeating its choices
	files := s.ledger.Files()
	s.ledger.Close()
	if len(files) > 0 {
		s.ledger = scar.Resume(with, r.parts, files, r.layers.FileIndex)
		return r.parts, nil
	}
	s.ledger = scar.New(with)
	for t, p := range r.parts {
		s.ledger.Added(perdure.TableID(t), p)
	}
	return r.parts, nil
}

// pieceBytes is the size of the pieces in which a table is read.
const pieceBytes = 256 << 10

// SegmentRows returns some rows of a table for writing.
func SegmentRows(p *table.Part, runs []table.Run) checkpoint.TableRows {
	rows := p.SnapshotRuns(runs)
	room := make([]byte, pieceBytes)
	return checkpoint.TableRows{
		Spec: p.Spec, First: int64(p.First),
		Stream: &checkpoint.Stream{
			Rows: int64(rows.Rows()), Runs: rows.Runs(),
			Next: func() ([]byte, error) {
				b, _ := rows.Next(len(room), func(int) []byte { return room })
				return b, nil
			},
		},
	}
}
