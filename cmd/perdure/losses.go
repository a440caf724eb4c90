package main

import (
	"context"
	"fmt"
	"os"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/run/humanize"
	"github.com/perdure/perdure/internal/run/settings"
	"github.com/perdure/perdure/internal/run/study/failurecost"
)

type lossesCmd struct {
	Asked failurecost.Flags `embed:""`
	Out   string            `help:"@losses_out" placeholder:"DIR" type:"path"`
	JSON  bool              `name:"json" help:"Print JSON, for programs."`
}

// complete parses the arguments after --, which select what to train.
func (c *lossesCmd) complete() (err error) {
	a := &c.Asked
	if a.Version = version; len(a.Args) > 0 && a.Args[0] == "--" {
		a.Args = a.Args[1:]
	}
	a.Run, err = trainSettings(a.Args)
	return err
}

// lossesSettings returns the run settings of a command line of perdure study losses.
func lossesSettings(args []string) (s settings.Run, err error) {
	var c cli
	if _, err := newParser(context.Background(), &c).Parse(append([]string{"study", "losses"}, args...)); err != nil {
		return s, perdure.Usagef("%w", err)
	}
	of := &c.Study.Loss
	if err := of.complete(); err != nil {
		return s, err
	}
	_, err = of.Asked.Plan()
	return of.Asked.Run, err
}

func (c *lossesCmd) Run(ctx context.Context) error {
	if err := c.complete(); err != nil {
		return err
	}
	r, err := c.Asked.Execute(ctx, os.Stderr)
	if err == nil && c.Out != "" {
		err = r.Write(c.Out)
	}
	switch {
	case err != nil:
		return err
	case c.JSON:
		err = humanize.JSON(stdout, r)
	default:
		err = r.Print(stdout)
	}
	if n, same, _ := r.Repeated(); err == nil && same < n {
		err = fmt.Errorf("%d of the repeated trials ended with a different model", n-same)
	}
	return err
}
