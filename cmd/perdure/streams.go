package main

import (
	"context"

	"github.com/alecthomas/kong"

	"github.com/perdure/perdure/internal/run/checkpoints"
	"github.com/perdure/perdure/internal/run/role"
	"github.com/perdure/perdure/internal/run/settings"
)

type logCmds struct {
	Serve  logServeCmd  `cmd:"" default:"withargs" help:"@logs_serve"`
	Dump   logDumpCmd   `cmd:"" help:"Show the records in the stream of one shard."`
	Verify logVerifyCmd `cmd:"" help:"Read every record of a log and report the first damaged one."`
}

// logServeCmd serves an update log as a separate process, for jobs on many machines.
type logServeCmd struct {
	Log role.Log `embed:""`
	roleFlags
}

func (c *logServeCmd) Run(ctx context.Context) error {
	l := &c.Log
	l.Out, l.Log, l.Watch = stdout, c.log(), c.observability()
	return c.withExitCode(ctx, l.Run(ctx))
}

// logLocation is the location of the log to inspect.
type logLocation struct {
	Place string `arg:"" optional:"" name:"dir|url" help:"@place_place"`
	Job   string `help:"@place_job" placeholder:"ID"`
	Keys  string `env:"PERDURE_KEYS" help:"@place_keys" placeholder:"DIR" type:"path"`
	JSON  bool   `name:"json" help:"Print JSON, for programs."`
}

// location converts the flags to a location.
func (p *logLocation) location() (checkpoints.LogLocation, error) {
	switch {
	case p.Place == "":
		return checkpoints.LogLocation{Job: p.Job}, nil
	case !settings.IsLogURL(p.Place):
		return checkpoints.LogLocation{Dir: kong.ExpandPath(p.Place), Job: p.Job, Keys: p.Keys}, nil
	}
	l, err := settings.ParseLog(p.Place)
	return checkpoints.LogLocation{
		NATS: l.NATS, Creds: l.Creds, CA: l.CA, Cert: l.Cert, Key: l.Key, Job: p.Job, Keys: p.Keys,
	}, err
}

type logDumpCmd struct {
	logLocation
	checkpoints.LogSelection
}

func (c *logDumpCmd) Run(ctx context.Context) error {
	place, err := c.location()
	if err != nil {
		return err
	}
	return checkpoints.DumpLog(ctx, stdout, place, c.LogSelection, c.JSON)
}

type logVerifyCmd struct{ logLocation }

func (c *logVerifyCmd) Run(ctx context.Context) error {
	place, err := c.location()
	if err != nil {
		return err
	}
	return checkpoints.VerifyLog(ctx, stdout, place, c.JSON)
}
