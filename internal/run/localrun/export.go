package localrun

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"path/filepath"
	"slices"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/disk"
	"github.com/perdure/perdure/internal/data/safetensors"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/hooks"
	"github.com/perdure/perdure/internal/run/locate"
	"github.com/perdure/perdure/internal/run/modelfile"
	"github.com/perdure/perdure/internal/run/role"
	"github.com/perdure/perdure/internal/run/settings"
	"github.com/perdure/perdure/internal/run/workload"
	"github.com/perdure/perdure/worker"
)

// maxOwnModelBytes limits the tables of a user's own program whose model is written, in bytes. All values are kept in
// the memory of this process, on the machine of the servers. Larger models can be exported from a checkpoint.
const maxOwnModelBytes = 4 << 30

// trainedModel is the model of a job.
type trainedModel struct {
	tensors   []safetensors.Tensor
	eval      workload.Eval
	findings  []string
	constants map[string]string // needed for predictions in addition to the tensors
	data      string            // the data set's name
}

// export reads the whole model at the job's end from the servers and writes it. If a workload made it, export also
// evaluates it on the test set. It returns nil if there are no tables or they are too large.
func (r *Run) export(ctx context.Context) (*finalModel, error) {
	network, err := r.s.Network(wire.RoleObserver, 0, r.ring)
	if err != nil {
		return nil, err
	}
	c, err := locate.Observe(hooks.NewContext(ctx, hooks.Worker{Network: network}), worker.Config{
		Coordinator: r.coordinatorAddr, Secret: r.secrets.Job, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return nil, err
	}
	defer c.Close()
	end := c.End()
	c.SetReadClock(end)
	var m *trainedModel
	if r.workers {
		m, err = readTrained(ctx, c, &r.s)
	} else {
		m, err = r.ownTables(ctx, c)
	}
	if err != nil || m == nil {
		return nil, err
	}
	return &finalModel{Clock: end, SHA256: safetensors.Hash(m.tensors), Eval: m.eval, Findings: m.findings},
		r.writeModel(ctx, func(out io.Writer) error {
			buf := bufio.NewWriterSize(out, 1<<20)
			meta := safetensors.Metadata(safetensors.Origin{
				Job: &r.s.Job, Clock: end, Version: r.s.Version, Data: m.data, Constants: m.constants,
			})
			return errors.Join(safetensors.Write(buf, m.tensors, meta), buf.Flush())
		})
}

// readTrained returns the model that a workload has trained.
func readTrained(ctx context.Context, c *worker.Client, s *settings.Run) (*trainedModel, error) {
	w, err := workload.New(s.Job.Workload, s.WorkParams())
	if err != nil {
		return nil, err
	}
	t, err := role.OpenTables(ctx, c, w)
	if err != nil {
		return nil, err
	}
	m := &trainedModel{constants: w.Constants(), data: w.Describe().Data}
	for _, spec := range w.Tables() {
		more, err := tensorsOf(ctx, t.Table(spec.Name))
		if err != nil {
			return nil, err
		}
		m.tensors = append(m.tensors, more...)
	}
	modelfile.Repair(w, m.tensors)
	if m.eval, err = w.Evaluate(ctx, t); err != nil {
		return m, err
	}
	if says, is := w.(workload.FindingsReporter); is {
		m.findings, err = says.Findings(ctx, t)
	}
	return m, err
}

// ownTables returns the tables that a user's own programs made. It returns nil if they made no table or keep the
// weights themselves, or if the tables are too large.
func (r *Run) ownTables(ctx context.Context, c *worker.Client) (*trainedModel, error) {
	v, err := r.Control().View(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the model's tables: %w", err)
	}
	m := &trainedModel{eval: workload.Eval{Loss: math.NaN(), Accuracy: math.NaN(), RMSE: math.NaN()}}
	bytes := int64(0)
	if slices.ContainsFunc(v.Tables, func(t perdure.TableSpec) bool { return t.Transient }) {
		return nil, nil // the programs keep the weights
	}
	for _, spec := range v.Tables {
		if bytes += 4 * spec.Rows * int64(spec.Dim); bytes > maxOwnModelBytes {
			break
		}
		t, err := c.Table(ctx, spec.Requested())
		if err != nil {
			return nil, err
		}
		more, err := tensorsOf(ctx, t)
		if err != nil {
			return nil, err
		}
		if m.tensors = append(m.tensors, more...); spec.Sparse {
			bytes += 4 * int64(len(more[0].Data))
		}
	}
	if bytes > maxOwnModelBytes {
		r.view.Message(fmt.Sprintf("no model is written, because its tables have more than %d GiB; perdure checkpoint "+
			"export can write one from a checkpoint", maxOwnModelBytes>>30))
		return nil, nil
	}
	if len(m.tensors) == 0 {
		return nil, nil
	}
	return m, nil
}

// modelFile is the name of the model in the run's directory and in the store of its checkpoints.
const modelFile = "model.safetensors"

// writeModel writes the model to the run's directory and to the run's store if one was given. The result then survives
// the loss of this machine.
func (r *Run) writeModel(ctx context.Context, write func(io.Writer) error) error {
	path := filepath.Join(r.dir.Path(), modelFile)
	err := r.retryWrite(ctx, "the model", func() error { return disk.WriteFile(disk.OS(), path, write) })
	if err != nil || r.s.Checkpoints.Store == "" {
		return err
	}
	return r.retryWrite(ctx, "the model", func() error { return r.store.Put(modelFile, write) })
}

// tensorsOf reads a whole table, or the stored rows of a sparse table.
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
