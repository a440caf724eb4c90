package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/perdure/perdure/internal/run/jobs"
)

// jobCmds are about the jobs of a registry of many.
type jobCmds struct {
	Create jobCreateCmd `cmd:"" help:"@job_create"`
	Ls     jobLsCmd     `cmd:"" help:"List the jobs of a registry."`
	Show   jobShowCmd   `cmd:"" help:"@job_show"`
	Stop   jobStopCmd   `cmd:"" help:"@job_stop"`
	Rm     jobRmCmd     `cmd:"" help:"@job_rm"`
}

// inRegistry is a registry of many jobs.
type inRegistry struct {
	Registry string `env:"PERDURE_REGISTRY" help:"@job_registry" placeholder:"URL"`
}

// in does something in the registry.
func (f *inRegistry) in(ctx context.Context, do func(r *jobs.Registry) error) error {
	r, err := jobs.Open(ctx, f.Registry)
	if err != nil {
		return err
	}
	return errors.Join(do(r), r.Close())
}

type jobCreateCmd struct {
	File string `arg:"" help:"@job_file" type:"path"`
	Name string `help:"@job_name" placeholder:"NAME"`
	inRegistry
}

func (c *jobCreateCmd) Run(ctx context.Context) error {
	job, err := readJob(ctx, c.File)
	if err != nil {
		return err
	}
	s, err := job.Check()
	if err != nil {
		return err
	}
	return c.in(ctx, func(r *jobs.Registry) error {
		j, err := r.Create(ctx, jobs.Asked{
			Name: c.Name, File: c.File, Text: job.Text, Settings: &s, Log: job.Log, Version: version,
		})
		if err != nil {
			return err
		}
		fmt.Fprintf(stdout, "job %s is recorded in %s; perdure job show %s says what comes next\n", j.Name, r, j.Name)
		if lacks := jobs.Lacks(&s); lacks != "" {
			warn(lacks)
		}
		return nil
	})
}

type jobLsCmd struct {
	Quiet bool `short:"q" help:"Print names alone."`
	JSON  bool `name:"json" help:"Print JSON, for programs."`
	inRegistry
}

func (c *jobLsCmd) Run(ctx context.Context) error {
	return c.in(ctx, func(r *jobs.Registry) error {
		all, err := r.List(ctx)
		if err != nil {
			return err
		}
		return r.Print(stdout, all, c.Quiet, c.JSON)
	})
}

type jobShowCmd struct {
	Name string `arg:"" help:"The job's name."`
	JSON bool   `name:"json" help:"Print JSON, for programs."`
	inRegistry
}

func (c *jobShowCmd) Run(ctx context.Context) error {
	return c.in(ctx, func(r *jobs.Registry) error {
		j, err := r.Look(ctx, c.Name)
		if err != nil {
			return err
		}
		return r.Show(stdout, j, c.JSON)
	})
}

type jobStopCmd struct {
	Name string `arg:"" help:"The job's name."`
	inRegistry
}

func (c *jobStopCmd) Run(ctx context.Context) error {
	return c.in(ctx, func(r *jobs.Registry) error { return r.Stop(ctx, stdout, c.Name) })
}

type jobRmCmd struct {
	Names []string `arg:"" name:"name" help:"The jobs' names."`
	Force bool     `help:"@job_force"`
	inRegistry
}

func (c *jobRmCmd) Run(ctx context.Context) error {
	return c.in(ctx, func(r *jobs.Registry) error {
		for _, name := range c.Names {
			if err := r.Remove(ctx, stdout, name, c.Force); err != nil {
				return err
			}
		}
		return nil
	})
}
