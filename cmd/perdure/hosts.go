package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/disk"
	"github.com/perdure/perdure/internal/run/host"
	"github.com/perdure/perdure/internal/run/humanize"
	"github.com/perdure/perdure/internal/run/role"
	"github.com/perdure/perdure/internal/run/settings"
)

// coordinatorCmd runs a job's coordinator: on its own, or with --run as a child of train or up.
type coordinatorCmd struct {
	Folder    string        `name:"run" hidden:"" help:"The run's directory." type:"path"`
	Starts    bool          `name:"starts-workers" hidden:"" help:"The run's parent starts its workers."`
	Job       string        `help:"@coordinator_job" placeholder:"JOB.yaml" type:"path"`
	Dir       string        `help:"@coordinator_dir" placeholder:"DIR" type:"path"`
	Listen    string        `help:"@coordinator_listen" default:"127.0.0.1:7000" placeholder:"HOST:PORT"`
	Advertise string        `help:"@coordinator_advertise" placeholder:"HOST[:PORT]"`
	Keys      string        `env:"PERDURE_KEYS" help:"@keys" placeholder:"DIR" type:"path"`
	Insecure  bool          `help:"@coordinator_insecure"`
	Registry  string        `help:"@coordinator_registry" placeholder:"URL"`
	Control   string        `help:"@coordinator_control" default:"127.0.0.1:0" placeholder:"HOST:PORT"`
	Dashboard dashboardFlag `help:"@coordinator_dashboard" placeholder:"HOST:PORT"`
	roleFlags
}

func (c *coordinatorCmd) Run(ctx context.Context) error {
	if c.Folder != "" {
		return (&role.Coordinator{
			Folder: c.Folder, StartsWorkers: c.Starts, Keys: c.Keys, Log: c.log(), Watch: c.observability(),
		}).Run(ctx)
	}
	if c.Job == "" || c.Dir == "" {
		return perdure.Usagef("a coordinator needs --job JOB.yaml, the job file (perdure init writes one), and --dir " +
			"DIR, the directory for the job's state")
	}
	job, err := readJob(ctx, c.Job)
	if err != nil {
		return err
	}
	co := &host.Coordinator{
		Job: job, Dir: c.Dir, Registry: c.Registry, Advertise: c.Advertise, Control: c.Control, Log: c.log(),
		Watch: c.observability(), Dashboard: string(c.Dashboard),
		Reach: settings.Reach{Listen: c.Listen, Keys: absolute(c.Keys), Insecure: c.Insecure},
	}
	return c.withExitCode(ctx, co.Run(ctx))
}

// excludedForHosts are keys of a job file that are given on the command lines of the coordinator and the hosts instead.
var excludedForHosts = []string{"listen", "keys", "insecure", "out", "metrics", "log-format", "exec"}

// readJob reads the job file of a coordinator: one of train -f or, if its workload is own, one of up -f.
func readJob(ctx context.Context, name string) (job host.Job, err error) {
	text, err := disk.ReadRegular(name, settings.MaxDocumentBytes)
	if err != nil {
		return job, perdure.Usagef("cannot read %s: %w", name, humanize.Cause(err))
	}
	job = host.Job{Name: name, Text: text}
	doc, err := settings.ParseDocument(name, text)
	if err != nil {
		return job, err
	}
	entries, err := doc.Map()
	if err != nil {
		return job, err
	}
	command := "train"
	for i, e := range slices.Backward(entries) {
		if slices.Contains(excludedForHosts, e.Key) {
			return job, e.Value.Errorf("%s belongs on the command line of perdure coordinator or perdure host; remove "+
				"it from the file", e.Key)
		}
		if text, err := e.Value.Text(); e.Key == workloadKey && err == nil && text == settings.OwnWorkload {
			command, entries = "up", slices.Delete(entries, i, i+1)
		}
	}
	var c cli
	parser := newParser(ctx, &c)
	parser.Stdout, parser.Stderr = io.Discard, io.Discard
	f := &jobFile{command: command, args: []string{command}, entries: entries, model: parser.Model}
	f.line = scan(commandOf(parser.Model.Node, command), f.args)
	args, err := f.commandLine("")
	if err != nil {
		return job, err
	}
	k, err := parser.Parse(args)
	if err != nil {
		return job, perdure.Usagef("%s: %w", name, err)
	}
	job.Blame = f.blame
	if command == "up" {
		job.Flags = c.Up.request(settings.OwnWorkload, given(k))
		return job, nil
	}
	job.Flags = c.Train.request(workloadOf(k), given(k))
	if job.Workload == "" {
		job.Workload = settings.DefaultWorkload
	}
	return job, nil
}

// hostCmd keeps the servers and workers of a machine running.
type hostCmd struct {
	Host host.Host `embed:""`
	Logs string    `help:"@host_logs (default ${default})." default:"files" enum:"files,output" placeholder:"WHERE"`
	roleFlags
}

func (c *hostCmd) Run(ctx context.Context) (err error) {
	h := &c.Host
	if h.Program, err = os.Executable(); err != nil {
		return fmt.Errorf("cannot find the perdure executable: %w", err)
	}
	atOnce, cancel := untilSecondSignal(ctx)
	defer cancel()
	if h.Called == "" {
		h.Called = machineName()
	}
	if c.Logs == "output" {
		h.Output = stdout.File
	}
	h.KeysDir = absolute(h.KeysDir)
	h.Log, h.LogFormat, h.Watch = c.log(), c.LogFormat, c.observability()
	if err := h.Run(ctx, atOnce); err != nil || !h.Preempted() {
		return c.withExitCode(ctx, err)
	}
	return signalError{int(c.SignalCode)} // --notice-command ended the host, which counts as a signal
}

// machineName returns this machine's host name with invalid characters replaced, as the default name of a host.
func machineName() string {
	name, err := os.Hostname()
	if err != nil || name == "" {
		return "host"
	}
	return strings.Map(func(r rune) rune {
		if strings.ContainsRune("._-", r) || '0' <= r && r <= '9' || 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' {
			return r
		}
		return '-'
	}, name)
}
