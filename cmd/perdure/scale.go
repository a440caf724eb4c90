package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/control"
)

type scaleCmd struct {
	target
	Workers int    `arg:"" optional:"" help:"So many workers are to take part. Of too many, those that joined last leave; the job's parent starts what is missing."`
	Leave   []int  `help:"Slots that leave, instead of a number of workers." placeholder:"SLOT"`
	At      *int64 `help:"The clock from which this is so; nothing changes if a worker has begun it (default the next that none has begun)." placeholder:"CLOCK"`
}

func (c *scaleCmd) Run(ctx context.Context) error {
	switch {
	case (c.Workers != 0) == (len(c.Leave) > 0):
		return fmt.Errorf("%w: say how many workers are to take part, or with --leave which slots are not", perdure.ErrUsage)
	case c.Workers < 0 || c.Workers > perdure.MaxSlots:
		return fmt.Errorf("%w: %d workers; choose 1 to %d", perdure.ErrUsage, c.Workers, perdure.MaxSlots)
	case c.At != nil && *c.At < 1:
		return fmt.Errorf("%w: --at %d; choose a clock of at least 1", perdure.ErrUsage, *c.At)
	}
	change := control.Scale{Workers: c.Workers}
	for _, slot := range c.Leave {
		if slot < 0 || slot >= perdure.MaxSlots {
			return fmt.Errorf("%w: there is no slot %d", perdure.ErrUsage, slot)
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
		return ended(err)
	}
	accepted, err := client.Scale(ctx, change)
	if err != nil {
		return ended(err)
	}
	if accepted != "" {
		fmt.Fprintln(stdout, accepted)
		return nil
	}
	return awaitChange(ctx, client, before)
}

// namePatience is how long the clock of a change may take to be named: a slot whose
// process has just died says where it stands once its next one has come.
const namePatience = 30 * time.Second

// awaitChange waits until the clock of a change that was asked for is named, and says
// what it is.
func awaitChange(ctx context.Context, client *control.Client, before perdure.View) error {
	ctx, cancel := context.WithTimeout(ctx, namePatience)
	defer cancel()
	for {
		v, err := client.View(ctx)
		switch {
		case err != nil && !errors.Is(err, control.ErrUnreachable): // a coordinator that is being replaced goes on with it
			return ended(err)
		case err == nil && v.Roster > before.Roster:
			for _, line := range changes(before.Slots, v.Slots) {
				fmt.Fprintln(stdout, line)
			}
			return nil
		case err == nil && !v.Pause:
			return fmt.Errorf("%w: nobody joins or leaves: the clock is over, or the job ends before", perdure.ErrRefused)
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("the workers have not all said where they stand within %v; the change is made once they have: see perdure status", namePatience)
		}
	}
}

// changes says who joins and who leaves, a line each.
func changes(before, now []perdure.SlotView) (lines []string) {
	for i, s := range now {
		was := perdure.Span{Until: -1}
		if i < len(before) {
			was = before[i].Span
		}
		switch {
		case s.Span == was:
		case s.Until > 0:
			lines = append(lines, fmt.Sprintf("worker:%d leaves; clock %d is its last", i, s.Until-1))
		default:
			lines = append(lines, fmt.Sprintf("worker:%d joins; it takes part from clock %d on", i, s.From))
		}
	}
	return lines
}

// spanLine says when a slot takes part, where that is not throughout.
func spanLine(role string, s perdure.Span) string {
	text := ""
	if role == string(wire.RoleWorker) && s.From > 0 {
		text += fmt.Sprintf(", from clock %d", s.From)
	}
	if s.Until > 0 {
		text += fmt.Sprintf(", until clock %d", s.Until)
	}
	return text
}
