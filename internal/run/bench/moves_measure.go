package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"path/filepath"
	"runtime"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/proc/machine"
	"github.com/perdure/perdure/worker"
)

const (
	rowDim     = 128       // values in a row of a dense table
	sparseDim  = 64        // values in a row of a sparse table
	sparseRows = 1_000_000 // rows that a sparse table holds
	seedRows   = 50_000    // rows of one push that fills it
	idLists    = 8         // draws of random rows, used in turn
)

// movesRun is one run of the benchmark.
type movesRun struct {
	MovesOptions
	out     io.Writer
	dir     string
	raw     *rawPeer
	jobs    int
	results []MovesResult
	best    map[rawKey]rawConfig
}

// measure runs all measurements of a bed on one job.
func (r *movesRun) measure(ctx context.Context, bed movesTestbed) (err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	r.jobs++
	job, err := startMovesJob(ctx, cancel, filepath.Join(r.dir, fmt.Sprint("job-", r.jobs)), &bed, r.Version)
	if err != nil {
		return err
	}
	defer func() {
		if ctx.Err() != nil {
			err = context.Cause(ctx) // the cause, instead of its consequences
		}
		err = errors.Join(err, job.Close())
	}()
	table, err := makeTable(ctx, job.Client, &bed)
	if err != nil {
		return err
	}
	if spec := table.Spec(); !spec.Sparse { // rows of zeros would be sent compressed
		if err := table.push(ctx, nil, pushDelta(int(spec.Rows)*spec.Dim)); err != nil {
			return err
		}
	}
	for i := range bed.Lines {
		res, err := r.measureLine(ctx, &bed.Lines[i], table)
		if err == nil {
			err = job.Undisturbed()
		}
		if err != nil {
			return err
		}
		fmt.Fprintln(r.out, res.Line())
		r.results = append(r.results, res)
	}
	return table.Verify(ctx)
}

// makeTable creates the table of a bed, and fills a sparse one.
func makeTable(ctx context.Context, c *worker.Client, bed *movesTestbed) (*movedTable, error) {
	spec := perdure.TableSpec{Name: "moved", Rule: perdure.Rule{Kind: bed.Rule}}
	if bed.Rule != perdure.RuleAdd {
		spec.Rule.Rate = 0.001
		spec.Rule = spec.Rule.WithDefaults()
	}
	if bed.Size.rows > 0 {
		spec.Sparse, spec.Dim = true, sparseDim
	} else {
		spec.Dim = rowDim
		for bed.Size.Bytes/4/int64(spec.Dim) < int64(bed.Shards) {
			spec.Dim /= 2
		}
		spec.Rows = bed.Size.Bytes / 4 / int64(spec.Dim)
	}
	t, err := openMoved(ctx, c, spec)
	if err == nil && spec.Sparse {
		err = t.fill(ctx)
	}
	return t, err
}

// fill stores all rows of a sparse table by pushing once to each.
func (t *movedTable) fill(ctx context.Context) error {
	delta := pushDelta(seedRows * sparseDim)
	ids := make([]perdure.RowID, seedRows)
	for at := 0; at < sparseRows; at += len(ids) {
		for i := range ids {
			ids[i] = sparseID(at + i)
		}
		if err := t.push(ctx, ids, delta); err != nil {
			return err
		}
	}
	return nil
}

// sparseID spreads the rows of a sparse table over all 64-bit numbers. Every step is invertible, so no two rows
// collide.
func sparseID(i int) perdure.RowID {
	z := uint64(i) * 0x9e3779b97f4a7c15
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	return perdure.RowID(z ^ z>>31)
}

// maxExactPushes is the number of pushes of pushDelta that add up without rounding.
const maxExactPushes = (1 << 24) / 7

// pushDelta returns the delta of a push: small multiples of 1/1024.
func pushDelta(values int) []float32 {
	delta := make([]float32, values)
	for i := range delta {
		delta[i] = float32(i%7+1) / 1024
	}
	return delta
}

// operation is the repeated operation of one side of a measurement.
type operation struct {
	Cores   func() // sets the number of cores to use, before a round
	Prepare func() // called before each operation, not timed; may be nil
	Do      func() error
}

// A worker process of a local job shares the cores with other processes. The raw exchange may use all cores.
func workerCores() { machine.LimitCores(1) }
func allCores()    { machine.SetCores(runtime.NumCPU()) }

// Operation returns Perdure's side of a measurement.
func (t *movedTable) Operation(ctx context.Context, m *measurement) operation {
	var lists [][]perdure.RowID
	if m.Size.rows > 0 {
		rng := rand.New(rand.NewPCG(1, uint64(m.Size.rows)))
		for range idLists {
			lists = append(lists, drawRows(rng, m.Size.rows))
		}
	}
	var ids []perdure.RowID // of the next operation; nil: all rows
	turn := func() {
		if lists != nil {
			ids = lists[0]
			lists = append(lists[1:], ids)
		}
	}
	if m.Op != "pull" {
		delta := pushDelta(int(m.Size.Bytes / 4))
		if m.Op == "push" && ids == nil && lists == nil {
			return operation{
				Cores: workerCores, Prepare: func() { t.compute(delta) },
				Do: func() error { return t.finishClock(ctx) },
			}
		}
		return operation{Cores: workerCores, Prepare: turn, Do: func() error { return t.push(ctx, ids, delta) }}
	}
	dst := make([]float32, m.Size.Bytes/4)
	return operation{
		Cores: workerCores, Prepare: func() { turn(); t.Forget() },
		Do: func() error { return t.pull(ctx, ids, dst) },
	}
}

// drawRows draws n different rows of a filled sparse table.
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

// roundWork is the work of one side in one round.
type roundWork struct {
	Ops  int
	Took time.Duration // in operations only
}

// GBPerSecond returns the rate at which values were moved.
func (s roundWork) GBPerSecond(bytes int64) float64 {
	return float64(bytes) * float64(s.Ops) / s.Took.Seconds() / 1e9
}

// Repeat repeats an operation until budget has elapsed, at least once. It appends the duration of each operation to
// laps.
func (o *operation) Repeat(ctx context.Context, budget time.Duration, laps *[]time.Duration) (s roundWork, err error) {
	o.Cores()
	for begin := time.Now(); s.Ops == 0 || time.Since(begin) < budget; {
		if ctx.Err() != nil {
			return s, ctx.Err()
		}
		if o.Prepare != nil {
			o.Prepare()
		}
		start := time.Now()
		if err := o.Do(); err != nil {
			return s, err
		}
		lap := time.Since(start)
		s.Ops++
		s.Took += lap
		*laps = append(*laps, lap)
	}
	return s, nil
}

// measureLine measures one line. Rounds of Perdure and of the raw exchange alternate, so that other load on the machine
// affects both.
func (r *movesRun) measureLine(ctx context.Context, m *measurement, t *movedTable) (res MovesResult, err error) {
	ours := t.Operation(ctx, m)
	way, err := r.bestRaw(ctx, m)
	if err != nil {
		return res, err
	}
	client, err := r.dialRaw(ctx, m, way)
	if err != nil {
		return res, err
	}
	defer func() { err = errors.Join(err, client.Close()) }()
	defer context.AfterFunc(ctx, client.Stop)()
	raw := operation{Cores: allCores, Do: client.Exchange}
	budget := r.Time / time.Duration(2*r.Rounds)
	laps, rawLaps := make([]time.Duration, 0, 1<<16), make([]time.Duration, 0, 1<<16)
	for _, o := range []*operation{&ours, &raw} { // warm up caches, connections and buffers
		if _, err := o.Repeat(ctx, budget, &laps); err != nil {
			return res, err
		}
	}
	laps = laps[:0]
	var mallocs uint64
	var pairs [][2]roundWork
	for range r.Rounds {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		p, err := ours.Repeat(ctx, budget, &laps)
		if err != nil {
			return res, err
		}
		runtime.ReadMemStats(&after)
		mallocs += after.Mallocs - before.Mallocs
		q, err := raw.Repeat(ctx, budget, &rawLaps)
		if err != nil {
			return res, err
		}
		pairs = append(pairs, [2]roundWork{p, q})
	}
	res = newMovesResult(m, pairs, laps, mallocs)
	res.RawConns = way.conns
	return res, nil
}

// rawConfig is a configuration of the raw exchange.
type rawConfig struct {
	conns         int
	chunk, buffer int64
}

// rawKey is what the best configuration depends on.
type rawKey struct {
	op, size, socket string
	conns            int
}

// rawConfigs returns the configurations to try. For few bytes one connection is faster than several; for many it
// depends on the machine. asked is the required number of connections, or 0 for the fastest.
func rawConfigs(m *measurement, asked int) (ways []rawConfig) {
	conns, chunks := []int{1}, []int64{1 << 20}
	switch {
	case asked > 0:
		conns[0] = asked
	case m.Conns > 1:
		conns = append(conns, m.Conns)
	}
	if m.Size.Bytes > 1<<20 {
		chunks = []int64{256 << 10, 1 << 20, 8 << 20}
	}
	for _, n := range conns {
		for _, chunk := range chunks {
			for _, buffer := range []int64{0, 4 << 20} {
				ways = append(ways, rawConfig{n, chunk, buffer})
			}
		}
	}
	return ways
}

// tryRaw is the minimum time for which a configuration is tried.
const tryRaw = 5 * time.Millisecond

// bestRaw returns the fastest configuration of the raw exchange. It is determined once for all rules.
func (r *movesRun) bestRaw(ctx context.Context, m *measurement) (best rawConfig, err error) {
	key := rawKey{m.Op, m.Size.Name, m.Socket, m.Conns}
	if way, ok := r.best[key]; ok {
		return way, nil
	}
	fastest := time.Duration(0)
	ways := rawConfigs(m, r.Raw)
	for _, way := range append(ways, ways...) { // twice, because other load may have slowed one attempt
		typical, err := r.typicalTime(ctx, m, way)
		if err != nil {
			return best, err
		}
		if fastest == 0 || typical < fastest {
			fastest, best = typical, way
		}
	}
	if r.best == nil {
		r.best = map[rawKey]rawConfig{}
	}
	r.best[key] = best
	return best, nil
}

// typicalTime returns the typical duration of an exchange in a configuration.
func (r *movesRun) typicalTime(ctx context.Context, m *measurement, way rawConfig) (typical time.Duration, err error) {
	client, err := r.dialRaw(ctx, m, way)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, client.Close()) }()
	defer context.AfterFunc(ctx, client.Stop)()
	raw := operation{Cores: allCores, Do: client.Exchange}
	var laps []time.Duration
	for len(laps) < 3 {
		if _, err := raw.Repeat(ctx, tryRaw, &laps); err != nil {
			return 0, err
		}
	}
	return Median(laps[1:]), nil
}

// Bytes of a header in a raw exchange, and bytes that describe rows.
const (
	rawHeaderBytes = 64
	rawRowsBytes   = 24
)

// dialRaw opens the raw exchange for a measurement.
func (r *movesRun) dialRaw(ctx context.Context, m *measurement, way rawConfig) (*rawClient, error) {
	ids := int64(8 * m.Size.rows)
	s := rawShape{Ask: rawHeaderBytes + rawRowsBytes + ids, Answer: m.Size.Bytes, Chunk: way.chunk, Buffer: way.buffer}
	if m.Op != "pull" {
		s.Ask, s.Answer = m.Size.Bytes+ids, rawHeaderBytes
	}
	return dialRaw(ctx, r.raw.Addrs[m.Socket], m.Socket == socketTLS, way.conns, s)
}
