package main

import (
	"context"
	"io"
	"os"
	"time"

	"github.com/alecthomas/kong"
	"golang.org/x/term"

	"github.com/perdure/perdure/internal/run/bench/moves"
	"github.com/perdure/perdure/internal/run/bench/programs"
	"github.com/perdure/perdure/internal/run/bench/raw"
	"github.com/perdure/perdure/internal/run/bench/strategies"
)

// benchCmds are the benchmarks; moves is meant where none is named.
type benchCmds struct {
	Moves     benchCmd          `cmd:"" default:"withargs" help:"Pushes and pulls of blocks and rows against a raw exchange of the same bytes (the default)."`
	Recovery  benchRecoveryCmd  `cmd:"" help:"What recovery strategies cost while nothing fails, and how long a failure is felt under them."`
	Workloads benchWorkloadsCmd `cmd:"" help:"Training programs, in real processes, against the same kernel in a plain loop on one thread."`
}

type benchCmd struct {
	Op     []string      `help:"What to measure: pull, push (deltas computed where the update has them), inc (deltas copied by Inc, first rule only) (default all)." placeholder:"OP"`
	Rule   []string      `help:"Update rules to push and inc with: add, sgd, adam (default all)." placeholder:"RULE"`
	Size   []string      `help:"Blocks to move: 4KiB, 64KiB, 4MiB, 40MB of a dense table, 1000rows, 100000rows of a sparse one (default all)." placeholder:"SIZE"`
	Conns  []int         `help:"Connections to the server (default 1,4)." placeholder:"N"`
	Socket []string      `help:"Kinds of sockets: tcp, unix (default both)." placeholder:"KIND"`
	Rounds int           `help:"Rounds of each measurement; a round is one of Perdure and one of the raw exchange (default ${default})." default:"7" placeholder:"N"`
	Time   time.Duration `help:"How long a measurement takes, all its rounds together; large blocks take longer, for a round has at least one operation (default ${default})." default:"600ms" placeholder:"TIME"`
	Shards int           `help:"Parts that every table is split into, all on one server (default 1 for blocks of 4 and 64 KiB, 8 for larger ones, the number of CPUs for rows; at least as many as connections)." placeholder:"N"`
	Raw    int           `name:"raw-conns" help:"Connections of the raw exchange (default one, or as many as Perdure has where that is faster)." placeholder:"N"`
	JSON   string        `name:"json" help:"Write all results to a file too." placeholder:"FILE" type:"path"`
}

func (b *benchCmd) Run(ctx context.Context) error {
	return moves.Run(ctx, stdout, moves.Options{
		Op: b.Op, Rule: b.Rule, Size: b.Size, Conns: b.Conns, Socket: b.Socket, Rounds: b.Rounds, Time: b.Time,
		Shards: b.Shards, Raw: b.Raw, JSON: b.JSON, Version: version,
	})
}

// benchRecoveryCmd measures what recovery strategies cost while nothing fails, and
// what a failure costs under them.
type benchRecoveryCmd struct {
	Recovery    []string `help:"Recovery strategy; may be given again (default none, checkpoint:20, resend:20, chain:2, chain:3, stateless)." placeholder:"STRATEGY" sep:"none"`
	Fault       []string `help:"What fails: kill-head, kill-middle or kill-tail, of a chain; kill-server, freeze (for good), cut (off the network, for good) or drain (SIGTERM), of any server; kill-coordinator; kill-log, of stateless (default all that the strategy has)." placeholder:"KIND"`
	Measure     []string `help:"What to measure: train (speed of training, of that under none), push (speed of pushes of 4 MiB, likewise), faults, save (a checkpoint of --mb, or 500, MB while training goes on, and while it does not; no --recovery), replay (how fast --mb, or 500, MB of updates are read from the log again when a server of stateless is killed; one server and one worker unless --servers says otherwise; no --recovery) (default train, push and faults)." placeholder:"WHAT"`
	Rounds      int      `help:"Rounds of each measurement (default ${default})." default:"10" placeholder:"N"`
	MB          int      `name:"mb" help:"faults: a model of so many MB, beside softmax's small one (default ${default})." default:"0" placeholder:"N"`
	Snapshot    bool     `help:"faults: also how fast a server that joins a chain copies its shards, and how fast they are read meanwhile; it takes --mb to be worth something."`
	Servers     int      `help:"Servers (default ${default})." default:"3" placeholder:"N"`
	Workers     int      `help:"Workers (default ${default})." default:"2" placeholder:"N"`
	Shards      int      `help:"Parts that every table is split into (default ${default})." default:"6" placeholder:"N"`
	Consistency string   `help:"Model of all tables; pushes are measured under asp (default ${default})." default:"bsp" placeholder:"MODEL"`
	Workload    string   `help:"train: what is trained, a workload with batches (default ${default})." default:"softmax" placeholder:"NAME"`
	Batch       int      `help:"train: examples per worker and clock (default ${default})." default:"512" placeholder:"N"`
	Clocks      int64    `help:"train: clocks of each job (default ${default})." default:"300" placeholder:"N"`
	Seed        uint64   `help:"Seed of which servers fail (default ${default})." default:"1" placeholder:"N"`
	JSON        string   `name:"json" help:"Write all results to a file too." placeholder:"FILE" type:"path"`
}

func (b *benchRecoveryCmd) Run(ctx context.Context, k *kong.Context) error {
	var terminal io.Writer
	if term.IsTerminal(int(os.Stderr.Fd())) {
		terminal = os.Stderr
	}
	return strategies.Run(ctx, stdout, terminal, strategies.Options{
		Recovery: b.Recovery, Fault: b.Fault, Measure: b.Measure, Rounds: b.Rounds, MB: b.MB, Snapshot: b.Snapshot,
		Servers: b.Servers, Workers: b.Workers, Shards: b.Shards, Consistency: b.Consistency, Workload: b.Workload,
		Batch: b.Batch, Clocks: b.Clocks, Seed: b.Seed, JSON: b.JSON, Version: version,
		ServersGiven: given(k)["servers"],
	})
}

// benchWorkloadsCmd measures whole training programs against the same kernel in a
// plain loop on one thread.
type benchWorkloadsCmd struct {
	Workload    []string `help:"What to train: mf (rank 100, clocks of a tenth of the ratings, whole users), softmax (batch 64), cnn (batch 128) (default all)." placeholder:"NAME"`
	Data        string   `help:"mf: file of ratings, or synthetic:F (default ${default})." default:"synthetic:0.02" placeholder:"PATH"`
	Workers     []int    `help:"Workers, beside one server (default 1,2)." placeholder:"N"`
	Consistency string   `help:"Model of all tables (default ${default})." default:"essp:3" placeholder:"MODEL"`
	Recovery    string   `help:"Recovery strategy (default ${default})." default:"none" placeholder:"STRATEGY"`
	Shards      int      `help:"Parts that every table is split into (default ${default})." default:"8" placeholder:"N"`
	Rounds      int      `help:"Rounds; each is one job and one plain loop (default ${default})." default:"5" placeholder:"N"`
	Clocks      int64    `help:"Clocks of each job of mf and cnn; softmax has 100 times as many, since its clocks are small (default ${default})." default:"200" placeholder:"N"`
	JSON        string   `name:"json" help:"Write all results to a file too." placeholder:"FILE" type:"path"`
}

func (b *benchWorkloadsCmd) Run(ctx context.Context) error {
	return programs.Run(ctx, stdout, programs.Options{
		Workload: b.Workload, Data: b.Data, Workers: b.Workers, Consistency: b.Consistency, Recovery: b.Recovery,
		Shards: b.Shards, Rounds: b.Rounds, Clocks: b.Clocks, JSON: b.JSON,
	})
}

type benchPeerCmd struct{}

// Run answers raw exchanges on the inherited sockets until the bench ends.
func (benchPeerCmd) Run(ctx context.Context) error { return raw.AnswerInherited(ctx) }
