package bench

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/dataset"
	"github.com/perdure/perdure/internal/run/localrun"
	"github.com/perdure/perdure/internal/run/rundir"
	"github.com/perdure/perdure/internal/run/settings"
	"github.com/perdure/perdure/internal/run/workload"
	"github.com/perdure/perdure/internal/run/workload/api"
	"github.com/perdure/perdure/internal/run/workload/cnn"
	"github.com/perdure/perdure/internal/run/workload/lda"
	"github.com/perdure/perdure/internal/run/workload/logreg"
	"github.com/perdure/perdure/internal/run/workload/mf"
)

// The benchmark of workloads compares whole training programs, in real processes, with the same kernel in a plain loop
// on one thread. It runs perdure train as a user would. Everything between the command line and the summary counts,
// except starting the processes.

// WorkloadsOptions are the flags of perdure bench workloads. Empty lists have defaults.
type WorkloadsOptions struct {
	Workload    []string `help:"@programs_workload" placeholder:"NAME"`
	Data        string   `help:"@programs_data (default ${default})." default:"synthetic:0.02" placeholder:"PATH"`
	Documents   string   `help:"Documents of lda (default ${default})." default:"synthetic:20000" placeholder:"PATH"`
	Workers     []int    `help:"Numbers of workers, with one server (default 1,2)." placeholder:"N"`
	Consistency string   `help:"@programs_consistency (default ${default})." default:"essp:3" placeholder:"MODEL"`
	Recovery    string   `help:"@programs_recovery (default ${default})." default:"none" placeholder:"STRATEGY"`
	Shards      int      `help:"@programs_shards (default ${default})." default:"8" placeholder:"N"`
	Rounds      int      `help:"@programs_rounds (default ${default})." default:"5" placeholder:"N"`
	// Clocks of mf, cnn, logreg, lda and quadratic. als runs a tenth of them, als-100 a hundredth, and softmax 100
	// times as many.
	Clocks int64  `help:"@programs_clocks (default ${default})." default:"200" placeholder:"N"`
	JSON   string `name:"json" help:"Also write all results to a file." placeholder:"FILE" type:"path"`

	Program string `kong:"-"` // the perdure program; "": this program
}

// WorkloadsResult is one line of the results. The rates and the ratio are medians over the rounds.
type WorkloadsResult struct {
	Workload    string  `json:"workload"`
	Data        string  `json:"data"`
	Workers     int     `json:"workers"`
	Rate        float64 `json:"rate"`
	PlainRate   float64 `json:"plain_rate"`
	Ratio       float64 `json:"ratio"`
	RatioMin    float64 `json:"ratio_min"`
	RatioMax    float64 `json:"ratio_max"`
	Unit        string  `json:"unit"`
	Consistency string  `json:"consistency"`
	Rounds      int     `json:"rounds"`
}

// contender is a prepared workload.
type contender struct {
	name, data, unit string
	workload         string // for perdure train; "": the name
	path             string // of the data, for perdure train; "": none is named
	flags            string // more of them
	clocks           int64
	perClock         float64 // samples of a clock
	perWorker        bool    // perClock is for each worker
	// plain continues training in a plain loop
	plain func(perdure.Clock) (samples int, err error)
}

// samples returns the number of samples in clocks of a job.
func (c *contender) samples(workers int) float64 {
	if !c.perWorker {
		workers = 1
	}
	return c.perClock * float64(workers) * float64(c.clocks)
}

// RunWorkloads runs the benchmark, prints each line as soon as it is measured, and writes the results.
func RunWorkloads(ctx context.Context, out io.Writer, b WorkloadsOptions) error {
	contenders, err := b.contenders()
	if err != nil {
		return err
	}
	if len(b.Workers) == 0 {
		b.Workers = []int{1, 2}
	}
	for _, n := range b.Workers { // check all before measuring
		shape := settings.Shape{
			Workers: n, Servers: 1, Shards: b.Shards, Consistency: b.Consistency,
			Recovery: b.Recovery, Clocks: b.Clocks,
		}
		if _, err := shape.Job("bench"); err != nil {
			return err
		}
	}
	if err := checkWritable(b.JSON); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "perdure-bench-")
	if err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	defer os.RemoveAll(dir) // leftovers are in the system's temporary directory
	const columns = "%-9s  %-28s  %7s  %14s  %14s  %s\n"
	fmt.Fprintf(out, columns, "workload", "data", "workers", "per second", "plain loop", "ratio (min to max)")
	results := []WorkloadsResult{}
	for _, c := range contenders {
		if _, err := c.plain(perdure.Clock(c.clocks)); err != nil { // warm up
			return err
		}
		for _, workers := range b.Workers {
			r, err := b.measure(ctx, c, workers, dir)
			if err != nil {
				return err
			}
			fmt.Fprintf(out, columns, r.Workload, r.Data, strconv.Itoa(r.Workers),
				fmt.Sprintf("%.3g %s", r.Rate, r.Unit), fmt.Sprintf("%.3g", r.PlainRate),
				fmt.Sprintf("%.2f (%.2f to %.2f)", r.Ratio, r.RatioMin, r.RatioMax))
			results = append(results, r)
		}
	}
	return writeResults(b.JSON, results)
}

// contenders prepares the chosen workloads.
func (b *WorkloadsOptions) contenders() (list []*contender, err error) {
	type known struct {
		name    string
		prepare func() (*contender, error)
	}
	chosen, err := choose("workload", b.Workload, []known{
		{mf.Name, b.mf},
		{mf.SolverALS, b.als},
		{wideALS, b.wideALS},
		{logreg.SoftmaxName, b.softmax},
		{cnn.Name, b.cnn},
		{logreg.Name, b.logreg},
		{lda.Name, b.lda},
		{workload.QuadraticName, b.quadratic},
	}, func(k known) string { return k.name })
	if err == nil {
		err = checkCounts(map[string]int64{"rounds": int64(b.Rounds), "clocks": b.Clocks})
	}
	if err != nil {
		return nil, err
	}
	for _, k := range chosen {
		c, err := k.prepare()
		if err != nil {
			return nil, err
		}
		list = append(list, c)
	}
	return list, nil
}

// mf is the workload of the ESSP paper, with clocks of whole users.
func (b *WorkloadsOptions) mf() (*contender, error) {
	data, err := dataset.OpenRatings(b.Data)
	if err != nil {
		return nil, err
	}
	o := mf.Options{Seed: 1, Slots: 1, Factors: mf.Defaults}
	o.WholeUsers = true
	rule := perdure.Rule{Kind: perdure.RuleSGD, Rate: 0.001} // the speed does not depend on it
	p, err := mf.NewPlain(data, o, func(c perdure.Clock) float32 { return rule.RateAt(c) })
	if err != nil {
		return nil, err
	}
	return &contender{
		name: mf.Name, data: filepath.Base(data.Name), unit: "ratings/s", clocks: b.Clocks,
		path:     b.Data,
		flags:    fmt.Sprintf("--whole-users --lr 0.001 --clock-fraction %v --rank %d", o.ClockFraction, o.Rank),
		perClock: float64(data.Train.Len()) * o.ClockFraction,
		plain:    func(clocks perdure.Clock) (int, error) { n, _ := p.Run(clocks); return n, nil },
	}, nil
}

// als is mf by alternating least squares. A clock processes all users or all items.
func (b *WorkloadsOptions) als() (*contender, error) {
	return b.alternating(mf.SolverALS, mf.AlternatingDefaults.Rank, max(2, b.Clocks/10))
}

// wideALS is als with rows as long as those of mf. Solving the equations is most of the work.
const wideALS = "als-100"

func (b *WorkloadsOptions) wideALS() (*contender, error) {
	return b.alternating(wideALS, 100, max(2, b.Clocks/100))
}

func (b *WorkloadsOptions) alternating(name string, rank int, clocks int64) (*contender, error) {
	data, err := dataset.OpenRatings(b.Data)
	if err != nil {
		return nil, err
	}
	o := mf.Options{Seed: 1, Factors: mf.AlternatingDefaults}
	o.Rank = rank
	p, err := mf.NewPlainAlternating(data, o)
	if err != nil {
		return nil, err
	}
	return &contender{
		name: name, workload: mf.Name, data: filepath.Base(data.Name), unit: "ratings/s", clocks: clocks,
		path: b.Data, flags: fmt.Sprintf("--solver %s --rank %d", mf.SolverALS, o.Rank),
		perClock: float64(data.Train.Len()),
		plain:    func(clocks perdure.Clock) (int, error) { n, _, err := p.Run(clocks); return n, err },
	}, nil
}

// softmax is the convex workload, with short clocks.
func (b *WorkloadsOptions) softmax() (*contender, error) {
	data, err := dataset.Embedded()
	if err != nil {
		return nil, err
	}
	const batch = logreg.SoftmaxBatch
	m, err := logreg.NewSoftmax(data, logreg.SoftmaxOptions{Seed: 1, Slots: 1, Batch: batch})
	if err != nil {
		return nil, err
	}
	rule := perdure.Rule{Kind: perdure.RuleSGD, Rate: logreg.SoftmaxRate}
	return &contender{
		name: logreg.SoftmaxName, data: data.Name, unit: "samples/s", clocks: 100 * b.Clocks,
		flags: fmt.Sprintf("--batch %d", batch), perClock: batch, perWorker: true,
		plain: func(clocks perdure.Clock) (int, error) {
			logreg.TrainPlainSoftmax(m, clocks, rule.RateAt)
			return batch * int(clocks), nil
		},
	}, nil
}

// cnn is the workload with the most compute.
func (b *WorkloadsOptions) cnn() (*contender, error) {
	data, err := dataset.Embedded()
	if err != nil {
		return nil, err
	}
	const batch = 128
	m, err := cnn.New(data, cnn.Options{Seed: 1, Slots: 1, Batch: batch})
	if err != nil {
		return nil, err
	}
	p, err := cnn.NewPlain(m, perdure.Rule{Kind: perdure.RuleSGD, Rate: cnn.DefaultRate})
	if err != nil {
		return nil, err
	}
	return &contender{
		name: cnn.Name, data: data.Name, unit: "samples/s", clocks: b.Clocks,
		flags: fmt.Sprintf("--batch %d", batch), perClock: batch, perWorker: true,
		plain: func(clocks perdure.Clock) (int, error) { p.Run(clocks); return batch * int(clocks), nil },
	}, nil
}

// logreg is the workload with sparse features, on synthetic clicks, in large batches.
func (b *WorkloadsOptions) logreg() (*contender, error) {
	const clicks, size = 20_000, 2048
	set := fmt.Sprintf("%s%d", dataset.SyntheticPrefix, clicks)
	data, err := dataset.OpenSparse(set)
	if err != nil {
		return nil, err
	}
	rule := perdure.Rule{Kind: logreg.DefaultRule, Rate: logreg.Rates[logreg.DefaultRule]}.WithDefaults()
	p, err := logreg.NewPlain(data, 1, size, rule)
	if err != nil {
		return nil, err
	}
	return &contender{
		name: logreg.Name, data: data.Name, unit: "nonzeros/s", clocks: b.Clocks,
		path: set, flags: fmt.Sprintf("--batch %d", size),
		perClock: size * float64(len(data.Train.Feature)) / float64(data.Train.Len()), perWorker: true,
		plain: func(clocks perdure.Clock) (int, error) { n, _, err := p.Run(clocks); return n, err },
	}, nil
}

// lda is the workload of counts. It gets faster with each pass, so both sides start from scratch in each round. The
// start of the plain loop, a few hundredths of a second, counts for it.
func (b *WorkloadsOptions) lda() (*contender, error) {
	data, err := dataset.OpenCorpus(b.Documents)
	if err != nil {
		return nil, err
	}
	o := lda.Options{Seed: 1, TopicModel: lda.Defaults}
	return &contender{
		name: lda.Name, data: filepath.Base(data.Name), unit: "tokens/s", clocks: b.Clocks,
		path: b.Documents, flags: fmt.Sprintf("--topics %d", o.Topics),
		perClock: float64(len(data.Train.Tokens)) * o.ClockFraction,
		plain: func(clocks perdure.Clock) (int, error) {
			p, err := lda.NewPlain(data, o)
			if err != nil {
				return 0, err
			}
			n, _ := p.Run(clocks)
			return n, nil
		},
	}, nil
}

// quadratic is the workload with almost no compute, in a dense table of 100,000 values.
func (b *WorkloadsOptions) quadratic() (*contender, error) {
	bowl := workload.DefaultQuadratic
	bowl.Rows, bowl.Dim = 1000, 100
	const rate = 0.1 // stable with stale reads; the speed does not depend on it
	p, err := workload.NewPlainQuadratic(api.Params{Seed: 1, Slots: 1, Bowl: bowl, Rule: perdure.Rule{
		Kind: perdure.RuleSGD, Rate: rate,
	}})
	if err != nil {
		return nil, err
	}
	return &contender{
		name: workload.QuadraticName, data: p.Describe().Data, unit: "values/s", clocks: b.Clocks,
		flags:    fmt.Sprintf("--rows %d --dim %d --lr %v", bowl.Rows, bowl.Dim, rate),
		perClock: float64(bowl.Rows * bowl.Dim), perWorker: true,
		plain: func(clocks perdure.Clock) (int, error) { n, _ := p.Run(int64(clocks)); return n, nil },
	}, nil
}

// measure runs the rounds of a workload.
func (b *WorkloadsOptions) measure(
	ctx context.Context, c *contender, workers int, dir string,
) (r WorkloadsResult, err error) {
	var rates, plain, ratios []float64
	for i := range b.Rounds {
		start := time.Now()
		n, err := c.plain(perdure.Clock(c.clocks))
		if err != nil {
			return r, err
		}
		plain = append(plain, float64(n)/time.Since(start).Seconds())
		out := filepath.Join(dir, fmt.Sprintf("%s-%d-%d", c.name, workers, i))
		seconds, err := b.job(ctx, c, workers, out)
		if err != nil {
			return r, err
		}
		rates = append(rates, c.samples(workers)/seconds)
		ratios = append(ratios, rates[i]/plain[i])
	}
	return WorkloadsResult{
		Workload: c.name, Data: c.data, Workers: workers, Rate: Median(rates), PlainRate: Median(plain),
		Ratio: Median(ratios), RatioMin: slices.Min(ratios), RatioMax: slices.Max(ratios), Unit: c.unit,
		Consistency: b.Consistency, Rounds: b.Rounds,
	}, nil
}

// job trains with real processes, and returns the seconds from the start of the first clock to the end of the last.
func (b *WorkloadsOptions) job(
	ctx context.Context, c *contender, workers int, out string,
) (seconds float64, err error) {
	flags := []string{
		"--workers", strconv.Itoa(workers), "--servers", "1", "--shards", strconv.Itoa(b.Shards),
		"--consistency", b.Consistency, "--recovery", b.Recovery, "--clocks", strconv.FormatInt(c.clocks, 10),
	}
	if c.path != "" {
		flags = append(flags, "--data", c.path)
	}
	return trainProgram(ctx, b.Program, cmp.Or(c.workload, c.name), out, append(flags, strings.Fields(c.flags)...)...)
}

// trainProgram runs a program as perdure train, by default this one, and returns the seconds from the start of the
// first clock to the end of the last.
func trainProgram(ctx context.Context, program, workload, out string, flags ...string) (seconds float64, err error) {
	if program == "" {
		if program, err = os.Executable(); err != nil {
			return 0, fmt.Errorf("cannot find the perdure executable: %w", err)
		}
	}
	args := append([]string{"train", workload, "--quiet", "--eval-every", "0", "--out", out}, flags...)
	cmd := exec.CommandContext(ctx, program, args...)
	var said bytes.Buffer
	cmd.Stderr = &said
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			return 0, localrun.ErrInterrupted
		}
		return 0, fmt.Errorf("bench: perdure train %s: %s", workload, lastLine(said.Bytes(), err))
	}
	text, err := os.ReadFile(filepath.Join(out, "events.jsonl"))
	if err != nil {
		return 0, fmt.Errorf("bench: %w", err)
	}
	for line := range bytes.Lines(text) {
		var e rundir.Event
		switch {
		case json.Unmarshal(line, &e) != nil || e.Kind != "complete":
		case e.Seconds <= 0: // the first and the last clock were observed at the same moment
			return 0, fmt.Errorf("bench: perdure train %s was too short to be timed; choose a larger --clocks",
				workload)
		default:
			return e.Seconds, nil
		}
	}
	return 0, errors.New("bench: the job's events do not contain its completion")
}

// lastLine returns the last line of a process's output, without its prefix.
func lastLine(said []byte, err error) string {
	said = bytes.TrimSpace(said)
	if len(said) == 0 {
		return err.Error()
	}
	said = said[bytes.LastIndexByte(said, '\n')+1:]
	return string(bytes.TrimPrefix(said, []byte("perdure: ")))
}
