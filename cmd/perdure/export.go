package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/disk"
	"github.com/perdure/perdure/safetensors"
	"github.com/perdure/perdure/wire"
	"github.com/perdure/perdure/worker"
	"github.com/perdure/perdure/workload"
)

// model is what a job has made.
type model struct {
	clock  perdure.Clock
	sha256 string
	eval   workload.Eval
}

// export reads the whole model as of the job's end from the servers, judges it
// on the test set and writes model.safetensors.
func (j *localJob) export(ctx context.Context) (m model, err error) {
	w, err := workload.New(j.s.Job.Workload, j.s.Params)
	if err != nil {
		return m, err
	}
	network, err := j.s.network(wire.RoleObserver, 0)
	if err != nil {
		return m, err
	}
	c, err := worker.Dial(ctx, worker.Config{
		Network: network, Coordinator: j.addr, Observer: true, Process: processName(), Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return m, err
	}
	defer c.Close()
	m.clock = c.End()
	c.At(m.clock)
	t, err := openTables(ctx, c, w)
	if err != nil {
		return m, err
	}
	var tensors []safetensors.Tensor
	for _, spec := range w.Tables() {
		values := make([]float32, spec.Rows*int64(spec.Dim))
		if err := t.Get(ctx, spec.Name, 0, values); err != nil {
			return m, err
		}
		tensors = append(tensors, safetensors.Tensor{Name: spec.Name, Shape: []int64{spec.Rows, int64(spec.Dim)}, Data: values})
	}
	if m.eval, err = w.Evaluate(ctx, t); err != nil {
		return m, err
	}
	m.sha256 = safetensors.Hash(tensors)
	path := filepath.Join(j.dir.Path(), "model.safetensors")
	err = disk.WriteFile(disk.OS(), path, func(out io.Writer) error {
		buf := bufio.NewWriterSize(out, 1<<20)
		meta := map[string]string{"format": "pt", "clock": fmt.Sprint(m.clock), "workload": j.s.Job.Workload}
		return errors.Join(safetensors.Write(buf, tensors, meta), buf.Flush())
	})
	return m, err
}
