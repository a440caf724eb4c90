package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/alecthomas/kong"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/disk"
	"github.com/perdure/perdure/internal/run/dashboard"
	"github.com/perdure/perdure/internal/run/humanize"
	"github.com/perdure/perdure/internal/run/localrun"
	"github.com/perdure/perdure/internal/run/rundir"
	"github.com/perdure/perdure/internal/run/settings"
)

// dashboardFlag is the address of the live view. The flag needs no value.
type dashboardFlag string

// Decode implements kong.MapperValue.
func (d *dashboardFlag) Decode(ctx *kong.DecodeContext) error {
	*d = localrun.AnyPort
	t := ctx.Scan.Peek()
	text, _ := t.Value.(string)
	_, _, err := net.SplitHostPort(text)
	if _, digits := strconv.Atoi(text); t.Type == kong.UntypedToken && digits == nil {
		return perdure.Usagef("%s is a port without a host; write --dashboard 127.0.0.1:%s", text, text)
	}
	if t.Type == kong.FlagValueToken || t.Type == kong.UntypedToken && err == nil {
		*d = dashboardFlag(ctx.Scan.Pop().String())
	}
	return nil
}

// IsBool makes kong accept the flag without a value.
func (dashboardFlag) IsBool() bool { return true }

type dashboardCmd struct {
	Folder string `arg:"" name:"run" help:"@dashboard_run" type:"path"`
	Listen string `help:"@dashboard_listen (default ${default})." default:"127.0.0.1:0" placeholder:"HOST:PORT"`
	Keys   string `env:"PERDURE_KEYS" help:"@keys" placeholder:"DIR" type:"path"`
}

func (c *dashboardCmd) Run(ctx context.Context) error {
	s, err := settings.Read(filepath.Join(c.Folder, rundir.RunFile))
	if err != nil {
		return perdure.Usagef("%w", err)
	}
	switch holder, err := rundir.CheckEnded(c.Folder); {
	case errors.Is(err, rundir.ErrRunning):
		return c.printLink(holder)
	case err != nil:
		return err
	}
	l, err := localrun.ListenDashboard(c.Listen, absolute(c.Keys))
	if err != nil {
		return err
	}
	d, err := dashboard.Open(l, dashboard.Config{Dir: c.Folder, Run: &s})
	if err != nil {
		return err
	}
	fmt.Fprintf(stdout, "the dashboard is at %s (the link opens once); end it with Ctrl-C\n", d.URL())
	<-ctx.Done()
	return d.Close()
}

// printLink prints a link to the dashboard of a run that is running.
func (c *dashboardCmd) printLink(holder string) error {
	link, err := disk.ReadRegular(filepath.Join(c.Folder, dashboard.LinkFile), settings.MaxDocumentBytes)
	if errors.Is(err, fs.ErrNotExist) {
		return perdure.Usagef("the run in %s has no dashboard: it was started without --dashboard, and is still "+
			"running (%s); perdure status shows its state", c.Folder, holder)
	}
	if err != nil {
		return fmt.Errorf("cannot read the link to the dashboard: %w", humanize.Cause(err))
	}
	fmt.Fprintf(stdout, "the dashboard is at %s (the link opens once)\n", strings.TrimSpace(string(link)))
	return nil
}

// printDashboard prints the link to a run's dashboard for the user, even if they asked for no output.
func printDashboard(url string) {
	fmt.Fprintf(os.Stderr, "perdure: the dashboard is at %s (the link opens once)\n", url)
}
