package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/perdure/perdure/internal/run/dashboard"
	"github.com/perdure/perdure/internal/run/localrun"
	"github.com/perdure/perdure/internal/run/rundir"
	"github.com/perdure/perdure/internal/run/settings"
	"github.com/perdure/perdure/internal/run/terminal"
)

type demoCmd struct {
	Out  string        `help:"@demo_out" placeholder:"DIR" type:"path"`
	Live dashboardFlag `name:"dashboard" help:"@demo_dashboard" placeholder:"HOST:PORT"`
	Seed uint64        `help:"@demo_seed (default ${default})." default:"7" placeholder:"N"`
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
	if d.Live != "" {
		return d.lecture(ctx)
	}
	fmt.Fprintln(stdout, `Perdure trains one model twice on this machine, in real processes:
4 workers, 3 parameter servers and a coordinator; 10,000 images of clothing.
Run 1 is undisturbed. In run 2, processes are killed with SIGKILL while it trains.`)
	fmt.Fprintln(stdout)
	calm, err := d.train(ctx, calmRun, nil, localrun.LiveView{})
	if err != nil {
		return err
	}
	storm, err := d.train(ctx, stormRun, demoFaults, localrun.LiveView{})
	if err != nil {
		return err
	}
	return compare(d.Out, calm, storm)
}

// Names of the two runs.
const (
	calmRun  = "undisturbed"
	stormRun = "disturbed"
)

// lectureMs is how long a clock of the lecture takes, so that its clocks take most of a minute.
const lectureMs = 170

// train runs one of the two trainings. With a dashboard, it is slow enough to watch.
func (d *demoCmd) train(
	ctx context.Context, name string, faults []string, live localrun.LiveView,
) (rundir.Summary, error) {
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
	if live.Listen != "" {
		s.ComputeMs = lectureMs
	}
	sum, err := runJob(ctx, localrun.Options{
		Settings: s, Folder: filepath.Join(d.Out, name), View: terminal.New(stdout), Live: live,
	})
	fmt.Fprintln(stdout)
	return sum, err
}

// captions are the sentences of the lecture, each from a clock on. They precede the faults in demoFaults.
var captions = []dashboard.Caption{
	{Clock: 0, Text: "Four workers train one model together. Three servers hold it, each a third. The " +
		"coordinator only assigns the work. In each clock, a worker reads the model, computes on " +
		"its images, and sends an update. Clocks are slowed down to a fifth of a second, so that you can watch."},
	{Clock: 25, Text: "All workers wait for each other after each clock (bsp). The loss is that of one worker on a " +
		"few images, so it is noisy. Every 20 clocks the servers write a checkpoint; workers keep newer updates " +
		"until then."},
	{Clock: 50, Text: "In a moment server:0 is killed. A third of the model is in its memory only. Watch its " +
		"lane."},
	{Clock: 62, Text: "A new server:0 loaded the last checkpoint, and the workers sent their newer updates again." +
		" The death of a server loses no update, and no clock is redone because of it."},
	{Clock: 82, Text: "Next, worker:2 is killed during a clock."},
	{Clock: 92, Text: "Another process took the place of worker:2. It redid the clock that was cut off, from the " +
		"same images. Under bsp the others waited for it: clocks per second fell, the loss did not " +
		"change."},
	{Clock: 112, Text: "Now server:1 is killed, and its place stays empty for half a second."},
	{Clock: 122, Text: "Reads of its rows waited. The longer a server is away, the longer the job stands; it does " +
		"not return to an earlier clock."},
	{Clock: 162, Text: "Next, the coordinator itself is killed."},
	{Clock: 172, Text: "Training did not stop: workers and servers do not need the coordinator. Its successor read" +
		" the job record from disk."},
	{Clock: 190, Text: "Your turn: press Kill or Freeze in any lane. A frozen process sends no heartbeat, so it is" +
		" suspected, killed and replaced: the coordinator after 10 s, others after about a second."},
	{Clock: 285, Text: "The model at the end is the same, to the last bit, as without any failure, unless the number " +
		"of workers has changed. The command trains it undisturbed as well, and prints a comparison. Move the " +
		"slider to see the run again."},
}

// lecture runs the disturbed training with a dashboard, so that users can watch and disturb it, and compares it with
// the undisturbed one.
func (d *demoCmd) lecture(ctx context.Context) error {
	fmt.Fprintln(stdout, `Perdure trains one model on this machine, in real processes: 4 workers, 3 parameter
servers and a coordinator. Open the link in a browser; the lecture takes a minute.`)
	fmt.Fprintln(stdout)
	storm, err := d.train(ctx, stormRun, demoFaults, localrun.LiveView{
		Listen: string(d.Live), Captions: captions, ShowLink: printDashboard,
	})
	if err != nil {
		return err
	}
	calm, err := d.train(ctx, calmRun, nil, localrun.LiveView{})
	if err != nil {
		return err
	}
	fmt.Fprintf(stdout, "Open the lecture again: perdure dashboard %s\n\n", filepath.Join(d.Out, stormRun))
	events, err := rundir.Events(filepath.Join(d.Out, stormRun))
	if err != nil {
		return err
	}
	if slices.ContainsFunc(events, func(e rundir.Event) bool { return e.Kind == "scaled" }) {
		terminal.PrintComparison(stdout, &calm, &storm)
		fmt.Fprintln(stdout, "\nYou changed the number of workers, so the two models differ.")
		return nil
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
