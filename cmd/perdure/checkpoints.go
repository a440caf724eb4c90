package main

import (
	"github.com/alecthomas/kong"

	"github.com/perdure/perdure/internal/data/store"
	"github.com/perdure/perdure/internal/run/checkpoints"
)

type checkpointCmds struct {
	Ls     checkpointLsCmd     `cmd:"" help:"@checkpoint_ls"`
	Show   checkpointShowCmd   `cmd:"" help:"@checkpoint_show"`
	Verify checkpointVerifyCmd `cmd:"" help:"@checkpoint_verify"`
	Export checkpointExportCmd `cmd:"" help:"@checkpoint_export"`
	Prune  checkpointPruneCmd  `cmd:"" help:"@checkpoint_prune"`
}

// withCheckpoints opens a directory by its path or a store by its URL, and calls look with it.
func withCheckpoints(name string, look func(*checkpoints.Location) error) error {
	if !store.IsLocation(name) {
		name = kong.ExpandPath(name)
	}
	f, err := checkpoints.Open(name)
	if err != nil {
		return err
	}
	return look(f)
}

type checkpointLsCmd struct {
	Dir  string `arg:"" help:"@checkpoint_dir"`
	JSON bool   `name:"json" help:"Print JSON, for programs."`
}

func (c *checkpointLsCmd) Run() error {
	return withCheckpoints(c.Dir, func(f *checkpoints.Location) error { return f.List(stdout, c.JSON) })
}

type checkpointShowCmd struct {
	Dir  string `arg:"" name:"dir[@clock]" help:"@checkpoint_one (default the newest)."`
	JSON bool   `name:"json" help:"Print JSON, for programs."`
}

func (c *checkpointShowCmd) Run() error {
	return withCheckpoints(c.Dir, func(f *checkpoints.Location) error { return f.Show(stdout, c.JSON) })
}

type checkpointVerifyCmd struct {
	Dir  string `arg:"" name:"dir[@clock]" help:"@checkpoint_one (default all)."`
	JSON bool   `name:"json" help:"Print JSON, for programs."`
}

func (c *checkpointVerifyCmd) Run() error {
	return withCheckpoints(c.Dir, func(f *checkpoints.Location) error { return f.Verify(stdout, c.JSON) })
}

type checkpointExportCmd struct {
	Dir     string `arg:"" name:"dir[@clock]" help:"@checkpoint_one (default the newest complete one)."`
	To      string `required:"" short:"o" help:"The file to write." placeholder:"FILE" type:"path"`
	Force   bool   `help:"Replace the file if it exists."`
	Partial bool   `help:"@export_partial"`
	JSON    bool   `name:"json" help:"Print JSON, for programs."`
}

func (c *checkpointExportCmd) Run() error {
	return withCheckpoints(c.Dir, func(f *checkpoints.Location) error {
		f.Partial = c.Partial
		return f.Export(stdout, c.To, c.Force, c.JSON)
	})
}

type checkpointPruneCmd struct {
	Dir    string `arg:"" help:"@checkpoint_dir"`
	Keep   int    `required:"" help:"@checkpoint_keep" placeholder:"K"`
	DryRun bool   `name:"dry-run" help:"Only list what would be deleted."`
	JSON   bool   `name:"json" help:"Print JSON, for programs."`
	Force  bool   `help:"Also delete from a store given by its URL, even though its run may still be running."`
}

func (c *checkpointPruneCmd) Run() error {
	return withCheckpoints(c.Dir, func(f *checkpoints.Location) error {
		f.Force = c.Force
		return f.Prune(stdout, c.Keep, c.DryRun, c.JSON)
	})
}
