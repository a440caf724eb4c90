package main

import (
	"context"
	"fmt"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/proc/control"
	"github.com/perdure/perdure/internal/run/locate"
)

type drainCmd struct {
	target
	Who    string        `arg:"" help:"@drain_who"`
	Notice time.Duration `help:"@drain_notice" placeholder:"TIME"`
}

func (c *drainCmd) Run(ctx context.Context) error {
	if c.Notice < 0 || c.Notice > control.MaxNotice {
		return perdure.Usagef("invalid --notice %v; choose a time from 0 to %v", c.Notice, control.MaxNotice)
	}
	client, err := c.client()
	if err != nil {
		return err
	}
	ends, err := client.Drain(ctx, control.Drain{Target: c.Who, Notice: c.Notice})
	if err != nil {
		return explainUnreachable(err)
	}
	began := time.Now()
	err = locate.AwaitDrained(ctx, client, &ends, c.Notice, func(r *locate.Remaining) {
		fmt.Fprintf(stdout, "%6.1fs  left: %s\n", time.Since(began).Seconds(), r)
	})
	if err != nil {
		return explainUnreachable(err)
	}
	fmt.Fprintf(stdout, "%6.1fs  %s is drained; all its work has been handed over\n", time.Since(began).Seconds(),
		c.Who)
	return nil
}
