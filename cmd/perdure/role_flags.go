package main

import (
	"context"
	"errors"
	"log/slog"

	"github.com/perdure/perdure/internal/proc/httpdebug"
	"github.com/perdure/perdure/internal/proc/supervisor"
	"github.com/perdure/perdure/internal/run/role"
)

type logFormat = httpdebug.Format

// logFlags sets the log format of a process of a job.
type logFlags struct {
	LogFormat logFormat `help:"@log_format (default ${default})." default:"text" enum:"text,json" placeholder:"HOW"`
}

// log returns a logger that writes to standard output, which the parent process stores in a file.
func (f *logFlags) log() *slog.Logger { return httpdebug.NewLog(stdout.File, f.LogFormat) }

// roleFlags are the flags that all processes of a job share.
type roleFlags struct {
	logFlags
	Metrics    string        `help:"@metrics" placeholder:"HOST:PORT"`
	SignalCode role.ExitCode `help:"@signal_code (default ${default})." default:"0" placeholder:"N"`
}

func (f *roleFlags) observability() role.Observability {
	return role.Observability{Metrics: f.Metrics, RetryListen: supervisor.HasParent(), Version: version}
}

// signalError ends a process that was asked to stop before its job was over. code is the exit code.
type signalError struct{ code int }

func (e signalError) Error() string { return "stopped before the job ended" }

// withExitCode returns err or, if a signal ended the process gracefully and --signal-code is set, an error with that
// code.
func (f *roleFlags) withExitCode(ctx context.Context, err error) error {
	if err == nil && ctx.Err() != nil && f.SignalCode != 0 {
		return signalError{int(f.SignalCode)}
	}
	return err
}

// roleCmds are the processes of a job that exists already.
type roleCmds struct {
	Coordinator coordinatorCmd `cmd:"" help:"@perdure_coordinator"`
	Host        hostCmd        `cmd:"" help:"@perdure_host"`
	Server      serverCmd      `cmd:"" help:"@perdure_server"`
	Worker      workerCmd      `cmd:"" help:"@perdure_worker"`
	Agent       agentCmd       `cmd:"" help:"@perdure_agent"`
}

type serverCmd struct {
	Server role.Server `embed:""`
	roleFlags
}

func (c *serverCmd) Run(ctx context.Context) error {
	atOnce, cancel := untilSecondSignal(ctx)
	defer cancel()
	s := &c.Server
	s.Log, s.Watch = c.log(), c.observability()
	s.Job.Log = s.Log
	err := s.Run(ctx, atOnce)
	if errors.Is(err, role.ErrDrained) {
		return signalError{supervisor.ExitDrained}
	}
	return c.withExitCode(ctx, err)
}

type workerCmd struct {
	Worker role.Worker `embed:""`
	roleFlags
}

func (c *workerCmd) Run(ctx context.Context) error {
	w := &c.Worker
	w.Out, w.Log, w.Watch = stdout, c.log(), c.observability()
	w.Job.Log = w.Log
	return c.withExitCode(ctx, w.Run(ctx))
}

// agentCmd is the worker of the program that started it.
type agentCmd struct {
	FD      int    `name:"fd" help:"@agent_fd (default ${default})." default:"3" placeholder:"N"`
	Metrics string `help:"@metrics" env:"PERDURE_METRICS" placeholder:"HOST:PORT"`
}

func (c *agentCmd) Run(ctx context.Context) error {
	watch := role.Observability{Metrics: c.Metrics, RetryListen: true, Version: version}
	return (&role.Agent{FD: c.FD, Watch: watch}).Run(ctx)
}
