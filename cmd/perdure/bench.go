package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/proc/supervisor"
	"github.com/perdure/perdure/internal/run/localrun"
	"github.com/perdure/perdure/internal/run/screen"
	"github.com/perdure/perdure/internal/run/settings"
	"github.com/perdure/perdure/internal/run/share"
	"github.com/perdure/perdure/workload"
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

// What can be chosen, and is measured where nothing is chosen.
var (
	benchOps     = []string{"pull", "push", "inc"}
	benchRules   = []string{string(perdure.RuleAdd), string(perdure.RuleSGD), string(perdure.RuleAdam)}
	benchConns   = []int{1, 4}
	benchSockets = []string{"tcp", "unix"}
	benchSizes   = []benchSize{
		{name: "4KiB", bytes: 4 << 10},
		{name: "64KiB", bytes: 64 << 10},
		{name: "4MiB", bytes: 4 << 20},
		{name: "40MB", bytes: 40e6},
		{name: "1000rows", bytes: 1000 * 4 * sparseDim, rows: 1000},
		{name: "100000rows", bytes: 100_000 * 4 * sparseDim, rows: 100_000},
	}
)

const (
	mostBenchConns  = 64
	mostBenchShards = 4096 / 4 // a block of 4 KiB has so many values
	mostBenchRounds = 1000
	mostBenchTime   = time.Hour
)

// benchSize is how much one operation moves.
type benchSize struct {
	name  string
	bytes int64 // of values
	rows  int   // drawn at random from a sparse table; 0: all of a dense one
}

// measurement is one line of the results.
type measurement struct {
	op     string
	rule   perdure.RuleKind // push only
	size   benchSize
	conns  int
	shards int
	socket string
}

func (b *benchCmd) Run(ctx context.Context) error {
	share.Garbage(1) // as worker processes do
	plan, skipped, err := b.plan()
	if err != nil {
		return err
	}
	if err := checkWritable(b.JSON); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "perdure-bench-")
	if err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	defer os.RemoveAll(dir) // what the system leaves of it is in its temporary folder
	raw, err := startRawPeer(dir)
	if err != nil {
		return err
	}
	defer raw.close()
	fmt.Fprint(stdout, b.header(skipped))
	run := &benchRun{benchCmd: b, dir: dir, raw: raw}
	for _, bed := range plan {
		if err := run.measure(ctx, bed); err != nil {
			if ctx.Err() != nil {
				return localrun.ErrInterrupted
			}
			return err
		}
	}
	return writeResults(b.JSON, run.results)
}

// choices returns those of all that were given by name, in their own order, or
// all if none was.
func choices[T any](flag string, given []string, all []T, name func(T) string) (chosen []T, err error) {
	var names []string
	for _, v := range all {
		names = append(names, name(v))
		if len(given) == 0 || slices.Contains(given, name(v)) {
			chosen = append(chosen, v)
		}
	}
	for _, g := range given {
		if !slices.Contains(names, g) {
			return nil, fmt.Errorf("%w: unknown --%s %q; choose %s", perdure.ErrUsage, flag, g, strings.Join(names, ", "))
		}
	}
	return chosen, nil
}

func itself(s string) string { return s }

// bed is what is measured on one job: the same connections throughout.
type bed struct {
	conns    int
	shards   int
	socket   string
	servers  int    // 0: one
	recovery string // "": none
	lines    []measurement
}

// plan turns the flags into beds, or says what is wrong. skipped is what this
// build cannot do.
func (b *benchCmd) plan() (beds []bed, skipped []string, err error) {
	switch {
	case b.Rounds < 1 || b.Rounds > mostBenchRounds:
		return nil, nil, fmt.Errorf("%w: %d rounds; choose 1 to %d", perdure.ErrUsage, b.Rounds, mostBenchRounds)
	case b.Time <= 0 || b.Time > mostBenchTime:
		return nil, nil, fmt.Errorf("%w: --time %v; choose more than 0, at most %v", perdure.ErrUsage, b.Time, mostBenchTime)
	case b.Raw < 0 || b.Raw > mostBenchConns:
		return nil, nil, fmt.Errorf("%w: --raw-conns %d; choose 1 to %d", perdure.ErrUsage, b.Raw, mostBenchConns)
	case b.Shards < 0 || b.Shards > mostBenchShards:
		return nil, nil, fmt.Errorf("%w: %d shards; choose 1 to %d", perdure.ErrUsage, b.Shards, mostBenchShards)
	}
	ops, err1 := choices("op", b.Op, benchOps, itself)
	rules, err2 := choices("rule", b.Rule, benchRules, itself)
	sizes, err3 := choices("size", b.Size, benchSizes, func(s benchSize) string { return s.name })
	sockets, err4 := choices("socket", b.Socket, benchSockets, itself)
	for _, err := range []error{err1, err2, err3, err4} {
		if err != nil {
			return nil, nil, err
		}
	}
	conns := slices.Compact(slices.Sorted(slices.Values(b.Conns)))
	if len(conns) == 0 {
		conns = benchConns
	}
	if conns[0] < 1 || conns[len(conns)-1] > mostBenchConns {
		return nil, nil, fmt.Errorf("%w: --conns %d to %d; choose 1 to %d", perdure.ErrUsage, conns[0], conns[len(conns)-1], mostBenchConns)
	}
	for _, socket := range sockets {
		for _, n := range conns {
			for _, lines := range group(ops, rules, sizes) {
				if len(lines) == 0 {
					continue
				}
				bed := bed{conns: n, socket: socket, shards: b.Shards}
				if b.Shards == 0 {
					bed.shards = max(n, usualShards(lines))
				}
				for _, m := range lines {
					m.conns, m.socket, m.shards = n, socket, bed.shards
					if lack := missing(&m); lack != "" {
						skipped = append(skipped, lack)
						continue
					}
					bed.lines = append(bed.lines, m)
				}
				if len(bed.lines) > 0 {
					beds = append(beds, bed)
				}
			}
		}
	}
	slices.Sort(skipped)
	skipped = slices.Compact(skipped)
	if len(beds) == 0 {
		return nil, nil, fmt.Errorf("%w: nothing is left to measure: this build has no %s", perdure.ErrUsage, strings.Join(skipped, ", no "))
	}
	return beds, skipped, nil
}

// benchLargeShards is into how many parts a table of large blocks is split: each
// is then applied while its part of the update is still in the processor's cache.
const benchLargeShards = 8

// usualShards returns how many shards a job for such measurements has. A small
// block is one message: to split it costs more than to apply its parts side by
// side gains.
func usualShards(lines []measurement) int {
	switch size := lines[0].size; {
	case size.large():
		return benchLargeShards
	case size.rows == 0:
		return 1
	}
	return min(runtime.NumCPU(), mostBenchShards)
}

func (s benchSize) large() bool { return s.rows == 0 && s.bytes >= 1<<20 }

// group makes up the measurements of one kind of connection, those on one job
// together: small dense tables, large ones, and each sparse table by itself.
func group(ops, rules []string, sizes []benchSize) (groups [][]measurement) {
	if len(ops) == 1 && ops[0] == "pull" {
		rules = []string{""}
	}
	var dense, large []measurement
	for i, rule := range rules {
		var sparse []measurement
		for _, op := range ops {
			if op != "push" && i > 0 {
				continue // costs the same under every rule, or is only for comparison
			}
			for _, s := range sizes {
				m := measurement{op: op, size: s}
				if op == "inc" && s.rows > 0 {
					continue // rows of sparse tables are always copied
				}
				if op != "pull" {
					m.rule = perdure.RuleKind(rule)
				}
				switch {
				case s.rows > 0:
					sparse = append(sparse, m)
				case s.large():
					large = append(large, m)
				default:
					dense = append(dense, m)
				}
			}
		}
		groups = append(groups, sparse)
	}
	return append([][]measurement{dense, large}, groups...)
}

// benchJob is a job of one server, and this process as its worker.
type benchJob struct {
	*localrun.Run
	ended  chan struct{}
	client benchClient
}

// startBenchJob starts a job as `perdure up` does, in a folder of its own, and
// joins it. Its end by itself cancels with why.
func startBenchJob(ctx context.Context, cancel context.CancelCauseFunc, out string, bed *bed) (b *benchJob, err error) {
	shape := settings.Shape{
		Workers: 1, Servers: cmp.Or(bed.servers, 1), Shards: bed.shards, Consistency: string(perdure.ASP),
		Recovery: cmp.Or(bed.recovery, string(perdure.RecoverNone)), Clocks: endlessClocks, Seed: 1,
	}
	job, err := shape.Job(settings.OwnWorkload)
	if err != nil {
		return nil, err
	}
	s := settings.Run{Version: version, Job: job, Listen: localrun.AnyPort, Params: workload.Params{Seed: job.Seed, Slots: job.Slots}}
	r, err := localrun.Start(ctx, localrun.Options{Settings: s, Folder: out, View: screen.New(stdout, true)})
	if err != nil {
		return nil, err
	}
	b = &benchJob{Run: r, ended: make(chan struct{})}
	go func() {
		defer close(b.ended)
		cancel(r.Job().Run())
	}()
	if b.client, err = dialBench(ctx, r, bed); err != nil {
		return nil, errors.Join(err, b.close())
	}
	return b, nil
}

// endlessClocks are more than any bench counts.
const endlessClocks = 1<<31 - 1

// undisturbed says that the figures are worth nothing if a process of the job
// had to be replaced meanwhile.
func (b *benchJob) undisturbed() error {
	if f := b.Job().Timeline(); len(f) > 0 {
		return fmt.Errorf("bench: %s was replaced while it was measured (%s); measure again when the machine has less to do", f[0].Target, f[0].Kind)
	}
	return nil
}

func (b *benchJob) close() error {
	if b.client.Client != nil {
		b.client.close()
	}
	b.Job().End(localrun.ErrOver)
	<-b.ended
	return b.Run.Close()
}

// rawPeer is the process that the raw exchanges are made with.
type rawPeer struct {
	addrs map[string]net.Addr // by kind of socket
	group *supervisor.Group
	files []*os.File
}

// startRawPeer opens the sockets and starts the process that answers on them.
func startRawPeer(dir string) (p *rawPeer, err error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find this program: %w", err)
	}
	p = &rawPeer{addrs: map[string]net.Addr{}}
	defer func() {
		if err != nil {
			p.close()
		}
	}()
	for _, kind := range benchSockets { // as rawTCPFD and rawUnixFD have them
		addr := localrun.AnyPort
		if kind == "unix" {
			addr = filepath.Join(dir, "raw")
		}
		l, err := net.Listen(kind, addr)
		if err != nil {
			return nil, fmt.Errorf("bench: listen for the raw exchange: %w", err)
		}
		f, err := l.(interface{ File() (*os.File, error) }).File()
		if err != nil {
			return nil, fmt.Errorf("bench: listen for the raw exchange: %w", err)
		}
		p.addrs[kind] = l.Addr()
		p.files = append(p.files, f)
		if u, ok := l.(*net.UnixListener); ok {
			u.SetUnlinkOnClose(false)
		}
		if err := l.Close(); err != nil { // f holds the socket
			return nil, fmt.Errorf("bench: listen for the raw exchange: %w", err)
		}
	}
	if p.group, err = supervisor.NewGroup(supervisor.Options{}); err != nil {
		return nil, err
	}
	return p, p.group.Start(supervisor.Spec{
		Role: "bench-peer", Command: []string{exe, "bench-peer"}, Files: p.files, LogPath: filepath.Join(dir, "raw.log"),
	})
}

func (p *rawPeer) close() {
	if p.group != nil {
		_ = p.group.Stop(context.Background()) // it bounds itself, and the kernel ends what is left with this process
	}
	for _, f := range p.files {
		_ = f.Close() // nothing was written
	}
	if path := p.addrs["unix"]; path != nil {
		_ = os.Remove(path.String()) // another peer may come in its place
	}
}
