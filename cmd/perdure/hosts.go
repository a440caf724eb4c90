package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/disk"
	"github.com/perdure/perdure/internal/run/document"
	"github.com/perdure/perdure/internal/run/host"
	"github.com/perdure/perdure/internal/run/jobs"
	"github.com/perdure/perdure/internal/run/plain"
	"github.com/perdure/perdure/internal/run/role"
	"github.com/perdure/perdure/internal/run/service"
	"github.com/perdure/perdure/internal/run/settings"
)

// coordinatorCmd is a job's coordinator: by itself, or as train and up start it, with --run.
type coordinatorCmd struct {
	Folder    string `name:"run" hidden:"" help:"The run's folder." type:"path"`
	Job       string `help:"@coordinator_job" placeholder:"JOB.yaml" type:"path"`
	Name      string `help:"@coordinator_name" placeholder:"NAME"`
	Dir       string `help:"@coordinator_dir" placeholder:"DIR" type:"path"`
	Listen    string `help:"@coordinator_listen" default:"127.0.0.1:7000" placeholder:"HOST:PORT"`
	Advertise string `help:"@coordinator_advertise" placeholder:"HOST[:PORT]"`
	Keys      string `env:"PERDURE_KEYS" help:"@keys" placeholder:"DIR" type:"path"`
	Insecure  bool   `help:"@coordinator_insecure"`
	Registry  string `help:"@coordinator_registry" placeholder:"URL"`
	Control   string `help:"@coordinator_control" default:"127.0.0.1:0" placeholder:"HOST:PORT"`
	roleFlags
}

func (c *coordinatorCmd) Run(ctx context.Context) error {
	if c.Folder != "" {
		return (&role.Coordinator{Folder: c.Folder, Keys: c.Keys, Log: c.log(), Watch: c.watched()}).Run(ctx)
	}
	if c.Job != "" && c.Name != "" {
		return fmt.Errorf("%w: --job %s and --name %s: a job is in a file, or in a registry of many; leave one of "+
			"them out", perdure.ErrUsage, c.Job, c.Name)
	}
	if c.Job == "" && c.Name == "" || c.Dir == "" {
		return fmt.Errorf("%w: a coordinator needs --job JOB.yaml, the file with its job (perdure init writes one), "+
			"or --registry URL --name NAME, a job that perdure job create has recorded, and --dir DIR, where it keeps "+
			"what the job has", perdure.ErrUsage)
	}
	co := &service.Coordinator{
		Dir: c.Dir, Registry: c.Registry, Advertise: c.Advertise, Control: c.Control, Log: c.log(), Watch: c.watched(),
		Reach: settings.Reach{Listen: c.Listen, Keys: absolute(c.Keys), Insecure: c.Insecure},
	}
	if c.Name != "" {
		return c.ended(ctx, c.runNamed(ctx, co))
	}
	var err error
	if co.Job, err = readJob(ctx, c.Job); err != nil {
		return err
	}
	return c.ended(ctx, co.Run(ctx))
}

// runNamed runs the coordinator of a job in a registry of many.
func (c *coordinatorCmd) runNamed(ctx context.Context, co *service.Coordinator) error {
	in, err := jobs.Open(ctx, cmp.Or(c.Registry, os.Getenv(jobs.Variable)))
	if err != nil {
		return err
	}
	defer in.Close() // it was read, mostly; whoever leads writes by another client
	j, err := in.Await(ctx, c.Name, func(err error) {
		co.Log.Info("the coordinator waits for its registry", "why", err)
	})
	if err != nil {
		if ctx.Err() != nil {
			err = nil
		}
		return err
	}
	if co.Job, err = jobOf(ctx, j.Name, []byte(j.Text)); err != nil {
		return err
	}
	co.Registry, co.Place = "", &service.Place{Registry: in, Job: j}
	return co.Run(ctx)
}

// notOfHosts are keys of a job's file that say what is said on each host.
var notOfHosts = []string{"listen", "keys", "insecure", "out", "metrics", "log-format", "exec"}

// readJob reads the job of a coordinator: the file of a train -f, or, where its workload is own, of an up -f.
func readJob(ctx context.Context, name string) (job service.Job, err error) {
	text, err := disk.ReadRegular(name, document.MaxBytes)
	if err != nil {
		return job, fmt.Errorf("%w: %s cannot be read: %w", perdure.ErrUsage, name, plain.Cause(err))
	}
	return jobOf(ctx, name, text)
}

// jobOf reads the job in a text, which messages call by a name.
func jobOf(ctx context.Context, name string, text []byte) (job service.Job, err error) {
	job = service.Job{Name: name, Text: text}
	doc, err := document.Parse(name, text)
	if err != nil {
		return job, err
	}
	entries, err := doc.Map()
	if err != nil {
		return job, err
	}
	command := "train"
	for i, e := range slices.Backward(entries) {
		if slices.Contains(notOfHosts, e.Key) {
			return job, e.Value.Errorf("%s is said on the command lines of perdure coordinator and perdure host; "+
				"leave it out", e.Key)
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
		return job, fmt.Errorf("%w: %s: %w", perdure.ErrUsage, name, err)
	}
	job.Blame = f.blame
	if command == "up" {
		job.Asked = c.Up.asked(settings.OwnWorkload, given(k))
		return job, nil
	}
	job.Asked = c.Train.asked(workloadOf(k), given(k))
	if job.Workload == "" {
		job.Workload = settings.DefaultWorkload
	}
	return job, nil
}

// hostCmd keeps the servers and workers of a machine alive.
type hostCmd struct {
	Join     string `help:"@host_join" placeholder:"HOST:PORT,…"`
	Registry string `help:"@host_registry" placeholder:"URL"`
	Job      string `help:"@host_job" placeholder:"NAME"`
	secretFlag
	Servers   int    `help:"@host_servers (default ${default})." default:"1" placeholder:"N"`
	Workers   int    `help:"@host_workers (default ${default})." default:"0" placeholder:"N"`
	Dir       string `help:"@host_dir (default ${default})." default:"perdure-host" placeholder:"DIR" type:"path"`
	Listen    string `help:"@host_listen" placeholder:"HOST[:PORT]"`
	Advertise string `help:"@host_advertise" placeholder:"HOST[:PORT]"`
	Zone      string `help:"@host_zone" placeholder:"NAME"`
	Name      string `help:"@host_name" placeholder:"NAME"`

	Notice        time.Duration `help:"@host_notice" placeholder:"TIME"`
	NoticeCommand string        `help:"@host_notice_command" placeholder:"COMMAND"`

	Logs string `help:"@host_logs (default ${default})." default:"files" enum:"files,output" placeholder:"WHERE"`
	roleFlags
	Command []string `arg:"" optional:"" help:"@host_command"`
}

func (c *hostCmd) Run(ctx context.Context) error {
	program, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	atOnce, cancel := untilToldTwice(ctx)
	defer cancel()
	name := c.Name
	if name == "" {
		name = machineName()
	}
	var output *os.File
	if c.Logs == "output" {
		output = stdout.File
	}
	h := &host.Host{
		Join: c.Join, SecretFile: c.SecretFile, KeysDir: absolute(c.Keys), Servers: c.Servers, Workers: c.Workers,
		Dir: c.Dir, Listen: c.Listen, Zone: c.Zone, Output: output,
		Advertise: c.Advertise, Command: c.Command, Program: program, Watch: c.watched(), LogFormat: c.LogFormat,
		Log: c.log(), Called: name, Notice: host.Notice{For: c.Notice, Command: c.NoticeCommand},
	}
	if c.Job == "" && c.Registry != "" {
		return fmt.Errorf("%w: --registry %s has many jobs; say which one with --job NAME (--name is what this host "+
			"is called)", perdure.ErrUsage, c.Registry)
	}
	if c.Job != "" {
		in, err := jobs.Open(ctx, cmp.Or(c.Registry, os.Getenv(jobs.Variable)))
		if err != nil {
			return err
		}
		defer in.Close() // it was only read
		h.Of = &host.Named{Registry: in, Name: c.Job}
	}
	if err := h.Run(ctx, atOnce); err != nil || !h.Taken() {
		return c.ended(ctx, err)
	}
	return toldError{int(c.SignalCode)} // by the command, which is as a signal
}

// machineName is what this machine calls itself, as a host's name.
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
