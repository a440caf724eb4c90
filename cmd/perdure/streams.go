package main

import (
	"context"

	"github.com/perdure/perdure/internal/data/updatelog"
	"github.com/perdure/perdure/internal/run/logtool"
	"github.com/perdure/perdure/internal/run/role"
)

type logCmds struct {
	Serve  logServeCmd  `cmd:"" default:"withargs" help:"Serve update logs from a folder (the default)."`
	Ls     logLsCmd     `cmd:"" help:"List the streams of a log: one for each shard of a job; say what is damaged, as far as that shows."`
	Dump   logDumpCmd   `cmd:"" help:"Show the records of one shard's stream."`
	Verify logVerifyCmd `cmd:"" help:"Read every record of a log; say where the first damage is."`
	Rm     logRmCmd     `cmd:"" help:"Remove the streams of a job that has ended, which it cannot go on without, so that others have their room. The log must be served."`
}

// logServeCmd is the log as a process of its own, for jobs on many machines.
type logServeCmd struct {
	Dir    string `required:"" help:"The log's folder; it is made where it is not there." placeholder:"DIR" type:"path"`
	Listen string `help:"Where to listen (default ${default}: a free port, after a restart the same)." default:"127.0.0.1:0" placeholder:"HOST:PORT"`
	Sync   string `name:"log-sync" help:"When an update counts as in the log: interval (the system has it: it survives any process's death, but not the machine's) or always (it is on the disk) (default ${default})." default:"interval" enum:"interval,always" placeholder:"WHEN"`
	MB     int    `name:"log-mb" help:"What all streams take on the disk at most, in MiB (default three quarters of what is free)." placeholder:"N"`

	Inherits bool `hidden:"" help:"It inherits its secret, of the run that it belongs to."`
}

func (c *logServeCmd) Run(ctx context.Context) error {
	return (&role.Log{
		Dir: c.Dir, Listen: c.Listen, Sync: c.Sync, MB: c.MB, Inherits: c.Inherits, Out: stdout, Log: roleLog(),
	}).Run(ctx)
}

// logPlace is where a log is that somebody looks into.
type logPlace struct {
	Dir   string `arg:"" optional:"" help:"A run's folder, or a log's; its process may run or not." type:"path"`
	NATS  string `name:"nats" help:"The log at that address instead, for example nats://log.example:4222." placeholder:"URL"`
	Creds string `name:"nats-creds" help:"Credentials for --nats: a file as nsc makes it." placeholder:"FILE" type:"path"`
	CA    string `name:"nats-ca" help:"The certificate authority that vouches for --nats." placeholder:"FILE" type:"path"`
	Cert  string `name:"nats-cert" help:"Your own certificate for --nats." placeholder:"FILE" type:"path"`
	Key   string `name:"nats-key" help:"The key of --nats-cert." placeholder:"FILE" type:"path"`
	Job   string `help:"Only this job's streams (default all; of rm: the run's whose folder is named)." placeholder:"ID"`
}

// place is what the flags say.
func (p *logPlace) place() logtool.Place {
	return logtool.Place{Dir: p.Dir, NATS: p.NATS, Creds: p.Creds, CA: p.CA, Cert: p.Cert, Key: p.Key, Job: p.Job}
}

type logLsCmd struct{ logPlace }

func (c *logLsCmd) Run(ctx context.Context) error { return logtool.List(ctx, stdout, c.place()) }

type logDumpCmd struct {
	logPlace
	Shard int                `required:"" help:"The shard." placeholder:"N"`
	From  updatelog.Position `help:"The first position to show (default the first there is)." placeholder:"N"`
	Most  *int               `name:"most" help:"How many records to show, 1 or more (default all)." placeholder:"N"`
}

func (c *logDumpCmd) Run(ctx context.Context) error {
	return logtool.Dump(ctx, stdout, c.place(), logtool.Part{Shard: c.Shard, From: c.From, Most: c.Most})
}

type logVerifyCmd struct{ logPlace }

func (c *logVerifyCmd) Run(ctx context.Context) error { return logtool.Verify(ctx, stdout, c.place()) }

type logRmCmd struct {
	logPlace
	Force bool `help:"Even if the job seems to run; it cannot go on then."`
}

func (c *logRmCmd) Run(ctx context.Context) error {
	return logtool.Remove(ctx, stdout, c.place(), c.Force)
}
