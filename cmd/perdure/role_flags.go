package main

import (
	"context"
	"log/slog"
	"time"

	"github.com/perdure/perdure/internal/run/agent"
	"github.com/perdure/perdure/internal/run/role"
)

// roleLog is where a process of a job says what it does: its standard output, which its
// parent keeps in a file.
func roleLog() *slog.Logger {
	return slog.New(slog.NewTextHandler(stdout.file, &slog.HandlerOptions{Level: slog.LevelInfo}))
}

type coordinatorCmd struct {
	Folder string `name:"run" required:"" help:"The run's folder." type:"path"`
}

func (c *coordinatorCmd) Run(ctx context.Context) error {
	return (&role.Coordinator{Folder: c.Folder, Log: roleLog()}).Run(ctx)
}

// roleCmds are processes of a job that is there.
type roleCmds struct {
	Server serverCmd `cmd:"" help:"@perdure_server"`
	Worker workerCmd `cmd:"" help:"@perdure_worker"`
	Agent  agentCmd  `cmd:"" help:"@perdure_agent"`
}

type serverCmd struct {
	joinFlags
	Index  int    `hidden:"" help:"The server's number." default:"-1"`
	Listen string `help:"@server_listen (default ${default})." default:"127.0.0.1:0" placeholder:"HOST:PORT"`
	Zone   string `help:"@server_zone" placeholder:"NAME"`
}

func (c *serverCmd) Run(ctx context.Context) error {
	atOnce, cancel := untilToldTwice(ctx)
	defer cancel()
	s := &role.Server{Job: c.job(), Index: c.Index, Listen: c.Listen, Zone: c.Zone, Log: roleLog()}
	return s.Run(ctx, atOnce)
}

type workerCmd struct {
	joinFlags
	Slot      int           `hidden:"" help:"The slot to take." default:"-1"`
	LostAfter time.Duration `help:"@worker_lost_after (default ${default})." default:"1m" placeholder:"TIME"`
	OutageMB  int           `name:"outage-mb" help:"@outage_mb (default ${default})." default:"0" placeholder:"N"`
}

func (c *workerCmd) Run(ctx context.Context) error {
	return (&role.Worker{
		Job: c.job(), Slot: c.Slot, LostAfter: c.LostAfter, OutageMB: c.OutageMB, Out: stdout, Log: roleLog(),
	}).Run(ctx)
}

// agentCmd is the worker of the program that has started it.
type agentCmd struct {
	FD int `name:"fd" help:"@agent_fd (default ${default})." default:"3" placeholder:"N"`
}

func (c *agentCmd) Run(ctx context.Context) error {
	ctx, parent, err := agent.WithParent(ctx)
	if err != nil {
		return err
	}
	socket, err := agent.Open(c.FD)
	if err != nil {
		return err
	}
	return agent.Serve(ctx, socket, agent.Options{Version: version, PID: parent})
}
