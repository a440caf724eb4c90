package main

import (
	"context"
	"io"
	"os"

	"github.com/alecthomas/kong"
	"golang.org/x/term"

	"github.com/perdure/perdure/internal/run/bench"
)

// benchCmds are the benchmarks. moves is the default.
type benchCmds struct {
	Moves     benchCmd          `cmd:"" default:"withargs" help:"@bench_moves"`
	Recovery  benchRecoveryCmd  `cmd:"" help:"@bench_recovery"`
	Workloads benchWorkloadsCmd `cmd:"" help:"@bench_workloads"`
}

type benchCmd struct{ bench.MovesOptions }

func (b *benchCmd) Run(ctx context.Context) error {
	b.Version = version
	return bench.RunMoves(ctx, stdout, b.MovesOptions)
}

// benchRecoveryCmd measures what recovery strategies cost without failures, and what a failure costs.
type benchRecoveryCmd struct{ bench.RecoveryOptions }

func (b *benchRecoveryCmd) Run(ctx context.Context, k *kong.Context) error {
	var terminal io.Writer
	if term.IsTerminal(int(os.Stderr.Fd())) {
		terminal = os.Stderr
	}
	b.Version, b.ServersGiven = version, given(k)["servers"]
	return bench.RunRecovery(ctx, stdout, terminal, b.RecoveryOptions)
}

// benchWorkloadsCmd compares whole training programs with the same kernel in a plain loop on one thread.
type benchWorkloadsCmd struct{ bench.WorkloadsOptions }

func (b *benchWorkloadsCmd) Run(ctx context.Context) error {
	return bench.RunWorkloads(ctx, stdout, b.WorkloadsOptions)
}

type benchPeerCmd struct{}

// Run serves raw exchanges on the inherited sockets until the benchmark ends.
func (benchPeerCmd) Run(ctx context.Context) error { return bench.AnswerRaw(ctx) }
