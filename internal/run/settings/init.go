package settings

import (
	"context"
	"errors"
	"path/filepath"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/placement"
	"github.com/perdure/perdure/internal/data/safetensors"
	"github.com/perdure/perdure/internal/run/modelfile"
	"github.com/perdure/perdure/internal/run/workload"
)

// This file implements starting a run with the model of another run.

// Init is the model that a run starts with. Its hash is part of the job.
type Init struct {
	File string `json:"file"`

	Read  bool             `json:"-"` // this run starts with it; false if a later run resumes from one that did
	Model *modelfile.Model `json:"-"` // nil: not read, or written to the run's checkpoints
}

// inherit reads the model that a job starts with. It returns an error if the model does not fit the workload, which
// needs the asked tables. It returns the tables as the job will create them, because they must be known before any
// worker requests them.
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
		return nil, perdure.Usagef("%s is not the model that the run started with: its hash is %.16s…, but was "+
			"%.16s…; restore the original file", in.Model.Path, sum, was)
	}
	job.Init = sum
	for _, spec := range asked {
		spec.Rule = spec.Rule.WithDefaults()
		spec.Shard = placement.PlaceTable(&spec, tables, job.Shards, job.Servers)
		tables = append(tables, spec)
	}
	return tables, in.Model.Fits(context.Background(), w, tables)
}

// validate checks that a run started with a model if and only if its job names that model's hash.
func (in *Init) validate(job *perdure.JobSpec) error {
	switch {
	case (in == nil) != (job.Init == ""):
		return errors.New("this setting and job.init must both be set, or neither")
	case in != nil && in.File == "":
		return errors.New("file is empty")
	}
	return nil
}
