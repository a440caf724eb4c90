package main

import (
	"github.com/perdure/perdure/internal/run/runs"
)

type runsCmds struct {
	Ls     runsLsCmd     `cmd:"" help:"List runs, one line each."`
	Show   runsShowCmd   `cmd:"" help:"Show the status of a run, or how it ended."`
	Export runsExportCmd `cmd:"" help:"@runs_export"`
	Rm     runsRmCmd     `cmd:"" help:"@runs_rm"`
}

type runsLsCmd struct {
	Folders []string `arg:"" optional:"" name:"folder" help:"@runs_folders"`
	Sort    string   `help:"@runs_sort" placeholder:"ORDER"`
	Prices  string   `help:"@runs_prices" placeholder:"FILE" type:"path"`
	JSON    bool     `name:"json" help:"Print JSON, for programs."`
}

func (c *runsLsCmd) Run() error {
	names := c.Folders
	if len(names) == 0 {
		names = []string{"runs"}
	}
	prices, err := pricesOf(c.Prices)
	if err != nil {
		return err
	}
	all, err := runs.Find(names)
	if err != nil {
		return err
	}
	for _, r := range all {
		r.Prices = prices
	}
	return runs.List(stdout, all, c.Sort, c.JSON)
}

type runsShowCmd struct {
	Folder string `arg:"" name:"run" help:"The run's directory."`
	Prices string `help:"@runs_prices" placeholder:"FILE" type:"path"`
	JSON   bool   `name:"json" help:"Print JSON, for programs."`
}

// pricesOf reads a price file. It returns nil if file is empty.
func pricesOf(file string) (*runs.Prices, error) {
	if file == "" {
		return nil, nil
	}
	return runs.ReadPrices(file)
}

func (c *runsShowCmd) Run() error {
	prices, err := pricesOf(c.Prices)
	if err != nil {
		return err
	}
	r, err := runs.One(c.Folder)
	if err != nil {
		return err
	}
	r.Prices = prices
	return r.Show(stdout, c.JSON)
}

type runsExportCmd struct {
	Folders []string `arg:"" name:"folder" help:"@runs_folders"`
	runs.Exports
	JSON bool `name:"json" help:"Print JSON, for programs."`
}

func (c *runsExportCmd) Run() error {
	all, err := runs.Find(c.Folders)
	if err != nil {
		return err
	}
	return runs.Export(stdout, all, c.Exports, c.JSON)
}

type runsRmCmd struct {
	Folders []string `arg:"" name:"run" help:"@runs_ended"`
	DryRun  bool     `name:"dry-run" help:"Only list what would be deleted."`
	JSON    bool     `name:"json" help:"Print JSON, for programs."`
}

func (c *runsRmCmd) Run() error { return runs.Remove(stdout, c.Folders, c.DryRun, c.JSON) }
