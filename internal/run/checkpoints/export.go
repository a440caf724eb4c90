package checkpoints

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/placement"
	"github.com/perdure/perdure/internal/data/checkpoint"
	"github.com/perdure/perdure/internal/data/disk"
	"github.com/perdure/perdure/internal/data/safetensors"
	"github.com/perdure/perdure/internal/data/table"
	"github.com/perdure/perdure/internal/run/modelfile"
	"github.com/perdure/perdure/internal/run/plain"
	"github.com/perdure/perdure/internal/run/settings"
	"github.com/perdure/perdure/internal/run/workload"
)

// Export writes the model of a checkpoint, as a run writes its own: that of the clock, or the
// newest one that is whole. It replaces no file but by force.
func (f *Folder) Export(out io.Writer, to string, force, asJSON bool) error {
	tell := plain.Tell(out, asJSON)
	if err := MayWrite(to, "model.safetensors", force); err != nil {
		return err
	}
	return f.retried(func() (meanwhile bool, err error) { return f.exportOne(tell, to) })
}

// exportOne writes the model of the first checkpoint that is whole, of those that may be meant.
// meanwhile says that one was deleted by its job while it was read.
func (f *Folder) exportOne(tell *plain.Teller, to string) (meanwhile bool, err error) {
	found, err := f.asked()
	if err != nil {
		return false, err
	}
	kept := found.Kept
	for i := range kept {
		k := &kept[i]
		tensors, err := f.model(k)
		switch {
		case err == nil:
			return false, f.write(tell, k, tensors, to)
		case f.gone(k):
			return true, nil
		case len(kept) == 1:
			return false, fmt.Errorf("%w%s", err, f.other(k))
		}
		tell.Note("clock %s is not whole: %s", clockText(k.Cut), plain.Text(err))
	}
	return false, fmt.Errorf("%s holds no checkpoint that is whole", f.Store)
}

// other names the next older checkpoint that is whole, where one that was asked for is not.
func (f *Folder) other(k *checkpoint.Kept) string {
	found, err := f.look()
	if err != nil {
		return ""
	}
	return f.offer(&found, k)
}

// MayWrite refuses a place for a file that is taken, or has no folder. The name is one that the file may have.
func MayWrite(to, name string, force bool) error {
	info, err := os.Stat(to)
	switch {
	case err == nil && info.IsDir():
		return fmt.Errorf("%w: --to %s is a folder; name a file, for example %s", perdure.ErrUsage, to,
			filepath.Join(to, name))
	case err == nil && !info.Mode().IsRegular():
		return fmt.Errorf("%w: --to %s is no regular file; name another", perdure.ErrUsage, to)
	case err == nil && !force:
		return fmt.Errorf("%w: %s is there already; choose another name, or write --force", perdure.ErrUsage, to)
	case err == nil || errors.Is(err, fs.ErrNotExist):
	default:
		return err
	}
	if info, err := os.Stat(filepath.Dir(to)); err != nil || !info.IsDir() {
		return fmt.Errorf("%w: there is no folder %s; make it, or choose another --to", perdure.ErrUsage,
			filepath.Dir(to))
	}
	return nil
}

// exported is what was written, for programs.
type exported struct {
	Clock perdure.Clock `json:"clock"`
	Job   string        `json:"job"`
	File  string        `json:"file"`
	Model string        `json:"model_sha256"`
	Notes []string      `json:"notes"` // what else is to be said
}

// write writes a model, and says so.
func (f *Folder) write(tell *plain.Teller, k *checkpoint.Kept, tensors []safetensors.Tensor, to string) error {
	origin := safetensors.Origin{Job: &k.Manifest.Job, Clock: k.Cut}
	f.finish(tell, &k.Manifest, tensors, &origin)
	meta := safetensors.Metadata(origin)
	err := disk.WriteFile(disk.OS(), filepath.ToSlash(to), func(file io.Writer) error {
		buf := bufio.NewWriterSize(file, 1<<20)
		return errors.Join(safetensors.Write(buf, tensors, meta), buf.Flush())
	})
	if err != nil {
		return err
	}
	e := exported{k.Cut, k.Manifest.Job.ID, to, safetensors.Hash(tensors), tell.Notes()}
	tell.Line("clock %d of job %s: %s\nmodel %s", e.Clock, e.Job, to, e.Model)
	return tell.End(e)
}

// finish mends a model, and completes its origin with what its run and its workload know: the version, the data with
// which the checkpoint was made, and what predictions need beside the tables.
func (f *Folder) finish(t *plain.Teller, m *checkpoint.Manifest, tensors []safetensors.Tensor, o *safetensors.Origin) {
	if m.Job.Workload == settings.OwnWorkload {
		return
	}
	s, w, err := f.workload(m)
	if err != nil {
		t.Note("its metadata say how it was trained, and not what predictions need of the data: %s",
			plain.Text(err))
		return
	}
	modelfile.Mend(w, tensors)
	o.Version, o.Data, o.Constants = s.Version, w.Describe().Data, w.Constants()
}

// workload opens what the run trains, if that is what the checkpoint was made with.
func (f *Folder) workload(m *checkpoint.Manifest) (settings.Run, workload.Workload, error) {
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

// model reads the tables of a checkpoint, as a run reads them in its end.
func (f *Folder) model(k *checkpoint.Kept) ([]safetensors.Tensor, error) {
	if !k.Whole() {
		return nil, fmt.Errorf("%s/%s", f.Store, k.Defects()[0])
	}
	m := &k.Manifest
	tables := room(k)
	for i := range k.Running.Shards {
		r, err := f.restore(&k.Running, k.Running.Shards[i].Shard)
		if err != nil {
			return nil, err
		}
		for t, part := range r.parts {
			tables[t].add(part.Image())
		}
	}
	for _, ref := range m.Segments {
		s, err := checkpoint.Restore(f.Store, *m, ref.Shard, nil)
		if err != nil {
			return nil, err
		}
		if err := m.Fits(s); err != nil {
			return nil, fmt.Errorf("%s/%s: %w", f.Store, ref.File, err)
		}
		for t, spec := range m.Tables {
			if t < len(s.Tables) {
				tables[t].add(s.Tables[t].Image)
			} else if !spec.Sparse { // it was added after the cut, and has its initial rows
				first, rows := placement.Range(&spec, m.Job.Shards, ref.Shard)
				tables[t].add(table.New(spec, perdure.TableID(t), m.Job.Seed, first, rows).Image())
			}
		}
	}
	var all []safetensors.Tensor
	for i := range tables {
		more, err := tables[i].tensors(m.Tables[i])
		if err != nil {
			return nil, err
		}
		all = append(all, more...)
	}
	return all, nil
}

// values are the rows of a table, of shard after shard: a dense one's are then in order.
type values struct {
	rows []float32
	ids  []perdure.RowID
}

// room is for the values of a checkpoint's tables: never more than its files are long, unless rows
// are in none, and made anew.
func room(k *checkpoint.Kept) []values {
	most := int64(0) // values
	for _, file := range k.Files() {
		most += file.Bytes / 4
	}
	if k.Number > 0 {
		most = math.MaxInt64
	}
	m := &k.Manifest
	tables := make([]values, len(m.Tables))
	for i, t := range m.Tables {
		if !t.Sparse {
			tables[i].rows = make([]float32, 0, min(t.Rows, most/int64(t.Dim))*int64(t.Dim))
		}
	}
	return tables
}

func (v *values) add(img table.Image) {
	for _, piece := range img.Planes[0] {
		v.rows = append(v.rows, piece...)
	}
	for _, piece := range img.IDs {
		v.ids = append(v.ids, piece...)
	}
}

func (v *values) tensors(spec perdure.TableSpec) ([]safetensors.Tensor, error) {
	if !spec.Sparse {
		shape := []int64{spec.Rows, int64(spec.Dim)}
		return []safetensors.Tensor{{Name: spec.Name, Shape: shape, Data: v.rows}}, nil
	}
	rows, ids, err := safetensors.Sparse(spec.Name, spec.Dim, v.ids, v.rows)
	return []safetensors.Tensor{rows, ids}, err
}
