package settings

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/placement"
	"github.com/perdure/perdure/internal/data/safetensors"
	"github.com/perdure/perdure/internal/run/modelfile"
	"github.com/perdure/perdure/internal/run/workload"
)

// This file has how a run begins with a model that another one has made.

// Init is the model that a run begins with. Its hash is the job's.
type Init struct {
	File string `json:"file"`

	Read  bool             `json:"-"` // this run begins with it, and is no later one that goes on
	Model *modelfile.Model `json:"-"` // nil: it was not read, or is written where the run has its checkpoints
}

// inherit reads the model that a job begins with, and refuses one that does not fit its workload, which asks for these
// tables. It returns them as the job will have them: they are known before anybody asks for them.
func (in *Init) inherit(w workload.Workload, job *perdure.JobSpec, asked []perdure.TableSpec,
) (tables []perdure.TableSpec, err error) {
	if in.File, err = filepath.Abs(in.File); err != nil {
		return nil, err
	}
	if in.Model, err = modelfile.Open(in.File); err != nil {
		return nil, err
	}
	sum := safetensors.Hash(in.Model.Tensors)
	if was := job.Init; was != "" && was != sum {
		return nil, fmt.Errorf("%w: %s is another model than the one with which the run began: its hash is %.16s…, "+
			"and was %.16s…; bring that back", perdure.ErrUsage, in.Model.Path, sum, was)
	}
	job.Init = sum
	for _, spec := range asked {
		spec.Rule = spec.Rule.WithDefaults()
		spec.Shard = placement.Place(&spec, tables, job.Shards, job.Servers)
		tables = append(tables, spec)
	}
	return tables, in.Model.Fits(context.Background(), w, tables)
}

// odd: a run began with a model, and then its job says with which.
func (in *Init) odd(job *perdure.JobSpec) error {
	switch {
	case (in == nil) != (job.Init == ""):
		return errors.New("a run that began with a model has it and job.init, and another one neither")
	case in != nil && in.File == "":
		return errors.New("file is empty")
	}
	return nil
}
