package host

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/recovery"
	"github.com/perdure/perdure/internal/data/disk"
	"github.com/perdure/perdure/internal/data/registry"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/httpdebug"
	"github.com/perdure/perdure/internal/proc/keys"
	"github.com/perdure/perdure/internal/proc/supervisor"
	"github.com/perdure/perdure/internal/proc/transport"
	"github.com/perdure/perdure/internal/run/localrun"
	"github.com/perdure/perdure/internal/run/metrics"
	"github.com/perdure/perdure/internal/run/plain"
	"github.com/perdure/perdure/internal/run/reach"
	"github.com/perdure/perdure/internal/run/role"
	"github.com/perdure/perdure/internal/run/rundir"
	"github.com/perdure/perdure/internal/run/settings"
)

// The coordinator of a job of many hosts is a process that a person, systemd or Kubernetes starts. Its
// directory has everything of the job: the first start makes it, and each later one continues the same job.
// It listens, coordinates, and attends to the job as the parent of a job on one machine does: it records,
// exports the model, and tells all processes when the job is over. A signal ends the process, not the job.
//
//	err := (&host.Coordinator{Job: job, Dir: dir, Listen: "10.0.0.5:7000", Log: log}).Run(ctx)
//
// A Coordinator runs once.

// Coordinator is a coordinator that nobody else has started.
type Coordinator struct {
	Job       Job
	Dir       string         // the job's folder, of this job alone
	Reach     settings.Reach // where processes of the job connect, and what they show
	Advertise string         // what they are told; "": that
	Control   string         // where the control API listens
	Registry  string         // see store.OpenLocation; "": the folder's own
	Log       *slog.Logger
	Watch     role.Watched

	eye    *httpdebug.Eye // what it is seen by, also while it stands by; nil: nobody can watch it
	listed bool           // Prometheus was told where that is
	shared bool           // other coordinators may share the registry
}

// Job is the job that somebody asks for.
type Job struct {
	Name string // of the file that it stands in
	Text []byte // of that file
	*settings.Asked
	Blame func(error) error // adds the place in the file to an error; nil: nothing
}

// settings are those of the job that is asked for.
func (j *Job) settings() (s settings.Run, err error) {
	if s, err = j.New(); err != nil && j.Blame != nil {
		err = j.Blame(err)
	}
	return s, err
}

// Check makes the settings of the job, and refuses what no job of many hosts can have.
func (j *Job) Check() (s settings.Run, err error) {
	if s, err = j.settings(); err == nil {
		err = localrun.Spread(&s)
	}
	return s, err
}

// askedFile is a copy of the text that a job was asked for with: where the same is asked for again, nothing
// needs to be compared.
const askedFile = "job.yaml"

// linger is how long the coordinator stays when the job is over, for those who are just being started again.
const linger = 3 * time.Second

// Run coordinates until the job is over, or ctx ends: then it leaves the job as it is. One that shares its registry,
// and has lost the lease, stands by again.
func (c *Coordinator) Run(ctx context.Context) (err error) {
	httpdebug.Name(c.Log, "", string(wire.RoleCoordinator), 0)
	if c.eye, err = c.Watch.Open(ctx, c.Log); err != nil {
		return err
	}
	defer c.eye.Close()
	defer c.hideTarget()
	for {
		err := c.lead(ctx)
		lost := errors.Is(err, perdure.ErrFenced) || errors.Is(err, registry.ErrAway) // or not to be had
		if !c.shared || !lost || ctx.Err() != nil {
			return err
		}
		c.Log.Warn("the coordinator leads no more", "err", err)
	}
}

// lead coordinates, once it may.
func (c *Coordinator) lead(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	c.eye.Show(nil) // it begins anew
	ring, err := reach.Ring(ctx, c.Reach.Keys, wire.RoleCoordinator, c.Log)
	if err != nil {
		return err
	}
	if c.shared, err = c.shares(ring); err != nil {
		return err
	}
	open, err := c.listen(ring)
	if err != nil {
		return err
	}
	s, err := c.settle(ctx)
	if err == nil {
		var kept *reach.Secrets
		if kept, err = reach.KeptSecrets(c.Dir); err == nil {
			open.Keys, err = kept.Keys, kept.Close()
		}
	}
	if err == nil {
		err = c.showTarget(s.Job.ID, open.Addr)
	}
	if err != nil {
		return errors.Join(err, open.Frames.Close(), open.Web.Close())
	}
	httpdebug.Name(c.Log, s.Job.ID, string(wire.RoleCoordinator), 0)
	switch {
	case c.shared:
		if open, err = c.standBy(ctx, open, s.Job.ID); err != nil || open == nil {
			return err
		}
	case c.Registry == "":
		open.Registry = role.RegistryOf(c.Dir)
	default:
		open.Registry = c.Registry
	}
	open.Eye = c.eye
	err = c.attend(ctx, open, &s)
	_, _ = open.Frames.Close(), open.Web.Close() // most of the time they are
	return err
}

// guard refuses services of the job that are reached without encryption, or says which they are.
func (c *Coordinator) guard(s *settings.Run) error {
	services := settings.Services{Registry: c.Registry, Store: s.Checkpoints.Store, Log: s.Log}
	text, err := services.Exposed(&s.Reach)
	if text != "" {
		c.Log.Warn(text)
	}
	return err
}

// listen opens the coordinator's sockets, and refuses addresses that others could not use.
func (c *Coordinator) listen(ring *keys.Ring) (o *role.Opened, err error) {
	o = &role.Opened{Linger: linger, Ring: ring}
	at := c.Reach.Listen
	if o.Frames, err = (transport.TCP{Keys: ring}).Listen(at); err != nil {
		return nil, cannotListen("--listen", at, err)
	}
	if o.Addr, err = transport.PublishedAddress(at, o.Frames.Addr(), c.Advertise); err != nil {
		return nil, errors.Join(err, o.Frames.Close())
	}
	if o.Web, err = net.Listen("tcp", c.Control); err != nil {
		return nil, errors.Join(cannotListen("--control", c.Control, err), o.Frames.Close())
	}
	for _, addr := range []string{o.Frames.Addr(), o.Web.Addr().String()} {
		text, err := localrun.Exposed(addr, &c.Reach)
		if err != nil {
			return nil, errors.Join(err, o.Frames.Close(), o.Web.Close())
		}
		if text != "" {
			c.Log.Warn(text)
		}
	}
	_, port, err := net.SplitHostPort(o.Web.Addr().String())
	host, _, errHost := net.SplitHostPort(o.Addr)
	if err == nil && errHost == nil { // under the name by which others reach this machine
		o.Hosts = append(o.Hosts, net.JoinHostPort(host, port))
	}
	return o, nil
}

// cannotListen says in one line why an address cannot be had.
func cannotListen(flag, addr string, err error) error {
	if _, _, bad := net.SplitHostPort(addr); bad != nil {
		return fmt.Errorf("%w: %s %s: write HOST:PORT, for example 10.0.0.5:7000 or [fd00::5]:7000", perdure.ErrUsage,
			flag, addr)
	}
	return fmt.Errorf("cannot listen on %s: %w; choose another %s", addr, plain.Cause(err), flag)
}

// settle makes the job's folder, or finds the job that it has, which must be the one that is asked for.
func (c *Coordinator) settle(ctx context.Context) (s settings.Run, err error) {
	begun, err := rundir.Clear(c.Dir)
	if err != nil {
		return s, err
	}
	if !begun {
		if s, err = c.Job.Check(); err != nil {
			return s, err
		}
		s.Reach = c.Reach
		if c.shared { // all who share it make the same job
			s.Job.ID = c.idOf()
		}
		if err := c.guard(&s); err != nil {
			return s, err
		}
		if err := localrun.Lay(ctx, &s, c.Dir, c.shared); err != nil {
			return s, err
		}
		return s, c.keepText()
	}
	if s, err = settings.Read(filepath.Join(c.Dir, rundir.RunFile)); err != nil {
		return s, err
	}
	s.Reach = c.Reach
	if err := c.guard(&s); err != nil {
		return s, err
	}
	before, err := disk.ReadRegular(filepath.Join(c.Dir, askedFile), settings.MaxDocumentBytes)
	if err != nil || !bytes.Equal(before, c.Job.Text) {
		asked, err := c.Job.settings()
		if err != nil {
			return s, err
		}
		if differs := settings.Other(s, asked); differs != "" {
			return s, fmt.Errorf("%w: %s has another job than %s: %s; name another --dir", perdure.ErrUsage, c.Dir,
				c.Job.Name, differs)
		}
		if err := c.keepText(); err != nil {
			return s, err
		}
	}
	return s, c.Job.Sign(&s)
}

func (c *Coordinator) keepText() error {
	if err := os.WriteFile(filepath.Join(c.Dir, askedFile), c.Job.Text, 0o666); err != nil {
		return fmt.Errorf("run folder: %w", plain.Cause(err))
	}
	return nil
}

// attend coordinates, and looks after the job.
func (c *Coordinator) attend(ctx context.Context, open *role.Opened, s *settings.Run) error {
	r, err := localrun.Attend(ctx, localrun.Attended{
		Settings: *s, Folder: c.Dir, Ring: open.Ring, Coordinator: transport.DialledAddresses(open.Frames.Addr()),
		Control: transport.DialledAddresses(open.Web.Addr().String()), View: view{Log: c.Log},
	})
	if err != nil {
		return errors.Join(err, open.Frames.Close(), open.Web.Close())
	}
	defer func() { _ = r.Leave() }() // how the job has ended counts
	c.greet(open, s)
	life, end := context.WithCancel(ctx)
	defer end()
	coordinated := make(chan error, 1)
	go func() {
		co := role.Coordinator{Folder: c.Dir, Log: c.Log, Watch: c.Watch, Open: open}
		coordinated <- co.Run(life)
	}()
	type seen struct {
		sum rundir.Summary
		err error
	}
	saw := make(chan seen, 1)
	go func() {
		sum, err := r.See(life)
		saw <- seen{sum, err}
	}()
	select {
	case err := <-coordinated:
		if err == nil { // it was asked to end, by who sees the job to its end
			job := <-saw
			return c.over(job.err, &job.sum)
		}
		end()
		<-saw
		return err
	case job := <-saw:
		if ctx.Err() != nil {
			<-coordinated
			c.Log.Info("the coordinator ends, and the job goes on without it; start it again with the same --dir")
			return nil
		}
		err := <-coordinated // once everybody has heard it
		return errors.Join(c.over(job.err, &job.sum), err)
	}
}

// showTarget says for Prometheus where the coordinator can be watched, whether it leads or stands by.
func (c *Coordinator) showTarget(job, addr string) error {
	if c.eye == nil {
		return nil
	}
	c.listed = true
	return metrics.WriteTargets(c.Dir, []metrics.Target{
		metrics.NewTarget(job, string(wire.RoleCoordinator), "0", transport.AddressUnder(c.eye.Addr(), addr)),
	})
}

// hideTarget says that it is there no more.
func (c *Coordinator) hideTarget() {
	if !c.listed {
		return
	}
	if err := metrics.WriteTargets(c.Dir, []metrics.Target{}); err != nil {
		c.Log.Warn("the coordinator is still listed for Prometheus", "err", err)
	}
}

// greet says where the coordinator is, and how others join.
func (c *Coordinator) greet(open *role.Opened, s *settings.Run) {
	secret := filepath.Join(c.Dir, reach.SecretFile)
	shows := fmt.Sprintf("--secret-file COPY, of %s and of %s%s beside it", secret, secret, reach.ServersExt)
	if open.Ring != nil {
		shows = "--keys DIR, a folder with the folders server and worker of the job's keys"
	}
	c.Log.Info(fmt.Sprintf("the coordinator of job %s is at %s; on each machine: perdure host --join %s %s", s.Job.ID,
		open.Addr, open.Addr, shows),
		"address", open.Addr, "control", open.Web.Addr().String(), "folder", c.Dir)
	at, err := netip.ParseAddrPort(open.Addr)
	if lacks := lacksStore(s); lacks != "" && (err != nil || !at.Addr().IsLoopback()) { // others may reach it
		c.Log.Warn(lacks)
	}
}

// lacksStore warns of a job of several machines that keeps checkpoints and names no store; "": it lacks none.
func lacksStore(s *settings.Run) string {
	if s.Checkpoints.Store == "" && recovery.Of(s.Job.Recovery).Traits().Closes() {
		return fmt.Sprintf("recovery %s keeps checkpoints, and no store is named: they are in a folder of each "+
			"machine, and none finds those of others; name one that all reach with store: URL",
			s.Job.Recovery)
	}
	return ""
}

// over says how the job has ended.
func (c *Coordinator) over(err error, sum *rundir.Summary) error {
	switch {
	case errors.Is(err, localrun.ErrStopped):
		c.Log.Info(err.Error())
		return nil
	case errors.Is(err, supervisor.ErrFailed):
		return fmt.Errorf("%w: %w", perdure.ErrFailed, err)
	case err != nil:
		return err
	}
	text := fmt.Sprintf("the job is done, at clock %d; what it has made is in %s", sum.Clocks, c.Dir)
	if sum.ModelSHA256 != nil {
		text += "; model " + *sum.ModelSHA256
	}
	c.Log.Info(text)
	return nil
}
