package checkpoints

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/disk"
	"github.com/perdure/perdure/internal/data/safetensors"
	"github.com/perdure/perdure/internal/run/humanize"
	"github.com/perdure/perdure/internal/run/rundir"
	"github.com/perdure/perdure/internal/run/settings"
)

// ExportRun writes the model of the run in a directory. If the run has not finished, it exports the newest whole
// checkpoint. It replaces an existing file only if force is set.
func ExportRun(out io.Writer, run, to string, force, asJSON bool) error {
	if err := MayWrite(to, "model.safetensors", force); err != nil {
		return err
	}
	sum, err := rundir.ReadSummary(run)
	if err == nil && sum.ModelSHA256 != nil {
		model, err := disk.OpenRegular(filepath.Join(run, "model.safetensors"))
		if err == nil {
			defer func() { _ = model.Close() }()
			if err := rejectUnnamed(model, run); err != nil {
				return err
			}
			return copyModel(humanize.NewPrinter(out, asJSON), model, &sum, run, to)
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	f, err := Open(run)
	if err != nil {
		return fmt.Errorf("%w: %s has no model: the run has not ended, and has no checkpoint to export",
			perdure.ErrUsage, run)
	}
	return f.Export(out, to, force, asJSON)
}

// rejectUnnamed rejects the model of a perdure.torch program. Its tensors are rows of tables without the names and
// shapes of parameters, so they cannot be converted to a state_dict.
func rejectUnnamed(model *os.File, run string) error {
	info, err := model.Stat()
	if err != nil {
		return err
	}
	names, err := safetensors.ReadNames(model, info.Size())
	if err != nil {
		return fmt.Errorf("%s: %w", model.Name(), err)
	}
	if slices.Contains(names, "layout") && slices.Contains(names, "weights.0.begin") {
		return fmt.Errorf("%w: %s is the run of a PyTorch program, whose tables have no parameter names: save "+
			"model.state_dict() in the program after the with block, in the process with job.slot == 0; %s has the "+
			"tables' rows",
			perdure.ErrUsage, run, model.Name())
	}
	return nil
}

// copyModel copies the final model of a run.
func copyModel(tell *humanize.Printer, model io.Reader, sum *rundir.Summary, run, to string) error {
	err := disk.WriteFile(disk.OS(), filepath.ToSlash(to), func(file io.Writer) error {
		_, err := io.Copy(file, model)
		return err
	})
	if err != nil {
		return err
	}
	e := exportResult{Clock: sum.Clocks, File: to, Model: *sum.ModelSHA256, Notes: tell.Notes()}
	if s, err := settings.Read(filepath.Join(run, "run.json")); err == nil {
		e.Job = s.Job.ID
	}
	tell.Line("clock %d, at the end of the run: %s\nmodel %s", e.Clock, to, e.Model)
	return tell.End(e)
}
