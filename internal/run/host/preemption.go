package host

import (
	"context"
	"fmt"
	"os/exec"
	"regexp"
	"sync"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/control"
)

// Notice configures how a host learns that its machine will be taken away, in addition to a signal and an operator's
// order, and how much time it has then.
type Notice struct {
	// For is the time from the notice until the machine is gone; 0: unlimited.
	For time.Duration `name:"notice" help:"@host_notice" placeholder:"TIME"`
	// Probe is a shell command. When it ends with 0, the machine is about to be taken away. "": none.
	Probe string `name:"notice-command" help:"@host_notice_command" placeholder:"COMMAND"`
}

// noticePause is the time between two runs of the command.
const noticePause = 2 * time.Second

// shell runs the command.
const shell = "sh"

func (n *Notice) check() error {
	if n.For < 0 || n.For > control.MaxNotice {
		return perdure.Usagef("invalid --notice %v; choose a time above 0 and at most %v", n.For, control.MaxNotice)
	}
	if n.Probe == "" {
		return nil
	}
	if _, err := exec.LookPath(shell); err != nil {
		return perdure.Usagef("--notice-command needs a shell, but %s is not installed", shell)
	}
	return nil
}

// hostNames matches valid host names, which appear in log lines and on command lines.
var hostNames = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,252}$`)

func checkName(name string) error {
	if !hostNames.MatchString(name) {
		return perdure.Usagef("invalid host name %.40q; use letters, digits, dots, dashes and underscores, for "+
			"example --name rack-a-7", name)
	}
	return nil
}

// watch runs the command until it ends with 0, and then closes the returned channel.
func (h *Host) watch(ctx context.Context) <-chan struct{} {
	noticed := make(chan struct{})
	if h.Notice.Probe == "" {
		return noticed
	}
	go func() {
		said := ""
		for ctx.Err() == nil {
			cmd := exec.CommandContext(ctx, shell, "-c", h.Notice.Probe)
			cmd.WaitDelay = time.Second // child processes may keep its output open
			err := cmd.Run()
			if err == nil {
				close(noticed)
				return
			}
			if code := cmd.ProcessState.ExitCode(); code < 0 || code >= cannotRun {
				if why := err.Error(); why != said && ctx.Err() == nil {
					said = why
					h.Log.Warn("the command given with --notice-command failed; trying again",
						"command", h.Notice.Probe, "err", why)
				}
			}
			select {
			case <-time.After(noticePause):
			case <-ctx.Done():
			}
		}
	}()
	return noticed
}

// cannotRun is the smallest exit code of a shell that reports that it could not run a command.
const cannotRun = 126

// shutdown is the graceful end of a host.
type shutdown struct {
	h      *Host
	cancel context.CancelFunc // stops waiting for processes
	once   sync.Once
}

// within ends the host when the notice has expired.
func (e *shutdown) within(notice time.Duration) (stop func()) {
	if notice <= 0 {
		return func() {}
	}
	t := time.AfterFunc(notice, func() {
		e.once.Do(func() {
			e.h.Log.Warn("the notice has expired: the remaining processes end now, even if other servers have not "+
				"taken over their replicas",
				"notice", notice)
		})
		e.cancel()
	})
	return func() { t.Stop() }
}

// handOver ends all processes gracefully: workers leave, and servers hand over their replicas. When the notice expires,
// the remaining processes are killed. ctx ends on a signal, which may follow another request.
func (h *Host) handOver(ctx, atOnce context.Context, k *keeper, notice time.Duration) {
	until, cancel := context.WithCancel(atOnce)
	defer cancel()
	e := &shutdown{h: h, cancel: cancel}
	defer e.within(notice)()
	if h.Notice.For > 0 && ctx.Err() == nil {
		defer context.AfterFunc(ctx, func() { context.AfterFunc(until, e.within(h.Notice.For)) })()
	}
	k.drain(until, notice > 0)
	if until.Err() != nil {
		k.kill()
	}
}

// announceDrain logs that the host is about to end.
func (h *Host) announceDrain(why string, notice time.Duration) {
	within, how := "", "workers leave, then servers hand over their replicas"
	if notice > 0 {
		within, how = fmt.Sprintf(" within %v", notice), "workers leave, and servers hand over their replicas"
	}
	h.Log.Info(fmt.Sprintf("the host is ending%s: %s; a second request ends it immediately", within, how), "why", why)
}

// order handles an order of the coordinator.
func (l *jobConn) order(f *wire.Frame) error {
	if f.Kind != wire.KindOrder {
		return nil
	}
	var o wire.Order
	if err := wire.ParseControl(f, &o); err != nil {
		return err
	}
	if o.Kind == wire.OrderDrain {
		select {
		case l.ordered <- time.Duration(o.Notice()) * time.Millisecond:
		default: // already ordered
		}
	}
	return nil
}
