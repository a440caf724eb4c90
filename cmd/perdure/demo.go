package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/perdure/perdure/internal/run/localrun"
	"github.com/perdure/perdure/internal/run/rundir"
	"github.com/perdure/perdure/internal/run/settings"
	"github.com/perdure/perdure/internal/run/terminal"
)

type demoCmd struct {
	Out  string `help:"@demo_out" placeholder:"DIR" type:"path"`
	Seed uint64 `help:"@demo_seed (default ${default})." default:"7" placeholder:"N"`
}

// demoFaults kills servers, a worker and the coordinator.
var demoFaults = []string{
	"kill:server:0@clock:60", "kill:worker:2@clock:90", "kill:server:1@clock:120+500ms", "kill:coordinator@clock:170",
	"kill:server:2@clock:230",
}

func (d *demoCmd) Run(ctx context.Context) error {
	if d.Out == "" {
		dir, err := os.MkdirTemp("", "perdure-demo-")
		if err != nil {
			return fmt.Errorf("demo: %w", err)
		}
		d.Out = dir
	}
	fmt.Fprintln(stdout, `Perdure trains one model twice on this machine, in real processes:
4 workers, 3 parameter servers and a coordinator; 10,000 images of clothing.
Run 1 is undisturbed. In run 2, processes are killed with SIGKILL while it trains.`)
	fmt.Fprintln(stdout)
	one := func(name string, faults []string) (rundir.Summary, error) {
		fmt.Fprintln(stdout, "──", name)
		a := settings.Flags{
			Version:  version,
			Workload: settings.DefaultWorkload,
			Shape: settings.Shape{
				Workers: 4, Servers: 3, Shards: 12, Consistency: "bsp", Recovery: "resend:20", Clocks: 300,
				Seed: d.Seed,
			},
			Work:   settings.WorkloadFlags{EvalEvery: "50"},
			Faults: faults,
			Reach:  settings.Reach{Listen: localrun.AnyPort},
		}
		s, err := a.New()
		if err != nil {
			return rundir.Summary{}, err
		}
		sum, err := runJob(ctx, s, filepath.Join(d.Out, name), terminal.New(stdout), localrun.Observability{})
		fmt.Fprintln(stdout)
		return sum, err
	}
	calm, err := one("undisturbed", nil)
	if err != nil {
		return err
	}
	storm, err := one("disturbed", demoFaults)
	if err != nil {
		return err
	}
	return compare(d.Out, calm, storm)
}

// compare prints the two runs side by side. It returns an error if their models differ.
func compare(dir string, calm, storm rundir.Summary) error {
	terminal.PrintComparison(stdout, &calm, &storm)
	if *calm.ModelSHA256 != *storm.ModelSHA256 {
		return fmt.Errorf("the two models differ, which is a bug; please report it and attach the directory %s", dir)
	}
	fmt.Fprintln(stdout, `
The two models are identical to the last bit. In other systems, a killed
parameter server stops the job, or silently loses updates. Here it costs
only time.`)
	return nil
}
