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
	"github.com/perdure/perdure/internal/run/humanize"
	"github.com/perdure/perdure/internal/run/localrun"
	"github.com/perdure/perdure/internal/run/locate"
	"github.com/perdure/perdure/internal/run/metrics"
	"github.com/perdure/perdure/internal/run/role"
	"github.com/perdure/perdure/internal/run/rundir"
	"github.com/perdure/perdure/internal/run/settings"
)

// The coordinator of a job on several hosts is started by a person, by systemd or by Kubernetes. Its directory contains
// the whole job: the first start creates it, and each later start continues the same job. The coordinator also does the
// work of the parent process of a job on one machine: it records events, exports the model and notifies all processes
// when the job is over. A signal ends the process, but not the job.
//
//	err := (&host.Coordinator{Job: job, Dir: dir, Listen: "10.0.0.5:7000", Log: log}).Run(ctx)
//
// A Coordinator runs once.

// Coordinator is a coordinator that no supervisor has started.
type Coordinator struct {
	Job       Job
	Dir       string         // directory of this job alone
	Reach     settings.Reach // address for the job's processes, and their credentials
	Advertise string         // address published to them; "": that of Reach
	Control   string         // listen address of the control API
	Dashboard string         // listen address of the live view; "": not served
	Registry  string         // see store.OpenLocation; "": in Dir
	Log       *slog.Logger
	Watch     role.Observability

	debug  *httpdebug.Endpoint // metrics and health endpoints, also on standby; nil: none
	listed bool                // listed in the file that Prometheus reads
	shared bool                // other coordinators may share the registry
}

// Job is the requested job.
type Job struct {
	Name string // name of the job's file
	Text []byte // content of that file
	*settings.Flags
	Blame func(error) error // adds the position in the file to an error; nil: nothing to add
}

// settings returns the settings of the requested job.
func (j *Job) settings() (s settings.Run, err error) {
	if s, err = j.New(); err != nil && j.Blame != nil {
		err = j.Blame(err)
	}
	return s, err
}

// Check returns the settings of the job, or an error if they do not suit a job on several hosts.
func (j *Job) Check() (s settings.Run, err error) {
	if s, err = j.settings(); err == nil {
		err = localrun.CheckDistributed(&s)
	}
	return s, err
}

// linger is how long the coordinator stays after the job is over, to notify processes that are just being restarted.
const linger = 3 * time.Second

// Run coordinates until the job is over or ctx ends. In the latter case it leaves the job as it is. A coordinator that
// shares its registry returns to standby after losing the lease.
func (c *Coordinator) Run(ctx context.Context) (err error) {
	httpdebug.SetIdentity(c.Log, "", string(wire.RoleCoordinator), 0)
	if c.debug, err = c.Watch.Open(ctx, c.Log); err != nil {
		return err
	}
	defer c.debug.Close()
	defer c.hideTarget()
	for {
		err := c.lead(ctx)
		// the lease was lost or cannot be acquired
		lost := errors.Is(err, perdure.ErrFenced) || errors.Is(err, registry.ErrUnavailable)
		if !c.shared || !lost || ctx.Err() != nil {
			return err
		}
		c.Log.Warn("this coordinator is no longer the leader", "err", err)
	}
}

// lead waits for the lease if there is one, and then coordinates.
func (c *Coordinator) lead(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	c.debug.SetProbe(nil) // not ready yet
	ring, err := locate.OpenWatchedRing(ctx, c.Reach.Keys, wire.RoleCoordinator, c.Log)
	if err != nil {
		return err
	}
	if c.shared, err = c.sharesRegistry(ring); err != nil {
		return err
	}
	open, err := c.listen(ring)
	if err != nil {
		return err
	}
	s, err := c.openJob(ctx)
	if err == nil {
		var kept *locate.Secrets
		if kept, err = locate.ReadRunSecrets(c.Dir); err == nil {
			open.Keys, err = kept.Keys, kept.Close()
		}
	}
	if err == nil {
		err = c.showTarget(s.Job.ID, open.Addr)
	}
	if err != nil {
		return errors.Join(err, open.FrameListener.Close(), open.ControlListener.Close())
	}
	httpdebug.SetIdentity(c.Log, s.Job.ID, string(wire.RoleCoordinator), 0)
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
	open.Debug = c.debug
	err = c.runJob(ctx, open, &s)
	_, _ = open.FrameListener.Close(), open.ControlListener.Close() // usually they are already closed
	return err
}

// checkEncryption returns an error for services that are reached without encryption, or logs a warning if they are
// permitted.
func (c *Coordinator) checkEncryption(s *settings.Run) error {
	services := settings.Services{Registry: c.Registry, Store: s.Checkpoints.Store, Log: s.Log}
	text, err := services.ExposureWarning(&s.Reach)
	if text != "" {
		c.Log.Warn(text)
	}
	return err
}

// listen opens the coordinator's sockets. It returns an error for addresses that other machines could not use.
func (c *Coordinator) listen(ring *keys.Ring) (o *role.Resources, err error) {
	o = &role.Resources{Linger: linger, Ring: ring}
	at := c.Reach.Listen
	if o.FrameListener, err = (transport.TCP{Keys: ring}).Listen(at); err != nil {
		return nil, cannotListen("--listen", at, err)
	}
	if o.Addr, err = transport.PublishedAddress(at, o.FrameListener.Addr(), c.Advertise); err != nil {
		return nil, errors.Join(err, o.FrameListener.Close())
	}
	if o.ControlListener, err = net.Listen("tcp", c.Control); err != nil {
		return nil, errors.Join(cannotListen("--control", c.Control, err), o.FrameListener.Close())
	}
	for _, addr := range []string{o.FrameListener.Addr(), o.ControlListener.Addr().String()} {
		text, err := localrun.ExposureWarning(addr, &c.Reach)
		if err != nil {
			return nil, errors.Join(err, o.FrameListener.Close(), o.ControlListener.Close())
		}
		if text != "" {
			c.Log.Warn(text)
		}
	}
	_, port, err := net.SplitHostPort(o.ControlListener.Addr().String())
	host, _, errHost := net.SplitHostPort(o.Addr)
	if err == nil && errHost == nil { // under the name that other machines use for this one
		o.Hosts = append(o.Hosts, net.JoinHostPort(host, port))
	}
	return o, nil
}

// cannotListen returns an error of one line for an address that cannot be used.
func cannotListen(flag, addr string, err error) error {
	if _, _, bad := net.SplitHostPort(addr); bad != nil {
		return perdure.Usagef("invalid %s %s: write HOST:PORT, for example 10.0.0.5:7000 or [fd00::5]:7000", flag, addr)
	}
	return fmt.Errorf("cannot listen on %s: %w; choose another address for %s", addr, humanize.Cause(err), flag)
}

// openJob creates the job's directory, or loads the job in it. It returns an error if that is not the requested job.
func (c *Coordinator) openJob(ctx context.Context) (s settings.Run, err error) {
	started, err := rundir.RemoveIncomplete(c.Dir)
	if err != nil {
		return s, err
	}
	if !started {
		if s, err = c.Job.Check(); err != nil {
			return s, err
		}
		s.Reach = c.Reach
		if c.shared { // coordinators that share the registry must create the same job
			s.Job.ID = c.jobID()
		}
		if err := c.checkEncryption(&s); err != nil {
			return s, err
		}
		if err := localrun.CreateDistributed(ctx, &s, c.Dir, c.shared); err != nil {
			return s, err
		}
		return s, c.saveRequest()
	}
	if s, err = settings.Read(filepath.Join(c.Dir, rundir.RunFile)); err != nil {
		return s, err
	}
	s.Reach = c.Reach
	if err := c.checkEncryption(&s); err != nil {
		return s, err
	}
	before, err := disk.ReadRegular(filepath.Join(c.Dir, rundir.RequestFile), settings.MaxDocumentBytes)
	if err != nil || !bytes.Equal(before, c.Job.Text) {
		asked, err := c.Job.settings()
		if err != nil {
			return s, err
		}
		differs, err := settings.FirstDifference(s, asked)
		if err != nil {
			return s, err
		}
		if differs != "" {
			return s, perdure.Usagef("%s contains a different job than %s: %s; choose another --dir", c.Dir, c.Job.Name,
				differs)
		}
		if err := c.saveRequest(); err != nil {
			return s, err
		}
	}
	return s, c.Job.CompletePerRun(&s)
}

func (c *Coordinator) saveRequest() error {
	if err := os.WriteFile(filepath.Join(c.Dir, rundir.RequestFile), c.Job.Text, 0o666); err != nil {
		return fmt.Errorf("run directory: %w", humanize.Cause(err))
	}
	return nil
}

// runJob coordinates and does the work of the job's parent process.
func (c *Coordinator) runJob(ctx context.Context, open *role.Resources, s *settings.Run) error {
	r, err := localrun.StartDistributed(ctx, localrun.DistributedOptions{
		Settings: *s, Folder: c.Dir, Ring: open.Ring, Coordinator: transport.DialAddress(open.FrameListener.Addr()),
		Control: transport.DialAddress(open.ControlListener.Addr().String()), View: view{Log: c.Log},
		Dashboard: c.Dashboard,
	})
	if err != nil {
		return errors.Join(err, open.FrameListener.Close(), open.ControlListener.Close())
	}
	defer func() { _ = r.Detach() }() // only the job's own result counts
	c.announce(open, s)
	life, end := context.WithCancel(ctx)
	defer end()
	coordinated := make(chan error, 1)
	go func() {
		co := role.Coordinator{Folder: c.Dir, Log: c.Log, Watch: c.Watch, Resources: open}
		coordinated <- co.Run(life)
	}()
	type seen struct {
		sum rundir.Summary
		err error
	}
	saw := make(chan seen, 1)
	go func() {
		sum, err := r.AwaitEnd(life)
		saw <- seen{sum, err}
	}()
	select {
	case err := <-coordinated:
		if err == nil { // See has asked it to end
			job := <-saw
			return c.logResult(job.err, &job.sum)
		}
		end()
		<-saw
		return err
	case job := <-saw:
		if ctx.Err() != nil {
			<-coordinated
			c.Log.Info("the coordinator is exiting, and the job continues without it; restart it with the same --dir")
			return nil
		}
		err := <-coordinated // after all processes were notified
		return errors.Join(c.logResult(job.err, &job.sum), err)
	}
}

// showTarget lists the coordinator's metrics address for Prometheus, on standby too.
func (c *Coordinator) showTarget(job, addr string) error {
	if c.debug == nil {
		return nil
	}
	c.listed = true
	return metrics.WriteTargets(c.Dir, []metrics.Target{
		metrics.NewTarget(job, string(wire.RoleCoordinator), "0", transport.ReachableAddress(c.debug.Addr(), addr)),
	})
}

// hideTarget removes the coordinator from the list.
func (c *Coordinator) hideTarget() {
	if !c.listed {
		return
	}
	if err := metrics.WriteTargets(c.Dir, []metrics.Target{}); err != nil {
		c.Log.Warn("cannot remove the coordinator from the Prometheus target list", "err", err)
	}
}

// announce logs the coordinator's address and the command that hosts join with.
func (c *Coordinator) announce(open *role.Resources, s *settings.Run) {
	secret := filepath.Join(c.Dir, locate.SecretFile)
	shows := fmt.Sprintf("--secret-file COPY, where COPY is a copy of %s with a copy of %s%s next to it", secret,
		secret, locate.ServersExt)
	if open.Ring != nil {
		shows = "--keys DIR, a directory with the directories server and worker of the job's keys"
	}
	c.Log.Info(fmt.Sprintf("the coordinator of job %s is at %s; on each machine: perdure host --join %s %s", s.Job.ID,
		open.Addr, open.Addr, shows),
		"address", open.Addr, "control", open.ControlListener.Addr().String(), "folder", c.Dir)
	at, err := netip.ParseAddrPort(open.Addr)
	if missing := missingStoreWarning(
		s,
	); missing != "" &&
		(err != nil || !at.Addr().IsLoopback()) { // other machines may reach it
		c.Log.Warn(missing)
	}
}

// missingStoreWarning returns a warning for a job on several machines that keeps checkpoints without a shared store. It
// returns "" for any other job.
func missingStoreWarning(s *settings.Run) string {
	if s.Checkpoints.Store == "" && recovery.Of(s.Job.Recovery).Traits().SavesAtEnd() {
		return fmt.Sprintf("recovery %s keeps checkpoints, but no store is set: each machine keeps its own in a "+
			"local directory, where the others cannot read them; use store: URL to set a store that all machines can "+
			"reach",
			s.Job.Recovery)
	}
	return ""
}

// logResult reports how the job ended.
func (c *Coordinator) logResult(err error, sum *rundir.Summary) error {
	switch {
	case errors.Is(err, localrun.ErrStopped):
		c.Log.Info(err.Error())
		return nil
	case errors.Is(err, supervisor.ErrFailed):
		return fmt.Errorf("%w: %w", perdure.ErrFailed, err)
	case err != nil:
		return err
	}
	text := fmt.Sprintf("the job is done, at clock %d; its results are in %s", sum.Clocks, c.Dir)
	if sum.ModelSHA256 != nil {
		text += "; model " + *sum.ModelSHA256
	}
	c.Log.Info(text)
	return nil
}
