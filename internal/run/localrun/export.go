package localrun

import (
	"bufio"
	"context"
	"errors"
	"io"
	"log/slog"
	"path/filepath"

	"github.com/perdure/perdure/internal/data/disk"
	"github.com/perdure/perdure/internal/data/safetensors"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/run/reach"
	"github.com/perdure/perdure/internal/run/tally"
	"github.com/perdure/perdure/internal/run/training"
	"github.com/perdure/perdure/worker"
	"github.com/perdure/perdure/workload"
)

// export reads the whole model as of the job's end from the servers, judges it
// on the test set and writes it.
func (r *Run) export(ctx context.Context) (m tally.Model, err error) {
	w, err := workload.New(r.s.Job.Workload, r.s.Params)
	if err != nil {
		return m, err
	}
	network, err := r.s.Network(wire.RoleObserver, 0)
	if err != nil {
		return m, err
	}
	c, err := reach.Observe(ctx, worker.Config{
		Network: network, Coordinator: r.addr, Secret: r.secrets.Job, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return m, err
	}
	defer c.Close()
	m.Clock = c.End()
	c.At(m.Clock)
	t, err := training.Open(ctx, c, w)
	if err != nil {
		return m, err
	}
	var tensors []safetensors.Tensor
	for _, spec := range w.Tables() {
		more, err := tensorsOf(ctx, t.Table(spec.Name))
		if err != nil {
			return m, err
		}
		tensors = append(tensors, more...)
	}
	if m.Eval, err = w.Evaluate(ctx, t); err != nil {
		return m, err
	}
	m.SHA256 = safetensors.Hash(tensors)
	return m, r.keepModel(ctx, func(out io.Writer) error {
		buf := bufio.NewWriterSize(out, 1<<20)
		meta := safetensors.Metadata(r.s.Job.Workload, m.Clock, w.Constants())
		return errors.Join(safetensors.Write(buf, tensors, meta), buf.Flush())
	})
}

// modelFile is what the model is called, in the run's folder and in the store of its checkpoints.
const modelFile = "model.safetensors"

// keepModel writes the model into the run's folder, and into the store that the run was given: what it leaves is then
// there whatever becomes of this machine.
func (r *Run) keepModel(ctx context.Context, write func(io.Writer) error) error {
	path := filepath.Join(r.dir.Path(), modelFile)
	err := r.insist(ctx, "the model", func() error { return disk.WriteFile(disk.OS(), path, write) })
	if err != nil || r.s.Checkpoints.Store == "" {
		return err
	}
	return r.insist(ctx, "the model", func() error { return r.kept.Put(modelFile, write) })
}

// tensorsOf reads a whole table: of a sparse one, the rows that it stores.
func tensorsOf(ctx context.Context, t *worker.Table) ([]safetensors.Tensor, error) {
	spec := t.Spec()
	if !spec.Sparse {
		values := make([]float32, spec.Rows*int64(spec.Dim))
		err := t.GetRun(ctx, 0, values)
		return []safetensors.Tensor{{Name: spec.Name, Shape: []int64{spec.Rows, int64(spec.Dim)}, Data: values}}, err
	}
	ids, err := t.StoredRows(ctx)
	if err != nil {
		return nil, err
	}
	values := make([]float32, len(ids)*spec.Dim)
	if err := t.GetRows(ctx, ids, values); err != nil {
		return nil, err
	}
	rows, numbers, err := safetensors.Sparse(spec.Name, spec.Dim, ids, values)
	return []safetensors.Tensor{rows, numbers}, err
}
