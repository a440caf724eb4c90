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

// Notice says how a host hears that its machine is to be taken, beside a signal and an operator's word, and how long it
// has then.
type Notice struct {
	// For is how long it has from then on; 0: as long as it takes.
	For time.Duration `name:"notice" help:"@host_notice" placeholder:"TIME"`
	// Probe is a command of a shell: the machine is to be taken once it ends with 0; "": there is none.
	Probe string `name:"notice-command" help:"@host_notice_command" placeholder:"COMMAND"`
}

// noticePause is how long after the command the next one is run.
const noticePause = 2 * time.Second

// shell runs the command.
const shell = "sh"

func (n *Notice) check() error {
	if n.For < 0 || n.For > control.MostNotice {
		return fmt.Errorf("%w: --notice %v; choose a time above 0, and of %v at most", perdure.ErrUsage, n.For,
			control.MostNotice)
	}
	if n.Probe == "" {
		return nil
	}
	if _, err := exec.LookPath(shell); err != nil {
		return fmt.Errorf("%w: --notice-command needs a shell, and there is no %s", perdure.ErrUsage, shell)
	}
	return nil
}

// hostNames are what people may call a host: it stands in lines and on command lines.
var hostNames = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,252}$`)

func checkName(name string) error {
	if !hostNames.MatchString(name) {
		return fmt.Errorf("%w: %.40q cannot be a host's name; use letters, digits, dots, dashes and underscores, for "+
			"example --name rack-a-7", perdure.ErrUsage, name)
	}
	return nil
}

// watch runs the command until it ends with 0; what it returns is closed then.
func (h *Host) watch(ctx context.Context) <-chan struct{} {
	noticed := make(chan struct{})
	if h.Notice.Probe == "" {
		return noticed
	}
	go func() {
		said := ""
		for ctx.Err() == nil {
			cmd := exec.CommandContext(ctx, shell, "-c", h.Notice.Probe)
			cmd.WaitDelay = time.Second // what it has started may hold its output
			err := cmd.Run()
			if err == nil {
				close(noticed)
				return
			}
			if code := cmd.ProcessState.ExitCode(); code < 0 || code >= cannotRun {
				if why := err.Error(); why != said && ctx.Err() == nil {
					said = why
					h.Log.Warn("the command that is to say when this machine is taken fails; it is tried again",
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

// cannotRun is the least code of a shell that could not run its command.
const cannotRun = 126

// ending is a host's end in order.
type ending struct {
	h      *Host
	cancel context.CancelFunc // nobody is waited for any more
	once   sync.Once
}

// within ends the host anyway when a notice is over.
func (e *ending) within(notice time.Duration) (stop func()) {
	if notice <= 0 {
		return func() {}
	}
	t := time.AfterFunc(notice, func() {
		e.once.Do(func() {
			e.h.Log.Warn("the notice is over: whoever is left here ends now, with what others have not taken over",
				"notice", notice)
		})
		e.cancel()
	})
	return func() { t.Stop() }
}

// handOver has all processes end in order: workers leave, and servers hand over what they hold. When the notice is
// over they end anyway. ctx ends when a signal has told the host to end, perhaps later than somebody else did.
func (h *Host) handOver(ctx, atOnce context.Context, k *keeper, why string, notice time.Duration) {
	h.begins(why, notice)
	until, cancel := context.WithCancel(atOnce)
	defer cancel()
	e := &ending{h: h, cancel: cancel}
	defer e.within(notice)()
	if h.Notice.For > 0 && ctx.Err() == nil {
		defer context.AfterFunc(ctx, func() { context.AfterFunc(until, e.within(h.Notice.For)) })()
	}
	k.drain(until, notice > 0)
	if until.Err() != nil {
		k.kill()
	}
}

// begins is what the host says when it is to end.
func (h *Host) begins(why string, notice time.Duration) {
	within, how := "", "workers leave, then servers hand over what they hold"
	if notice > 0 {
		within, how = fmt.Sprintf(" within %v", notice), "workers leave, and servers hand over what they hold"
	}
	h.Log.Info(fmt.Sprintf("the host is to end%s: %s; told again, it ends at once", within, how), "why", why)
}

// order hears what the coordinator orders.
func (l *look) order(f *wire.Frame) error {
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
		default: // it was told already
		}
	}
	return nil
}
