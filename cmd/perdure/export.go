package main

import "github.com/perdure/perdure/internal/run/checkpoints"

type exportCmd struct {
	Dir     string `arg:"" name:"run" help:"@export_run" type:"existingdir"`
	To      string `required:"" short:"o" help:"The file to write." placeholder:"FILE" type:"path"`
	Force   bool   `help:"Replace the file if it exists."`
	Partial bool   `help:"@export_partial"`
	JSON    bool   `name:"json" help:"Print JSON, for programs."`
}

func (c *exportCmd) Run() error {
	return checkpoints.ExportRun(stdout, c.Dir, c.To, c.Force, c.Partial, c.JSON)
}
