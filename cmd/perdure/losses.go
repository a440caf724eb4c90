package main

import (
	"context"
	"fmt"
	"os"

	"github.com/perdure/perdure/internal/run/losses"
	"github.com/perdure/perdure/internal/run/plain"
)

type lossesCmd struct {
	Recovery   []string `help:"@losses_recovery" sep:"none" placeholder:"STRATEGY"`
	Lost       []string `help:"@losses_lost (default 1/2)." sep:"none" placeholder:"PART"`
	Twins      int      `help:"@losses_twins (default ${default})." default:"4" placeholder:"N"`
	Trials     int      `help:"Failures of each (default ${default})." default:"5" placeholder:"N"`
	MeanClocks float64  `help:"@losses_mean" placeholder:"X"`
	Measure    string   `help:"@losses_measure" placeholder:"train|test"`
	Strike     string   `help:"@losses_strike (default ${default})." default:"between" placeholder:"between|amid"`
	Sample     int      `help:"@losses_sample (default ${default})." default:"1000" placeholder:"N"`
	Parallel   int      `help:"Trials at a time (default: one for each core)." placeholder:"N"`
	Repeat     int      `help:"@losses_repeat" placeholder:"N"`
	Out        string   `help:"@losses_out" placeholder:"DIR" type:"path"`
	JSON       bool     `name:"json" help:"Print JSON, for programs."`
	Train      []string `arg:"" optional:"" passthrough:"" help:"Behind --: what is trained, as for perdure train."`
}

func (c *lossesCmd) Run(ctx context.Context) error {
	if len(c.Train) > 0 && c.Train[0] == "--" {
		c.Train = c.Train[1:]
	}
	run, err := trainSettings(c.Train)
	if err != nil {
		return err
	}
	asked := losses.Asked{
		Run: run, Args: c.Train, Recovery: c.Recovery, Lost: c.Lost, Twins: c.Twins, Trials: c.Trials,
		Mean: c.MeanClocks, Measure: c.Measure, Sample: c.Sample, Parallel: c.Parallel, Repeat: c.Repeat,
		Strike: c.Strike, Version: version,
	}
	r, err := asked.Try(ctx, os.Stderr)
	if err == nil && c.Out != "" {
		err = r.Write(c.Out)
	}
	switch {
	case err != nil:
		return err
	case c.JSON:
		err = plain.JSON(stdout, r)
	default:
		err = r.Print(stdout)
	}
	if err == nil && r.Others() > 0 {
		err = fmt.Errorf("%d of the repeated trials ended with another model", r.Others())
	}
	return err
}
