package bench

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

// MovesResult is one line of the results. GB are 10⁹ bytes of values, MRows 10⁶ rows. Speeds and the ratio are medians
// over the rounds, latencies are over all operations.
type MovesResult struct {
	Op     string `json:"op"`
	Rule   string `json:"rule"` // "" for a pull
	Size   string `json:"size"`
	Bytes  int64  `json:"bytes"` // of values, in one operation
	Rows   int    `json:"rows"`  // of a sparse table; 0: all of a dense one
	Conns  int    `json:"conns"`
	Shards int    `json:"shards"`
	Socket string `json:"socket"`

	PerdureGBPerS float64 `json:"perdure_gb_per_s"`
	RawGBPerS     float64 `json:"raw_gb_per_s"`
	RawConns      int     `json:"raw_conns"` // of the raw exchange
	Ratio         float64 `json:"ratio"`     // Perdure's speed divided by the raw exchange's, in the same round
	RatioMin      float64 `json:"ratio_min"`
	RatioMax      float64 `json:"ratio_max"`

	P50Us       float64 `json:"p50_us"`
	P99Us       float64 `json:"p99_us"`
	AllocsPerOp float64 `json:"allocs_per_op"` // in this process
	MRowsPerS   float64 `json:"m_rows_per_s"`  // 0 for a dense table
	Rounds      int     `json:"rounds"`
	Ops         int     `json:"ops"` // of Perdure, in all rounds
}

// newMovesResult computes a line from the rounds of Perdure and of the raw exchange, and from the durations of
// Perdure's operations.
func newMovesResult(m *measurement, pairs [][2]roundWork, laps []time.Duration, mallocs uint64) MovesResult {
	var ours, raw, ratios []float64
	for _, p := range pairs {
		a, b := p[0].GBPerSecond(m.Size.Bytes), p[1].GBPerSecond(m.Size.Bytes)
		ours, raw, ratios = append(ours, a), append(raw, b), append(ratios, a/b)
	}
	laps = slices.Sorted(slices.Values(laps))
	us := func(part float64) float64 {
		return float64(laps[int(part*float64(len(laps)-1)+0.5)].Nanoseconds()) / 1e3
	}
	res := MovesResult{
		Op: m.Op, Rule: string(m.Rule), Size: m.Size.Name, Bytes: m.Size.Bytes, Rows: m.Size.rows, Conns: m.Conns,
		Shards: m.Shards, Socket: m.Socket,
		PerdureGBPerS: Median(ours), RawGBPerS: Median(raw),
		Ratio: Median(ratios), RatioMin: slices.Min(ratios), RatioMax: slices.Max(ratios),
		P50Us: us(0.5), P99Us: us(0.99), AllocsPerOp: float64(mallocs) / float64(len(laps)), Rounds: len(pairs),
		Ops: len(laps),
	}
	if m.Size.rows > 0 {
		res.MRowsPerS = res.PerdureGBPerS * 1e9 / float64(m.Size.Bytes) * float64(m.Size.rows) / 1e6
	}
	return res
}

const movesColumns = "%-4s  %-4s  %-10s  %5s  %-6s  %12s  %8s  %-18s  %10s  %10s  %10s  %s"

// Line formats the result.
func (r *MovesResult) Line() string {
	rows := ""
	if r.Rows > 0 {
		rows = fmt.Sprintf("%8.3f", r.MRowsPerS)
	}
	return strings.TrimRight(fmt.Sprintf(movesColumns, r.Op, cmp.Or(r.Rule, "-"), r.Size, fmt.Sprint(r.Conns), r.Socket,
		fmt.Sprintf("%.3f", r.PerdureGBPerS), fmt.Sprintf("%.3f", r.RawGBPerS),
		fmt.Sprintf("%.2f (%.2f to %.2f)", r.Ratio, r.RatioMin, r.RatioMax),
		fmt.Sprintf("%.1f", r.P50Us), fmt.Sprintf("%.1f", r.P99Us), fmt.Sprintf("%.1f", r.AllocsPerOp), rows), " ")
}

// header describes the measurement, the machine, and what is skipped.
func (b *MovesOptions) header(skipped []string) string {
	var s strings.Builder
	fmt.Fprintln(&s, machineLine(b.Version))
	shards := fmt.Sprint(b.Shards)
	if b.Shards == 0 {
		shards = fmt.Sprintf("1 shard for small blocks, %d for large ones, as many as CPUs for rows, at least as "+
			"many as connections", largeShards)
	} else {
		shards += " shards"
	}
	over := ""
	if b.Raw > 0 {
		over = fmt.Sprintf(", with --raw-conns %d", b.Raw)
	}
	fmt.Fprintf(&s, "one server process, %s, asp, recovery none; each line: %d rounds in %v, alternately of Perdure "+
		"and of a raw exchange of the same bytes%s\n",
		shards, b.Rounds, b.Time, over)
	for _, lack := range skipped {
		fmt.Fprintf(&s, "skipped, not supported by this build: %s\n", lack)
	}
	fmt.Fprintf(&s, "\n"+movesColumns+"\n", "op", "rule", "size", "conns", "socket", "Perdure GB/s", "raw GB/s",
		"ratio (spread)", "p50 µs", "p99 µs", "allocs/op", "M rows/s")
	return s.String()
}
