package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"runtime"
	"slices"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/run/share"
)

const (
	benchRowDim = 128       // values in a row of a dense table
	sparseDim   = 64        // values in a row of a sparse table
	sparseRows  = 1_000_000 // rows that a sparse table holds
	seedRows    = 50_000    // rows of one push that fills it
	idLists     = 8         // draws of random rows, used in turn
)

// benchRun is one run of the bench.
type benchRun struct {
	*benchCmd
	dir     string
	raw     *rawPeer
	jobs    int
	results []benchResult
	best    map[rawKey]rawWay
}

// measure does all measurements of a bed, on one job.
func (r *benchRun) measure(ctx context.Context, bed bed) (err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	r.jobs++
	job, err := startBenchJob(ctx, cancel, filepath.Join(r.dir, fmt.Sprint("job-", r.jobs)), &bed)
	if err != nil {
		return err
	}
	defer func() {
		if ctx.Err() != nil {
			err = context.Cause(ctx) // of the job, rather than what came of it
		}
		err = errors.Join(err, job.close())
	}()
	tables, err := r.tables(ctx, job.client, &bed)
	if err != nil {
		return err
	}
	for i := range bed.lines {
		m := &bed.lines[i]
		res, err := r.line(ctx, m, tables[bed.tableOf(m)])
		if err == nil {
			err = job.undisturbed()
		}
		if err != nil {
			return err
		}
		fmt.Fprintln(stdout, res.line())
		r.results = append(r.results, res)
	}
	for _, t := range tables {
		if err := t.verify(ctx); err != nil {
			return err
		}
	}
	return nil
}

// tableOf names the table that a measurement uses: every push has one of its
// rule, every pull one that is there anyway.
func (b *bed) tableOf(m *measurement) string {
	rule := m.rule
	if i := slices.IndexFunc(b.lines, func(m measurement) bool { return m.rule != "" }); rule == "" && i >= 0 {
		rule = b.lines[i].rule
	}
	size := m.size.name
	if m.size.rows > 0 {
		size = "rows"
	}
	return string(cmp.Or(rule, perdure.RuleAdd)) + "-" + size
}

// tables makes all tables of a bed, for a job must have them before its first
// clock ends, and fills the sparse ones.
func (r *benchRun) tables(ctx context.Context, c benchClient, bed *bed) (map[string]*benchTable, error) {
	tables := map[string]*benchTable{}
	for i := range bed.lines {
		m := &bed.lines[i]
		name := bed.tableOf(m)
		if tables[name] != nil {
			continue
		}
		spec := perdure.TableSpec{Name: name, Rule: benchRule(name)}
		if m.size.rows > 0 {
			spec.Sparse, spec.Dim = true, sparseDim
		} else {
			spec.Dim = benchRowDim
			for m.size.bytes/4/int64(spec.Dim) < int64(bed.shards) {
				spec.Dim /= 2
			}
			spec.Rows = m.size.bytes / 4 / int64(spec.Dim)
		}
		t, err := c.table(ctx, spec)
		if err != nil {
			return nil, err
		}
		tables[name] = t
	}
	for _, t := range tables {
		if t.Spec().Sparse {
			if err := t.fill(ctx); err != nil {
				return nil, err
			}
		}
	}
	return tables, nil
}

// benchRule is the rule that a table is named for.
func benchRule(table string) perdure.Rule {
	for _, kind := range benchRules {
		if table[:len(kind)] == kind && kind != string(perdure.RuleAdd) {
			return perdure.Rule{Kind: perdure.RuleKind(kind), Rate: 0.001}.WithDefaults()
		}
	}
	return perdure.Rule{Kind: perdure.RuleAdd}
}

// fill stores all rows of a sparse table, by one push to each.
func (t *benchTable) fill(ctx context.Context) error {
	delta := benchDelta(seedRows * sparseDim)
	ids := make([]perdure.RowID, seedRows)
	for at := 0; at < sparseRows; at += len(ids) {
		for i := range ids {
			ids[i] = sparseID(at + i)
		}
		if err := t.pushed(ctx, ids, delta); err != nil {
			return err
		}
	}
	return nil
}

// sparseID spreads the rows of a sparse table over all numbers there are, no two
// in one place: every step can be undone.
func sparseID(i int) perdure.RowID {
	z := uint64(i) * 0x9e3779b97f4a7c15
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	return perdure.RowID(z ^ z>>31)
}

// mostExact pushes of benchDelta add up without rounding.
const mostExact = (1 << 24) / 7

// benchDelta is what a push adds: small multiples of 1/1024.
func benchDelta(values int) []float32 {
	delta := make([]float32, values)
	for i := range delta {
		delta[i] = float32(i%7+1) / 1024
	}
	return delta
}

// operation is what one side of a measurement does again and again.
type operation struct {
	cores   func() // sets the processor's cores to be used, before a round
	prepare func() // before each, not timed; may be nil
	do      func() error
}

// A worker process of a local job shares the cores with others; the raw exchange
// may use them all.
func workerCores() { share.Cores(1) }
func allCores()    { share.UseCores(runtime.NumCPU()) }

// operation makes up Perdure's side.
func (t *benchTable) operation(ctx context.Context, m *measurement) operation {
	var lists [][]perdure.RowID
	if m.size.rows > 0 {
		rng := rand.New(rand.NewPCG(1, uint64(m.size.rows)))
		for range idLists {
			lists = append(lists, drawRows(rng, m.size.rows))
		}
	}
	var ids []perdure.RowID // of the next operation; nil: all
	turn := func() {
		if lists != nil {
			ids = lists[0]
			lists = append(lists[1:], ids)
		}
	}
	if m.op != "pull" {
		delta := benchDelta(int(m.size.bytes / 4))
		if m.op == "push" && ids == nil && lists == nil {
			return operation{cores: workerCores, prepare: func() { t.compute(delta) }, do: func() error { return t.finished(ctx) }}
		}
		return operation{cores: workerCores, prepare: turn, do: func() error { return t.pushed(ctx, ids, delta) }}
	}
	dst := make([]float32, m.size.bytes/4)
	return operation{cores: workerCores, prepare: func() { turn(); t.Forget() }, do: func() error { return t.pulled(ctx, ids, dst) }}
}

// drawRows draws so many different rows of a filled sparse table.
func drawRows(rng *rand.Rand, n int) (ids []perdure.RowID) {
	drawn := make(map[int]bool, n)
	for len(ids) < n {
		if i := rng.IntN(sparseRows); !drawn[i] {
			drawn[i] = true
			ids = append(ids, sparseID(i))
		}
	}
	return ids
}

// stretch is what one side did in one round.
type stretch struct {
	ops  int
	took time.Duration // of the operations alone
}

// gbPerSecond is the speed at which values were moved.
func (s stretch) gbPerSecond(bytes int64) float64 {
	return float64(bytes) * float64(s.ops) / s.took.Seconds() / 1e9
}

// repeat does an operation, one after the other, for so long, and at least once.
// It appends how long each took to laps.
func (o *operation) repeat(ctx context.Context, budget time.Duration, laps *[]time.Duration) (s stretch, err error) {
	o.cores()
	for begin := time.Now(); s.ops == 0 || time.Since(begin) < budget; {
		if ctx.Err() != nil {
			return s, ctx.Err()
		}
		if o.prepare != nil {
			o.prepare()
		}
		start := time.Now()
		if err := o.do(); err != nil {
			return s, err
		}
		lap := time.Since(start)
		s.ops++
		s.took += lap
		*laps = append(*laps, lap)
	}
	return s, nil
}

// line measures one line: rounds of Perdure and of the raw exchange in turn, so
// that whatever else this machine does hits both.
func (r *benchRun) line(ctx context.Context, m *measurement, t *benchTable) (res benchResult, err error) {
	ours := t.operation(ctx, m)
	way, err := r.bestRaw(ctx, m)
	if err != nil {
		return res, err
	}
	client, err := r.dialRaw(ctx, m, way)
	if err != nil {
		return res, err
	}
	defer func() { err = errors.Join(err, client.close()) }()
	defer context.AfterFunc(ctx, client.stop)()
	raw := operation{cores: allCores, do: client.exchange}
	budget := r.Time / time.Duration(2*r.Rounds)
	laps, rawLaps := make([]time.Duration, 0, 1<<16), make([]time.Duration, 0, 1<<16)
	for _, o := range []*operation{&ours, &raw} { // caches, connections and buffers get warm
		if _, err := o.repeat(ctx, budget, &laps); err != nil {
			return res, err
		}
	}
	laps = laps[:0]
	var mallocs uint64
	var pairs [][2]stretch
	for range r.Rounds {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		p, err := ours.repeat(ctx, budget, &laps)
		if err != nil {
			return res, err
		}
		runtime.ReadMemStats(&after)
		mallocs += after.Mallocs - before.Mallocs
		q, err := raw.repeat(ctx, budget, &rawLaps)
		if err != nil {
			return res, err
		}
		pairs = append(pairs, [2]stretch{p, q})
	}
	res = newResult(m, pairs, laps, mallocs)
	res.RawConns = way.conns
	return res, nil
}

// rawWay is how a raw exchange is done.
type rawWay struct {
	conns         int
	chunk, buffer int64
}

// rawKey is what the best way depends on.
type rawKey struct {
	op, size, socket string
	conns            int
}

// rawWays are what is tried: with few bytes one connection is faster than
// several, with many it depends on the machine. asked is how many connections
// the raw exchange must have, 0 for whichever is faster.
func rawWays(m *measurement, asked int) (ways []rawWay) {
	conns, chunks := []int{1}, []int64{1 << 20}
	switch {
	case asked > 0:
		conns[0] = asked
	case m.conns > 1:
		conns = append(conns, m.conns)
	}
	if m.size.bytes > 1<<20 {
		chunks = []int64{256 << 10, 1 << 20, 8 << 20}
	}
	for _, n := range conns {
		for _, chunk := range chunks {
			for _, buffer := range []int64{0, 4 << 20} {
				ways = append(ways, rawWay{n, chunk, buffer})
			}
		}
	}
	return ways
}

// tryRaw is how long each way is tried, at least.
const tryRaw = 5 * time.Millisecond

// bestRaw finds out, once for all rules, in which way the raw exchange is
// fastest: it is measured at its best.
func (r *benchRun) bestRaw(ctx context.Context, m *measurement) (best rawWay, err error) {
	key := rawKey{m.op, m.size.name, m.socket, m.conns}
	if way, ok := r.best[key]; ok {
		return way, nil
	}
	fastest := time.Duration(0)
	ways := rawWays(m, r.Raw)
	for _, way := range append(ways, ways...) { // twice: something else may have slowed one
		typical, err := r.try(ctx, m, way)
		if err != nil {
			return best, err
		}
		if fastest == 0 || typical < fastest {
			fastest, best = typical, way
		}
	}
	if r.best == nil {
		r.best = map[rawKey]rawWay{}
	}
	r.best[key] = best
	return best, nil
}

// try returns how long an exchange typically takes in some way.
func (r *benchRun) try(ctx context.Context, m *measurement, way rawWay) (typical time.Duration, err error) {
	client, err := r.dialRaw(ctx, m, way)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, client.close()) }()
	defer context.AfterFunc(ctx, client.stop)()
	raw := operation{cores: allCores, do: client.exchange}
	var laps []time.Duration
	for len(laps) < 3 {
		if _, err := raw.repeat(ctx, tryRaw, &laps); err != nil {
			return 0, err
		}
	}
	return median(laps[1:]), nil
}

// A raw exchange has a header's bytes, and those that say which rows are meant.
const (
	rawHeaderBytes = 64
	rawRowsBytes   = 24
)

// dialRaw opens the raw exchange of as many bytes.
func (r *benchRun) dialRaw(ctx context.Context, m *measurement, way rawWay) (*rawClient, error) {
	ids := int64(8 * m.size.rows)
	s := rawShape{Ask: rawHeaderBytes + rawRowsBytes + ids, Answer: m.size.bytes, Chunk: way.chunk, Buffer: way.buffer}
	if m.op != "pull" {
		s.Ask, s.Answer = m.size.bytes+ids, rawHeaderBytes
	}
	return dialRaw(ctx, r.raw.addrs[m.socket], way.conns, s)
}

// median returns the middle of some values.
func median[T cmp.Ordered](v []T) T {
	v = slices.Sorted(slices.Values(v))
	return v[len(v)/2]
}
