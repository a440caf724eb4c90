package failurecost

import (
	"context"
	"io"
	"os"
	"runtime"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/run/settings"
)

// Flags is the request of a user: the flags of perdure study losses and, in Args, those of perdure train. Empty fields
// have defaults.
type Flags struct {
	Recovery []string `help:"@losses_recovery" sep:"none" placeholder:"STRATEGY"`
	Lost     []string `help:"@losses_lost (default 1/2)." sep:"none" placeholder:"PART"`
	Options
	Perturb []string `help:"@losses_perturb" sep:"none" placeholder:"HOW"`
	Repeat  int      `help:"@losses_repeat" placeholder:"N"`
	Args    []string `arg:"" optional:"" name:"train" passthrough:"" help:"@losses_train"`

	Run     settings.Run `kong:"-"` // the settings of the twins, parsed from Args
	Version string       `kong:"-"`
}

// Options are the settings of a plan that need no parsing.
type Options struct {
	// LoseServers or LoseShards
	Lose string `help:"@losses_lose (default ${default})." default:"servers" placeholder:"servers|shards"`
	// undisturbed runs, with successive seeds
	Twins int `help:"@losses_twins (default ${default})." default:"4" placeholder:"N"`
	// forks of each twin
	Trials int `help:"@losses_trials (default ${default})." default:"5" placeholder:"N"`
	// in each fork
	Failures int `help:"@losses_failures (default ${default})." default:"1" placeholder:"N"`
	// mean clock of a failure; the distribution is geometric
	MeanClocks float64 `help:"@losses_mean" placeholder:"X"`
	// one of the measures of a model; "" for the workload's default
	Measure string `help:"@losses_measure" placeholder:"train|test|distance"`
	// clocks over which the measure is averaged
	Smooth int `help:"@losses_smooth (default ${default})." default:"1" placeholder:"N"`
	// StrikeBetween or StrikeWithin
	Strike string `help:"@losses_strike (default ${default})." default:"between" placeholder:"between|amid"`
	// SavedWhole or SavedHalf
	SavedAs string `help:"@losses_saved_as (default ${default})." default:"float32" placeholder:"float32|bfloat16"`
	// number of test examples to evaluate on, if the workload supports it
	Sample int `help:"@losses_sample (default ${default})." default:"1000" placeholder:"N"`
	// trials at a time
	Parallel int `help:"Trials at a time (default: one for each core)." placeholder:"N"`
}

// defaultStrategies lists the strategies that are tried by default. The others are compared with the first.
var defaultStrategies = []string{
	"checkpoint:16", "scar:16,1", "scar:16,1/8,priority", "scar:16,1/8,round", "scar:16,1/8,random",
}

// Plan converts the request to a plan and checks it.
func (a *Flags) Plan() (*Plan, error) {
	p := &Plan{Options: a.Options, Run: a.Run}
	if p.MeanClocks == 0 {
		p.MeanClocks = max(1, float64(a.Run.Job.Clocks)/3)
	}
	if a.Parallel < 0 || a.Repeat < 0 {
		return p, perdure.Usagef("invalid --parallel %d or --repeat %d; choose 0 or more", a.Parallel, a.Repeat)
	}
	if p.Parallel < 1 {
		p.Parallel = runtime.NumCPU()
	}
	strategies, lost := a.Recovery, a.Lost
	if len(strategies) == 0 {
		strategies = defaultStrategies
	}
	if len(lost) == 0 {
		lost = []string{"1/2"}
	}
	for _, text := range strategies {
		r, err := perdure.ParseRecovery(text)
		if err != nil {
			return nil, err
		}
		p.Arms = append(p.Arms, armOf(r))
	}
	for _, text := range a.Perturb {
		arm, err := parsePerturbation(text)
		if err != nil {
			return nil, err
		}
		p.Arms = append(p.Arms, arm)
	}
	for _, text := range lost {
		part, err := parsePart("--lost", text)
		if err != nil {
			return nil, err
		}
		p.Lost = append(p.Lost, part)
	}
	return p, p.Check()
}

// Execute runs the study.
func (a *Flags) Execute(ctx context.Context, screen io.Writer) (*Result, error) {
	p, err := a.Plan()
	if err != nil {
		return nil, err
	}
	if a.Repeat > 0 && p.Run.Job.Consistency.Kind != perdure.BSP {
		return nil, perdure.Usagef("--repeat does not work with --consistency %s: models are reproducible only under "+
			"bsp", p.Run.Job.Consistency)
	}
	r, err := p.Execute(ctx, screen)
	if err != nil || a.Repeat < 1 {
		r.setOrigin(a)
		return r, err
	}
	r.setOrigin(a)
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "perdure-losses-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir) // leftovers are in the system's temporary directory
	return r, p.Repeat(ctx, r, &RealRuns{Program: program, Args: a.Args, Folder: dir, Count: a.Repeat}, screen)
}

// setOrigin records the version and the arguments that produced the result.
func (r *Result) setOrigin(a *Flags) {
	if r != nil {
		r.Version, r.Args = a.Version, a.Args
	}
}
