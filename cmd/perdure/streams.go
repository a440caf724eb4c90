package main

import (
	"context"

	"github.com/alecthomas/kong"

	"github.com/perdure/perdure/internal/data/updatelog"
	"github.com/perdure/perdure/internal/run/checkpoints"
	"github.com/perdure/perdure/internal/run/role"
	"github.com/perdure/perdure/internal/run/settings"
)

type logCmds struct {
	Serve  logServeCmd  `cmd:"" default:"withargs" help:"@logs_serve"`
	Dump   logDumpCmd   `cmd:"" help:"Show the records of one shard's stream."`
	Verify logVerifyCmd `cmd:"" help:"Read every record of a log; say where the first damage is."`
}

// logServeCmd is the log as a process of its own, for jobs on many machines.
type logServeCmd struct {
	Dir    string `required:"" help:"@serve_dir" placeholder:"DIR" type:"path"`
	Listen string `help:"@serve_listen" default:"127.0.0.1:0" placeholder:"HOST:PORT"`
	Sync   string `help:"@serve_sync" default:"interval" enum:"interval,always" placeholder:"WHEN"`
	MB     int    `name:"mb" help:"@serve_mb" placeholder:"N"`

	Keys     string `env:"PERDURE_KEYS" help:"@serve_keys" placeholder:"DIR" type:"path"`
	Insecure bool   `help:"@insecure"`
	roleFlags
	Inherits bool `hidden:"" help:"It inherits its secret, of the run that it belongs to."`
}

func (c *logServeCmd) Run(ctx context.Context) error {
	return c.ended(ctx, (&role.Log{
		Dir: c.Dir, Listen: c.Listen, Sync: c.Sync, MB: c.MB, Inherits: c.Inherits, Out: stdout, Log: c.log(),
		Keys: c.Keys, Insecure: c.Insecure, Watch: c.watched(),
	}).Run(ctx))
}

// logPlace is where a log is that somebody looks into.
type logPlace struct {
	Place string `arg:"" optional:"" name:"dir|url" help:"@place_place"`
	Job   string `help:"@place_job" placeholder:"ID"`
	Keys  string `env:"PERDURE_KEYS" help:"@place_keys" placeholder:"DIR" type:"path"`
	JSON  bool   `name:"json" help:"Print JSON, for programs."`
}

// place is what the flags say.
func (p *logPlace) place() (checkpoints.LogPlace, error) {
	switch {
	case p.Place == "":
		return checkpoints.LogPlace{Job: p.Job}, nil
	case !settings.IsLogURL(p.Place):
		return checkpoints.LogPlace{Dir: kong.ExpandPath(p.Place), Job: p.Job, Keys: p.Keys}, nil
	}
	l, err := settings.ParseLog(p.Place)
	return checkpoints.LogPlace{
		NATS: l.NATS, Creds: l.Creds, CA: l.CA, Cert: l.Cert, Key: l.Key, Job: p.Job, Keys: p.Keys,
	}, err
}

type logDumpCmd struct {
	logPlace
	Shard int                `required:"" help:"The shard." placeholder:"N"`
	From  updatelog.Position `help:"@dump_from" placeholder:"N"`
	Most  *int               `name:"most" help:"@dump_most" placeholder:"N"`
}

func (c *logDumpCmd) Run(ctx context.Context) error {
	place, err := c.place()
	if err != nil {
		return err
	}
	part := checkpoints.LogPart{Shard: c.Shard, From: c.From, Most: c.Most}
	return checkpoints.DumpLog(ctx, stdout, place, part, c.JSON)
}

type logVerifyCmd struct{ logPlace }

func (c *logVerifyCmd) Run(ctx context.Context) error {
	place, err := c.place()
	if err != nil {
		return err
	}
	return checkpoints.VerifyLog(ctx, stdout, place, c.JSON)
}
