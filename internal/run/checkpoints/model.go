package checkpoints

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/recovery"
	"github.com/perdure/perdure/internal/data/disk"
	"github.com/perdure/perdure/internal/data/safetensors"
	"github.com/perdure/perdure/internal/run/humanize"
	"github.com/perdure/perdure/internal/run/modelfile"
	"github.com/perdure/perdure/internal/run/rundir"
	"github.com/perdure/perdure/internal/run/settings"
)

// ExportRun writes the model of the run in a directory. If the run has finished without writing its model, it exports
// the checkpoint of its end, and if the run has not finished, the newest whole checkpoint. It replaces an existing file
// only if force is set. partial is as [Location.Partial].
func ExportRun(out io.Writer, run, to string, force, partial, asJSON bool) error {
	if err := MayWrite(to, "model.safetensors", force); err != nil {
		return err
	}
	sum, err := rundir.ReadSummary(run)
	ended := err == nil
	if ended && sum.ModelSHA256 != nil {
		model, err := disk.OpenRegular(filepath.Join(run, "model.safetensors"))
		if err == nil {
			defer func() { _ = model.Close() }()
			tell := humanize.NewPrinter(out, asJSON)
			write, err := finalModel(tell, model, partial)
			if err != nil {
				return fmt.Errorf("%s: %w", model.Name(), err)
			}
			return writeFinal(tell, write, &sum, run, to)
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	f, err := Open(run)
	if err != nil {
		return perdure.Usagef("%s has no model: the run has not ended, and has no checkpoint to export", run)
	}
	f.Partial = partial
	if ended && recovery.Of(sum.Recovery).Traits().SavesCuts() {
		f.Clock = &sum.Clocks
	}
	return f.Export(out, to, force, asJSON)
}

// finalModel returns a function that writes the final model of a run: a copy of the file or, for a perdure.torch
// program, the tensors of its state_dict.
func finalModel(tell *humanize.Printer, model *os.File, partial bool) (write func(io.Writer) error, err error) {
	info, err := model.Stat()
	if err != nil {
		return nil, err
	}
	names, err := safetensors.ReadNames(model, info.Size())
	if err != nil {
		return nil, err
	}
	if !modelfile.IsDescribed(names) {
		return func(to io.Writer) error {
			_, err := io.Copy(to, model)
			return err
		}, nil
	}
	tables, meta, err := safetensors.Read(model, info.Size())
	if err != nil {
		return nil, err
	}
	tensors, err := stateDict(tell, tables, nil, partial)
	if err != nil {
		return nil, err
	}
	return func(to io.Writer) error { return safetensors.Write(to, tensors, meta) }, nil
}

// stateDict returns the tensors of a perdure.torch program's state_dict. saved has the weights if the tables do not.
// Without partial, all values must be known.
func stateDict(tell *humanize.Printer, tables []safetensors.Tensor, saved *modelfile.Saved, partial bool,
) ([]safetensors.Tensor, error) {
	tensors, missing, err := modelfile.StateDict(tables, saved)
	if err != nil {
		return nil, err
	}
	if len(missing) > 0 && !partial {
		return nil, modelfile.ErrMissing(missing)
	}
	for _, name := range missing {
		tell.Note("omitted: %s", name)
	}
	return tensors, nil
}

// writeFinal writes the final model of a run and reports it.
func writeFinal(tell *humanize.Printer, write func(io.Writer) error, sum *rundir.Summary, run, to string) error {
	if err := disk.WriteFile(disk.OS(), filepath.ToSlash(to), write); err != nil {
		return err
	}
	e := exportResult{Clock: sum.Clocks, File: to, Model: *sum.ModelSHA256, Notes: tell.Notes()}
	if s, err := settings.Read(filepath.Join(run, "run.json")); err == nil {
		e.Job = s.Job.ID
	}
	tell.Line("clock %d, at the end of the run: %s\nmodel %s", e.Clock, to, e.Model)
	return tell.End(e)
}
