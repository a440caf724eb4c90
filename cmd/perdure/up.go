package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/alecthomas/kong"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/proc/control"
	"github.com/perdure/perdure/internal/run/agent"
	"github.com/perdure/perdure/internal/run/checkpoints"
	"github.com/perdure/perdure/internal/run/humanize"
	"github.com/perdure/perdure/internal/run/localrun"
	"github.com/perdure/perdure/internal/run/locate"
	"github.com/perdure/perdure/internal/run/settings"
	"github.com/perdure/perdure/internal/run/terminal"
	"github.com/perdure/perdure/worker"
)

type upCmd struct {
	jobFlags
	Exec       string     `group:"job" main:"" placeholder:"COMMAND"`
	WithParent bool       `hidden:"" help:"End immediately when the parent process ends."`
	AnnounceFD int        `hidden:"" name:"announce-fd" help:"@up_announce"`
	Again      againFlags `embed:""`
	outputFlags
}

// settings returns the settings of the run that the command line requests.
func (u *upCmd) settings(k *kong.Context) (settings.Run, error) {
	return settingsOf(u.request(settings.OwnWorkload, given(k)), &u.Again)
}

func (u *upCmd) Run(ctx context.Context, k *kong.Context) error {
	s, err := u.settings(k)
	if err != nil {
		return err
	}
	if strings.TrimSpace(u.Exec) == "" && given(k)["exec"] {
		return perdure.Usagef("--exec is empty; give the command that starts your program, or omit it")
	}
	if u.Out == "" {
		u.Out = filepath.Join("runs", "up-"+time.Now().Format("20060102-150405.000"))
	}
	atOnce, cancel := untilSecondSignal(ctx)
	defer cancel()
	if u.WithParent {
		if atOnce, _, err = agent.WithParent(atOnce); err != nil {
			return err
		}
		var end context.CancelFunc
		ctx, end = context.WithCancel(ctx)
		defer context.AfterFunc(atOnce, end)()
	}
	announce := func(agent.Announcement) error { return nil }
	if u.AnnounceFD > 0 {
		if announce, err = agent.Announcer(u.AnnounceFD); err != nil {
			return err
		}
	}
	live := u.live()
	live.Framed = u.WithParent // the program that started the job, such as a notebook, may show it
	r, err := localrun.Start(ctx, localrun.Options{
		Settings: s, Folder: u.Out, Exec: u.Exec, View: u.view(), Watched: u.Watch, Warn: warn, Live: live,
	})
	if err != nil {
		return err
	}
	defer func() { _ = r.Close() }() // the result of the job matters, not that of closing it
	if err := announce(agent.Announcement{
		Version: version, Coordinator: r.Coordinator(), SecretFile: r.Secrets().Path, Keys: s.Reach.Keys,
	}); err != nil {
		return err
	}
	if u.Exec == "" && !u.Quiet && !u.JSON {
		keys := ""
		if s.Reach.Keys != "" {
			keys = " " + worker.EnvKeys + "=" + s.Reach.Keys
		}
		fmt.Fprintf(stdout, "the coordinator is at %s: start %d workers with %s=%s %s=%s%s\n", r.Coordinator(),
			s.InitialWorkers(), worker.EnvCoordinator, r.Coordinator(), worker.EnvSecretFile, r.Secrets().Path, keys)
	}
	switch sum, err := r.Wait(ctx, atOnce); {
	case errors.Is(err, localrun.ErrStopped):
		fmt.Fprintln(os.Stderr, err)
		return nil
	case err != nil:
		return err
	case u.JSON:
		return humanize.JSON(stdout, &sum)
	}
	fmt.Fprintf(stdout, "done: every worker has finished %d clocks; files in %s\n", r.Clock(), r.Dir().Path())
	return nil
}

// target is a running job, named by its directory or address.
type target struct {
	Run     string `help:"@target_run" placeholder:"DIR" type:"path"`
	Address string `help:"@target_address" placeholder:"HOST:PORT"`
	secretFlag
	TokenFile string `name:"token-file" env:"PERDURE_TOKEN_FILE" help:"@token" placeholder:"FILE" type:"path"`
}

// client connects to the job's control API. If the job is a run on this machine, it also sets t.Run to the run's
// directory.
func (t *target) client() (c *control.Client, err error) {
	if t.TokenFile != "" {
		c, t.Run, err = locate.ByToken(t.Address, t.Run, t.TokenFile, t.Keys)
		return c, err
	}
	c, t.Run, err = locate.Control(t.Address, t.Run, t.SecretFile, t.Keys)
	return c, err
}

// runTarget is a target for commands about one run, which accept its directory as an argument.
type runTarget struct {
	Named string `arg:"" optional:"" name:"run" help:"@target_run" type:"path"`
	target
}

func (t *runTarget) client() (*control.Client, error) {
	if t.Named != "" {
		if t.Run != "" {
			return nil, perdure.Usagef("the run is given twice; remove --run")
		}
		t.Run = t.Named
	}
	return t.target.client()
}

// explainUnreachable adds the most frequent cause to the error of a client that cannot reach the job.
func explainUnreachable(err error) error {
	if errors.Is(err, control.ErrUnreachable) {
		return fmt.Errorf("%w; the run has ended, or it continues without a coordinator until the next one starts", err)
	}
	return err
}

type statusCmd struct {
	runTarget
	JSON bool `name:"json" help:"Print JSON, for programs."`
}

func (c *statusCmd) Run(ctx context.Context) error {
	client, err := c.client()
	if err != nil {
		return err
	}
	if c.JSON {
		document, err := client.StatusJSON(ctx)
		if err != nil {
			return c.printEnded(err, true)
		}
		fmt.Fprintf(stdout, "%s\n", document)
		return nil
	}
	s, err := client.Status(ctx)
	if err != nil {
		return c.printEnded(err, false)
	}
	v, err := client.View(ctx)
	if err != nil {
		return explainUnreachable(err)
	}
	terminal.PrintStatus(stdout, &s, &v, checkpoints.LogLine(ctx, s.RunDir))
	return nil
}

type stopCmd struct{ runTarget }

func (c *stopCmd) Run(ctx context.Context) error {
	client, err := c.client()
	if err != nil {
		return err
	}
	return explainUnreachable(client.Stop(ctx))
}

type faultCmd struct {
	target
	Spec string `arg:"" help:"@fault_spec"`
	JSON bool   `name:"json" help:"Print JSON, for programs."`
}

func (c *faultCmd) Run(ctx context.Context) error {
	client, err := c.client()
	if err != nil {
		return err
	}
	accepted, err := client.Fault(ctx, c.Spec)
	if err != nil {
		return explainUnreachable(err)
	}
	return terminal.PrintAccepted(stdout, accepted, nil, c.JSON)
}
