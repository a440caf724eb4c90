package main

import (
	"context"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/proc/control"
	"github.com/perdure/perdure/internal/run/locate"
	"github.com/perdure/perdure/internal/run/terminal"
)

type scaleCmd struct {
	target
	Workers int    `arg:"" optional:"" help:"@scale_workers"`
	Leave   []int  `help:"Slots that leave the job, instead of a number of workers." placeholder:"SLOT"`
	At      *int64 `help:"@scale_at" placeholder:"CLOCK"`
	JSON    bool   `name:"json" help:"Print JSON, for programs."`
}

func (c *scaleCmd) Run(ctx context.Context) error {
	switch {
	case (c.Workers != 0) == (len(c.Leave) > 0):
		return perdure.Usagef("give either the number of workers or, with --leave, the slots that leave")
	case c.Workers < 0 || c.Workers > perdure.MaxSlots:
		return perdure.Usagef("invalid number of workers %d; choose 1 to %d", c.Workers, perdure.MaxSlots)
	case c.At != nil && *c.At < 1:
		return perdure.Usagef("invalid --at %d; choose a clock of at least 1", *c.At)
	}
	change := control.Scale{Workers: c.Workers}
	for _, slot := range c.Leave {
		if slot < 0 || slot >= perdure.MaxSlots {
			return perdure.Usagef("invalid slot %d; perdure status lists the slots", slot)
		}
		change.Leave = append(change.Leave, perdure.Slot(slot))
	}
	if c.At != nil {
		change.At = perdure.Clock(*c.At)
	}
	client, err := c.client()
	if err != nil {
		return err
	}
	before, err := client.View(ctx)
	if err != nil {
		return explainUnreachable(err)
	}
	accepted, err := client.Scale(ctx, change)
	if err != nil {
		return explainUnreachable(err)
	}
	if accepted != "" {
		return terminal.PrintAccepted(stdout, accepted, nil, c.JSON)
	}
	now, err := locate.AwaitChange(ctx, client, before)
	if err != nil {
		return explainUnreachable(err)
	}
	return terminal.PrintAccepted(stdout, "", terminal.Changes(before.Slots, now.Slots), c.JSON)
}
