package checkpoints

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strconv"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/placement"
	"github.com/perdure/perdure/internal/core/protocol"
	"github.com/perdure/perdure/internal/core/slotstate"
	"github.com/perdure/perdure/internal/data/checkpoint"
	"github.com/perdure/perdure/internal/data/disk"
	"github.com/perdure/perdure/internal/data/safetensors"
	"github.com/perdure/perdure/internal/data/store"
	"github.com/perdure/perdure/internal/data/table"
	"github.com/perdure/perdure/internal/run/humanize"
	"github.com/perdure/perdure/internal/run/modelfile"
	"github.com/perdure/perdure/internal/run/settings"
	"github.com/perdure/perdure/internal/run/workload"
)

// Export writes the model of the checkpoint of f.Clock, or of the newest whole one, in the format of a run's model. It
// replaces an existing file only if force is set.
func (f *Location) Export(out io.Writer, to string, force, asJSON bool) error {
	tell := humanize.NewPrinter(out, asJSON)
	if err := MayWrite(to, "model.safetensors", force); err != nil {
		return err
	}
	return f.withRetries(func() (meanwhile bool, err error) { return f.exportOne(tell, to) })
}

// exportOne writes the model of the first candidate that is whole. meanwhile reports whether the job deleted a
// checkpoint while it was read.
func (f *Location) exportOne(tell *humanize.Printer, to string) (meanwhile bool, err error) {
	found, err := f.selected()
	if err != nil {
		return false, err
	}
	kept := found.Checkpoints
	for i := range kept {
		k := &kept[i]
		m, err := f.model(k)
		switch {
		case err == nil:
			return false, f.write(tell, k, m, to)
		case f.isDeleted(k):
			return true, nil
		case errors.Is(err, perdure.ErrUsage):
			return false, err
		case len(kept) == 1:
			return false, fmt.Errorf("%w%s", err, f.reloadOlderHint(k))
		}
		tell.Note("the checkpoint of clock %s is damaged: %s", clockText(k.Cut), humanize.ErrorText(err))
	}
	return false, fmt.Errorf("%s holds no complete checkpoint", f.Store)
}

// reloadOlderHint returns a hint to the next older whole checkpoint.
func (f *Location) reloadOlderHint(k *checkpoint.Info) string {
	found, err := f.find()
	if err != nil {
		return ""
	}
	return f.olderHint(&found, k)
}

// MayWrite returns an error if the file to exists and force is not set, or if its directory does not exist. name is an
// example of a file name, for the message.
func MayWrite(to, name string, force bool) error {
	info, err := os.Stat(to)
	switch {
	case err == nil && info.IsDir():
		return perdure.Usagef("--to %s is a directory; choose a file, for example %s", to, filepath.Join(to, name))
	case err == nil && !info.Mode().IsRegular():
		return perdure.Usagef("--to %s is not a regular file; choose another", to)
	case err == nil && !force:
		return perdure.Usagef("%s already exists; choose another name, or add --force", to)
	case err == nil || errors.Is(err, fs.ErrNotExist):
	default:
		return err
	}
	if info, err := os.Stat(filepath.Dir(to)); err != nil || !info.IsDir() {
		return perdure.Usagef("directory %s does not exist; create it, or choose another --to", filepath.Dir(to))
	}
	return nil
}

// exportResult is the JSON output of Export.
type exportResult struct {
	Clock perdure.Clock `json:"clock"`
	Job   string        `json:"job"`
	File  string        `json:"file"`
	Model string        `json:"model_sha256"` // of the tables, or of the tensors if the weights are in no table
	Notes []string      `json:"notes"`        // remarks
}

// write writes a model and reports it.
func (f *Location) write(tell *humanize.Printer, k *checkpoint.Info, m *model, to string) error {
	origin := safetensors.Origin{Job: &k.Manifest.Job, Clock: k.Cut}
	f.finish(tell, &k.Manifest, m.tensors, &origin)
	meta, hash := safetensors.Metadata(origin), safetensors.Hash(m.tensors)
	var names []string
	for i := range m.tensors {
		names = append(names, m.tensors[i].Name)
	}
	if modelfile.IsDescribed(names) {
		var err error
		if m.tensors, err = stateDict(tell, m.tensors, m.saved, f.Partial); err != nil {
			return fmt.Errorf("%s: %w", f.Store, err)
		}
	}
	if m.saved != nil {
		hash = safetensors.Hash(m.tensors)
		meta["steps"] = strconv.FormatInt(m.saved.Steps, 10)
		if !m.saved.Over {
			tell.Note("the weights are those after %s: a checkpoint of DataParallel has them as they were before its "+
				"last step; for newer ones, call export in the program", humanize.Count(int(m.saved.Steps), "step"))
		}
	}
	err := disk.WriteFile(disk.OS(), filepath.ToSlash(to), func(file io.Writer) error {
		buf := bufio.NewWriterSize(file, 1<<20)
		return errors.Join(safetensors.Write(buf, m.tensors, meta), buf.Flush())
	})
	if err != nil {
		return err
	}
	e := exportResult{k.Cut, k.Manifest.Job.ID, to, hash, tell.Notes()}
	tell.Line("clock %d of job %s: %s\nmodel %s", e.Clock, e.Job, to, e.Model)
	return tell.End(e)
}

// finish repairs the model if its workload needs that, and adds to its origin what the run and the workload know: the
// version, the training data, and the constants needed for predictions.
func (f *Location) finish(
	t *humanize.Printer,
	m *checkpoint.Manifest,
	tensors []safetensors.Tensor,
	o *safetensors.Origin,
) {
	if m.Job.Workload == settings.OwnWorkload {
		return
	}
	s, w, err := f.workload(m)
	if err != nil {
		t.Note("the file has no metadata for predictions: %s",
			humanize.ErrorText(err))
		return
	}
	modelfile.Repair(w, tensors)
	o.Version, o.Data, o.Constants = s.Version, w.Describe().Data, w.Constants()
}

// workload opens the workload of the run, if the checkpoint matches the run's settings.
func (f *Location) workload(m *checkpoint.Manifest) (settings.Run, workload.Workload, error) {
	if f.Run == "" {
		return settings.Run{}, nil, errNoRun
	}
	s, err := settings.ReadSealed(filepath.Join(f.Run, "run.json"), m)
	if err != nil {
		return s, nil, err
	}
	w, err := workload.New(m.Job.Workload, s.WorkParams())
	return s, w, err
}

// model is the model of a checkpoint.
type model struct {
	tensors []safetensors.Tensor // the tables
	saved   *modelfile.Saved     // the weights, if they are in the slots' states
}

// model reads a checkpoint.
func (f *Location) model(k *checkpoint.Info) (*model, error) {
	if !k.IsComplete() {
		return nil, fmt.Errorf("%s/%s", f.Store, k.Defects()[0])
	}
	tensors, state, err := f.tables(k)
	if err != nil {
		return nil, err
	}
	m := &model{tensors: tensors}
	if modelfile.IsSaved(k.Manifest.Tables) {
		m.saved, err = f.weights(k, state)
	}
	return m, err
}

// weights reads the weights from the state of the slot that has saved them.
func (f *Location) weights(k *checkpoint.Info, state []byte) (saved *modelfile.Saved, err error) {
	of, err := slotstate.Unpack(state)
	switch {
	case err != nil:
	case of.Clock+1 != k.Cut:
		return nil, perdure.Usagef("the checkpoint of clock %d has no weights: the slots saved no state in its last "+
			"clock; export a later checkpoint, or call export in the program", k.Cut)
	case of.Ref == nil:
		saved, err = modelfile.ReadSaved(bytes.NewReader(of.State), int64(len(of.State)))
	default:
		return f.storedWeights(of.Ref.File())
	}
	if err != nil {
		return nil, fmt.Errorf("%s/%s: state of slot %d: %w", f.Store, k.File, saver(&k.Manifest), err)
	}
	return saved, nil
}

// storedWeights reads the weights from a state that is an object of its own.
func (f *Location) storedWeights(file protocol.SavedFile) (saved *modelfile.Saved, err error) {
	var unusable error
	err = store.ReadState(f.Store, file, func(n int64, from io.Reader) error {
		from = io.LimitReader(from, n)
		saved, unusable = modelfile.ReadSaved(from, n)
		_, err := io.Copy(io.Discard, from) // a damaged object is reported as such, whatever it seems to contain
		return err
	})
	if err == nil && unusable != nil {
		err = fmt.Errorf("%s/%s: %w", f.Store, file.File, unusable)
	}
	return saved, err
}

// saver returns the slot whose program has saved the weights: see SharedState.Saver in package worker.
func saver(m *checkpoint.Manifest) perdure.Slot {
	for i, s := range m.Slots {
		if s.Has(m.Cut - 1) {
			return perdure.Slot(i)
		}
	}
	return 0
}

// tables reads the tables of a checkpoint, and the state of the slot that has saved the weights.
func (f *Location) tables(k *checkpoint.Info) (all []safetensors.Tensor, state []byte, err error) {
	m := &k.Manifest
	tables := newValues(k)
	for i := range k.Running.Shards {
		r, err := f.restore(&k.Running, k.Running.Shards[i].Shard)
		if err != nil {
			return nil, nil, err
		}
		for t, part := range r.parts {
			tables[t].Add(part.Image())
		}
	}
	for _, ref := range m.Segments {
		s, err := checkpoint.Restore(f.Store, *m, ref.Shard, nil)
		if err != nil {
			return nil, nil, err
		}
		if err := m.CheckSegment(s); err != nil {
			return nil, nil, fmt.Errorf("%s/%s: %w", f.Store, ref.File, err)
		}
		if of := saver(m); ref.Shard == placement.HomeShard(of, m.Job.Shards) && int(of) < len(s.States) {
			state = s.States[of]
		}
		for t, spec := range m.Tables {
			if omits(m, t) {
				continue
			}
			if t < len(s.Tables) {
				tables[t].Add(s.Tables[t].Image)
			} else if !spec.Sparse { // added after the cut, so it has its initial rows
				first, rows := placement.Range(&spec, m.Job.Shards, ref.Shard)
				tables[t].Add(table.New(spec, perdure.TableID(t), m.Job.Seed, first, rows).Image())
			}
		}
	}
	for i := range tables {
		if omits(m, i) {
			continue
		}
		more, err := tables[i].Tensors(m.Tables[i])
		if err != nil {
			return nil, nil, err
		}
		all = append(all, more...)
	}
	return all, state, nil
}

// omits reports whether a table is not part of the model: a sum of gradients, which is as large as the model.
func omits(m *checkpoint.Manifest, t int) bool {
	return m.Tables[t].Transient && modelfile.IsSaved(m.Tables)
}

// newValues allocates the values of a checkpoint's tables. The size of the files limits the allocation, except for
// running checkpoints, whose initial rows are in no file.
func newValues(k *checkpoint.Info) []modelfile.Values {
	most := int64(0) // in values
	for _, file := range k.Files() {
		most += file.Bytes / 4
	}
	if k.Number > 0 {
		most = math.MaxInt64
	}
	m := &k.Manifest
	tables := make([]modelfile.Values, len(m.Tables))
	for i, t := range m.Tables {
		if !t.Sparse && !omits(m, i) {
			tables[i].Rows = make([]float32, 0, min(t.Rows, most/int64(t.Dim))*int64(t.Dim))
		}
	}
	return tables
}
