package main

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/perdure/perdure/internal/proc/httpdebug"
	"github.com/perdure/perdure/internal/proc/supervisor"
	"github.com/perdure/perdure/internal/run/role"
)

type logFormat = httpdebug.Format

// logFlags say how a process of a job writes what it does.
type logFlags struct {
	LogFormat logFormat `help:"@log_format (default ${default})." default:"text" enum:"text,json" placeholder:"HOW"`
}

// log is where a process says what it does: its standard output, which its parent keeps in a file.
func (f *logFlags) log() *slog.Logger { return httpdebug.NewLog(stdout.File, f.LogFormat) }

// roleFlags are how a process of a job lets itself be watched.
type roleFlags struct {
	logFlags
	Metrics    string        `help:"@metrics" placeholder:"HOST:PORT"`
	SignalCode role.ExitCode `help:"@signal_code (default ${default})." default:"0" placeholder:"N"`
}

func (f *roleFlags) watched() role.Watched {
	return role.Watched{Metrics: f.Metrics, Insist: supervisor.HasParent(), Version: version}
}

// toldError ends a process that was told to end, before its job was over, with a code that says so.
type toldError struct{ code int }

func (e toldError) Error() string { return "told to end" }

// ended is err, or where a signal has ended the process in order that this was so.
func (f *roleFlags) ended(ctx context.Context, err error) error {
	if err == nil && ctx.Err() != nil && f.SignalCode != 0 {
		return toldError{int(f.SignalCode)}
	}
	return err
}

// roleCmds are processes of a job that is there.
type roleCmds struct {
	Coordinator coordinatorCmd `cmd:"" help:"@perdure_coordinator"`
	Host        hostCmd        `cmd:"" help:"@perdure_host"`
	Server      serverCmd      `cmd:"" help:"@perdure_server"`
	Worker      workerCmd      `cmd:"" help:"@perdure_worker"`
	Agent       agentCmd       `cmd:"" help:"@perdure_agent"`
}

type serverCmd struct {
	joinFlags
	Index     int    `hidden:"" help:"The server's number." default:"-1"`
	Beside    int    `hidden:"" help:"How many servers this machine has."`
	Listen    string `help:"@server_listen (default ${default})." default:"127.0.0.1:0" placeholder:"HOST:PORT"`
	Zone      string `help:"@server_zone" placeholder:"NAME"`
	Advertise string `help:"@server_advertise" placeholder:"HOST[:PORT]"`

	Notice time.Duration `help:"@server_notice" placeholder:"TIME"`
	roleFlags
}

func (c *serverCmd) Run(ctx context.Context) error {
	atOnce, cancel := untilToldTwice(ctx)
	defer cancel()
	job := c.job()
	job.Log = c.log()
	err := (&role.Server{
		Job: job, Index: c.Index, Beside: c.Beside, Listen: c.Listen, Zone: c.Zone, Advertise: c.Advertise,
		Log: c.log(), Watch: c.watched(), Notice: c.Notice,
	}).Run(ctx, atOnce)
	if errors.Is(err, role.ErrDrained) {
		return toldError{supervisor.ExitDrained}
	}
	return c.ended(ctx, err)
}

type workerCmd struct {
	joinFlags
	Slot      int           `hidden:"" help:"The slot to take." default:"-1"`
	Beside    int           `hidden:"" help:"How many workers this machine has."`
	LostAfter time.Duration `help:"@worker_lost_after (default ${default})." default:"1m" placeholder:"TIME"`
	OutageMB  int           `name:"outage-mb" help:"@outage_mb (default ${default})." default:"0" placeholder:"N"`
	Waits     bool          `hidden:"" help:"Wait for a free slot, and ask for no more."`
	roleFlags
}

func (c *workerCmd) Run(ctx context.Context) error {
	job := c.job()
	job.Log = c.log()
	return c.ended(ctx, (&role.Worker{
		Job: job, Slot: c.Slot, Beside: c.Beside, LostAfter: c.LostAfter, OutageMB: c.OutageMB, Waits: c.Waits,
		Out: stdout, Log: c.log(), Watch: c.watched(),
	}).Run(ctx))
}

// agentCmd is the worker of the program that has started it.
type agentCmd struct {
	FD      int    `name:"fd" help:"@agent_fd (default ${default})." default:"3" placeholder:"N"`
	Metrics string `help:"@metrics" env:"PERDURE_METRICS" placeholder:"HOST:PORT"`
}

func (c *agentCmd) Run(ctx context.Context) error {
	watch := role.Watched{Metrics: c.Metrics, Insist: true, Version: version}
	return (&role.Agent{FD: c.FD, Watch: watch}).Run(ctx)
}
