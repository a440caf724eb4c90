package main

import (
	"context"
	"io"
	"os"
	"time"

	"github.com/alecthomas/kong"
	"golang.org/x/term"

	"github.com/perdure/perdure/internal/run/bench"
)

// benchCmds are the benchmarks; moves is meant where none is named.
type benchCmds struct {
	Moves     benchCmd          `cmd:"" default:"withargs" help:"@bench_moves"`
	Recovery  benchRecoveryCmd  `cmd:"" help:"@bench_recovery"`
	Workloads benchWorkloadsCmd `cmd:"" help:"@bench_workloads"`
}

type benchCmd struct {
	Op     []string      `help:"@moves_op" placeholder:"OP"`
	Rule   []string      `help:"@moves_rule" placeholder:"RULE"`
	Size   []string      `help:"@moves_size" placeholder:"SIZE"`
	Conns  []int         `help:"Connections to the server (default 1,4)." placeholder:"N"`
	Socket []string      `help:"Kinds of sockets: tcp, unix, tls (default tcp, unix)." placeholder:"KIND"`
	Rounds int           `help:"@moves_rounds (default ${default})." default:"7" placeholder:"N"`
	Time   time.Duration `help:"@moves_time (default ${default})." default:"600ms" placeholder:"TIME"`
	Shards int           `help:"@moves_shards" placeholder:"N"`
	Raw    int           `name:"raw-conns" help:"@moves_raw" placeholder:"N"`
	JSON   string        `name:"json" help:"Write all results to a file too." placeholder:"FILE" type:"path"`
}

func (b *benchCmd) Run(ctx context.Context) error {
	return bench.RunMoves(ctx, stdout, bench.MovesOptions{
		Op: b.Op, Rule: b.Rule, Size: b.Size, Conns: b.Conns, Socket: b.Socket, Rounds: b.Rounds, Time: b.Time,
		Shards: b.Shards, Raw: b.Raw, JSON: b.JSON, Version: version,
	})
}

// benchRecoveryCmd measures what recovery strategies cost while nothing fails, and
// what a failure costs under them.
type benchRecoveryCmd struct {
	Recovery    []string `help:"@strategies_recovery" placeholder:"STRATEGY" sep:"none"`
	Fault       []string `help:"@strategies_fault" placeholder:"KIND"`
	Measure     []string `help:"@strategies_measure" placeholder:"WHAT"`
	Rounds      int      `help:"@strategies_rounds (default ${default})." default:"10" placeholder:"N"`
	MB          int      `name:"mb" help:"@strategies_mb (default ${default})." default:"0" placeholder:"N"`
	Snapshot    bool     `help:"@strategies_snapshot"`
	Servers     int      `help:"Servers (default ${default})." default:"3" placeholder:"N"`
	Workers     int      `help:"Workers (default ${default})." default:"2" placeholder:"N"`
	Shards      int      `help:"@strategies_shards (default ${default})." default:"6" placeholder:"N"`
	Consistency string   `help:"@strategies_consistency (default ${default})." default:"bsp" placeholder:"MODEL"`
	Workload    string   `help:"@strategies_workload (default ${default})." default:"softmax" placeholder:"NAME"`
	Batch       int      `help:"@strategies_batch (default ${default})." default:"512" placeholder:"N"`
	Clocks      int64    `help:"@strategies_clocks (default ${default})." default:"300" placeholder:"N"`
	Seed        uint64   `help:"@strategies_seed (default ${default})." default:"1" placeholder:"N"`
	JSON        string   `name:"json" help:"Write all results to a file too." placeholder:"FILE" type:"path"`
}

func (b *benchRecoveryCmd) Run(ctx context.Context, k *kong.Context) error {
	var terminal io.Writer
	if term.IsTerminal(int(os.Stderr.Fd())) {
		terminal = os.Stderr
	}
	return bench.RunRecovery(ctx, stdout, terminal, bench.RecoveryOptions{
		Recovery: b.Recovery, Fault: b.Fault, Measure: b.Measure, Rounds: b.Rounds, MB: b.MB, Snapshot: b.Snapshot,
		Servers: b.Servers, Workers: b.Workers, Shards: b.Shards, Consistency: b.Consistency, Workload: b.Workload,
		Batch: b.Batch, Clocks: b.Clocks, Seed: b.Seed, JSON: b.JSON, Version: version,
		ServersGiven: given(k)["servers"],
	})
}

// benchWorkloadsCmd measures whole training programs against the same kernel in a
// plain loop on one thread.
type benchWorkloadsCmd struct {
	Workload    []string `help:"@programs_workload" placeholder:"NAME"`
	Data        string   `help:"@programs_data (default ${default})." default:"synthetic:0.02" placeholder:"PATH"`
	Documents   string   `help:"Documents of lda (default ${default})." default:"synthetic:20000" placeholder:"PATH"`
	Workers     []int    `help:"Workers, beside one server (default 1,2)." placeholder:"N"`
	Consistency string   `help:"@programs_consistency (default ${default})." default:"essp:3" placeholder:"MODEL"`
	Recovery    string   `help:"@programs_recovery (default ${default})." default:"none" placeholder:"STRATEGY"`
	Shards      int      `help:"@programs_shards (default ${default})." default:"8" placeholder:"N"`
	Rounds      int      `help:"@programs_rounds (default ${default})." default:"5" placeholder:"N"`
	Clocks      int64    `help:"@programs_clocks (default ${default})." default:"200" placeholder:"N"`
	JSON        string   `name:"json" help:"Write all results to a file too." placeholder:"FILE" type:"path"`
}

func (b *benchWorkloadsCmd) Run(ctx context.Context) error {
	return bench.RunWorkloads(ctx, stdout, bench.WorkloadsOptions{
		Workload: b.Workload, Data: b.Data, Documents: b.Documents,
		Workers: b.Workers, Consistency: b.Consistency, Recovery: b.Recovery,
		Shards: b.Shards, Rounds: b.Rounds, Clocks: b.Clocks, JSON: b.JSON,
	})
}

type benchPeerCmd struct{}

// Run answers raw exchanges on the inherited sockets until the bench ends.
func (benchPeerCmd) Run(ctx context.Context) error { return bench.AnswerRaw(ctx) }
