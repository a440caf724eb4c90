package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/proc/keys/authority"
	"github.com/perdure/perdure/internal/run/localrun"
	"github.com/perdure/perdure/internal/run/settings"
	"github.com/perdure/perdure/internal/run/terminal"
	"github.com/perdure/perdure/internal/run/workload"
	"github.com/perdure/perdure/worker"
)

// The benchmark of moves measures the cost of pushes and pulls: blocks of dense tables and rows of sparse ones, between
// this process and a server of its own job. Rounds alternate with a raw exchange of the same bytes. A line of the
// results is one operation with one rule, one size, one number of connections and one kind of socket. Pushed values are
// verified, to ensure that the measured operations really took place.

// MovesOptions are the flags of perdure bench moves. Empty lists select everything.
type MovesOptions struct {
	Op     []string      `help:"@moves_op" placeholder:"OP"`
	Rule   []string      `help:"@moves_rule" placeholder:"RULE"`
	Size   []string      `help:"@moves_size" placeholder:"SIZE"`
	Conns  []int         `help:"Connections to the server (default 1,4)." placeholder:"N"`
	Socket []string      `help:"Kinds of sockets: tcp, unix, tls (default tcp, unix)." placeholder:"KIND"`
	Rounds int           `help:"@moves_rounds (default ${default})." default:"7" placeholder:"N"`
	Time   time.Duration `help:"@moves_time (default ${default})." default:"600ms" placeholder:"TIME"`
	Shards int           `help:"@moves_shards" placeholder:"N"`
	Raw    int           `name:"raw-conns" help:"@moves_raw" placeholder:"N"`
	JSON   string        `name:"json" help:"Also write all results to a file." placeholder:"FILE" type:"path"`

	Version string `kong:"-"` // of Perdure, for the header
}

// Possible choices; all are measured by default, except TLS.
var (
	allOps   = []string{"pull", "push", "inc"}
	allRules = []string{string(perdure.RuleAdd), string(perdure.RuleSGD), string(perdure.RuleAdam)}
	allConns = []int{1, 4}

	usualSockets = []string{"tcp", "unix"} // TLS is measured only on request

	moveSizes = []moveSize{
		{Name: "4KiB", Bytes: 4 << 10},
		{Name: "64KiB", Bytes: 64 << 10},
		{Name: "4MiB", Bytes: 4 << 20},
		{Name: "40MB", Bytes: 40e6},
		{Name: "1000rows", Bytes: 1000 * 4 * sparseDim, rows: 1000},
		{Name: "100000rows", Bytes: 100_000 * 4 * sparseDim, rows: 100_000},
	}
)

const (
	maxConns  = 64
	maxShards = 4096 / 4 // the values in a block of 4 KiB
	maxRounds = 1000
	maxTime   = time.Hour
)

// moveSize is the amount that one operation moves.
type moveSize struct {
	Name  string
	Bytes int64 // of values
	rows  int   // drawn at random from a sparse table; 0: all of a dense one
}

// measurement is one line of the results.
type measurement struct {
	Op     string
	Rule   perdure.RuleKind // push only
	Size   moveSize
	Conns  int
	Shards int
	Socket string
}

// RunMoves runs the benchmark, prints each line as soon as it is measured, and writes the results.
func RunMoves(ctx context.Context, out io.Writer, o MovesOptions) error {
	plan, skipped, err := o.plan()
	if err != nil {
		return err
	}
	dir, err := prepare(o.JSON)
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir) // leftovers are in the system's temporary directory
	raw, err := startRawPeer(dir)
	if err != nil {
		return err
	}
	defer raw.Close()
	fmt.Fprint(out, o.header(skipped))
	run := &movesRun{MovesOptions: o, out: out, dir: dir, raw: raw}
	for _, bed := range plan {
		if err := run.measure(ctx, bed); err != nil {
			if ctx.Err() != nil {
				return localrun.ErrInterrupted
			}
			return err
		}
	}
	return writeResults(o.JSON, run.results)
}

// movesTestbed is a group of measurements of one table, in a job of its own.
type movesTestbed struct {
	Conns    int
	Shards   int
	Socket   string
	Servers  int    // 0: one
	Recovery string // "": none
	Size     moveSize
	Rule     perdure.RuleKind
	Lines    []measurement
}

// plan converts the flags to beds. skipped lists what this build does not support.
func (b *MovesOptions) plan() (beds []movesTestbed, skipped []string, err error) {
	switch {
	case b.Rounds < 1 || b.Rounds > maxRounds:
		return nil, nil, perdure.Usagef("invalid number of rounds %d; choose 1 to %d", b.Rounds, maxRounds)
	case b.Time <= 0 || b.Time > maxTime:
		return nil, nil, perdure.Usagef("invalid --time %v; choose a time above 0 and at most %v", b.Time, maxTime)
	case b.Raw < 0 || b.Raw > maxConns:
		return nil, nil, perdure.Usagef("invalid --raw-conns %d; choose 1 to %d", b.Raw, maxConns)
	case b.Shards < 0 || b.Shards > maxShards:
		return nil, nil, perdure.Usagef("invalid number of shards %d; choose 1 to %d", b.Shards, maxShards)
	}
	ops, err1 := choose("op", b.Op, allOps, itself)
	rules, err2 := choose("rule", b.Rule, allRules, itself)
	sizes, err3 := choose("size", b.Size, moveSizes, func(s moveSize) string { return s.Name })
	if len(b.Socket) == 0 {
		b.Socket = usualSockets
	}
	sockets, err4 := choose("socket", b.Socket, socketKinds, itself)
	for _, err := range []error{err1, err2, err3, err4} {
		if err != nil {
			return nil, nil, err
		}
	}
	conns := slices.Compact(slices.Sorted(slices.Values(b.Conns)))
	if len(conns) == 0 {
		conns = allConns
	}
	if conns[0] < 1 || conns[len(conns)-1] > maxConns {
		return nil, nil, perdure.Usagef("invalid --conns %d to %d; choose 1 to %d", conns[0], conns[len(conns)-1],
			maxConns)
	}
	for _, socket := range sockets {
		for _, n := range conns {
			for _, size := range sizes {
				for i, rule := range rules {
					bed := movesTestbed{
						Conns: n, Socket: socket, Shards: cmp.Or(b.Shards, max(n, size.shards())), Size: size,
						Rule: perdure.RuleKind(rule),
					}
					if lack := bed.plan(ops, i == 0); lack != "" {
						skipped = append(skipped, lack)
					} else if len(bed.Lines) > 0 {
						beds = append(beds, bed)
					}
				}
			}
		}
	}
	slices.Sort(skipped)
	skipped = slices.Compact(skipped)
	if len(beds) == 0 {
		return nil, nil, perdure.Usagef("nothing to measure: this build does not support %s",
			strings.Join(skipped, ", no "))
	}
	return beds, skipped, nil
}

// largeShards is the number of shards of tables with large blocks. Each shard is applied while its part of the update
// is still in the processor's cache.
const largeShards = 8

// shards returns the default number of shards. A small block is a single message; splitting it costs more than applying
// its parts in parallel saves.
func (s moveSize) shards() int {
	switch {
	case s.rows > 0:
		return min(runtime.NumCPU(), maxShards)
	case s.Bytes >= 1<<20:
		return largeShards
	}
	return 1
}

// plan plans the operations on the table. first means that no other rule is measured before: the cost of a pull does
// not depend on the rule, and an inc is only a comparison. lack is what this machine lacks for them, or "".
func (t *movesTestbed) plan(ops []string, first bool) (lack string) {
	for _, op := range ops {
		if op != "push" && !first || op == "inc" && t.Size.rows > 0 { // rows of sparse tables are always copied
			continue
		}
		m := measurement{Op: op, Size: t.Size, Conns: t.Conns, Socket: t.Socket, Shards: t.Shards}
		if op != "pull" {
			m.Rule = t.Rule
		}
		if lack := missingFor(&m); lack != "" {
			return lack
		}
		t.Lines = append(t.Lines, m)
	}
	return ""
}

// movesJob is a job with one server, and with this process as its worker.
type movesJob struct {
	*localrun.Run
	ended  chan struct{}
	Client *worker.Client
}

// startMovesJob starts a job as `perdure up` does, in its own directory, and joins it. If the job ends by itself, it
// calls cancel with the reason.
func startMovesJob(
	ctx context.Context, cancel context.CancelCauseFunc, out string, bed *movesTestbed, version string,
) (b *movesJob, err error) {
	shape := settings.Shape{
		Workers: 1, Servers: cmp.Or(bed.Servers, 1), Shards: bed.Shards, Consistency: string(perdure.ASP),
		Recovery: cmp.Or(bed.Recovery, string(perdure.RecoverNone)), Clocks: endlessClocks, Seed: 1,
	}
	job, err := shape.Job(settings.OwnWorkload)
	if err != nil {
		return nil, err
	}
	reach := settings.Reach{Listen: localrun.AnyPort}
	if bed.Socket == socketTLS {
		reach.Keys = out + "-keys"
		if _, err := authority.New(reach.Keys, "bench", keyValidity, time.Now); err != nil {
			return nil, err
		}
	}
	s := settings.Run{
		Version: version, Job: job, Reach: reach,
		Params: workload.Params{Seed: job.Seed, Slots: job.Slots},
	}
	r, err := localrun.Start(ctx, localrun.Options{Settings: s, Folder: out, View: terminal.NopView{}})
	if err != nil {
		return nil, err
	}
	b = &movesJob{Run: r, ended: make(chan struct{})}
	go func() {
		defer close(b.ended)
		cancel(r.Job().Run())
	}()
	if b.Client, err = joinAlone(ctx, r, bed); err != nil {
		return nil, errors.Join(err, b.Close())
	}
	return b, nil
}

// keyValidity is the validity of the keys of a job measured over TLS.
const keyValidity = 24 * time.Hour

// endlessClocks is more clocks than any benchmark runs.
const endlessClocks = 1<<31 - 1

// Undisturbed returns an error if a process of the job was replaced during the measurement, which makes the results
// invalid.
func (b *movesJob) Undisturbed() error {
	if f := b.Job().Timeline(); len(f) > 0 {
		return fmt.Errorf("bench: %s was replaced during the measurement (%s); repeat it when the machine is less "+
			"busy", f[0].Target, f[0].Kind)
	}
	return nil
}

func (b *movesJob) Close() error {
	if b.Client != nil {
		_ = b.Client.Close() // never fails
	}
	b.Job().End(localrun.ErrExported)
	<-b.ended
	return b.Run.Close()
}
