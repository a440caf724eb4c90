package worker

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/transport"
)

// TestWhy checks that advice for each cause follows the cause itself, and that messages from a coordinator are
// unchanged.
func TestWhy(t *testing.T) {
	dial := func(err error) error {
		return fmt.Errorf("transport: %w", &net.OpError{Op: "dial", Err: os.NewSyscallError("connect", err)})
	}
	why := func(addr string, err error) error { return joinError(t.Context(), addr, err) }
	for _, c := range []struct {
		err    error
		advice string // "": none
	}{
		{dial(syscall.ECONNREFUSED), "no process listens there"},
		{dial(os.ErrDeadlineExceeded), "no firewall"},
		{dial(syscall.ETIMEDOUT), "no firewall"},
		{fmt.Errorf("handshake: %w", context.DeadlineExceeded), "no firewall"},
		{dial(syscall.EHOSTUNREACH), "no route"},
		{dial(&net.DNSError{Err: "no such host", Name: "x", IsNotFound: true}), "host name"},
		{dial(&net.DNSError{Err: "i/o timeout", Name: "x", IsTimeout: true}), "host name"},
		{fmt.Errorf("transport: x:1 %w for 5s", transport.ErrSilent), "does not answer"},
		{fmt.Errorf("broken: %w", fmt.Errorf("%w: it begins with 48", wire.ErrMagic)), "another program"},
		{fmt.Errorf("broken: %w", io.EOF), "closed the connection"},
		{dial(syscall.ECONNRESET), "closed the connection"},
		{fmt.Errorf("%w: the secret is missing", perdure.ErrRefused), ""},
		{fmt.Errorf("%w: other keys: %w", perdure.ErrRefused, io.EOF), ""},
		{fmt.Errorf("transport: %w: worker:0 is taken", transport.ErrNotNow), ""},
		{perdure.ErrDone, ""},
		{errors.New("something else"), ""},
	} {
		got := why("a:1", c.err)
		advice, found := strings.CutPrefix(got.Error(), c.err.Error())
		if !errors.Is(got, c.err) || !found || (c.advice == "") != (advice == "") ||
			!strings.Contains(advice, c.advice) {
			t.Errorf("%v: %q, want it to advise %q", c.err, got, c.advice)
		}
	}
	if err := why("a:1", nil); err != nil {
		t.Error(err)
	}
	file := filepath.Join(t.TempDir(), "addresses")
	if err := why("@"+file, errors.New("x")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a file that is missing: %v", err)
	}
	if err := os.WriteFile(file, []byte("a:1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := why("@"+file, dial(syscall.ECONNREFUSED)); !strings.Contains(err.Error(), "no process listens there") {
		t.Errorf("an address in a file: %v", err)
	}
	over, end := context.WithCancel(t.Context())
	end()
	if err := joinError(over, "a:1", context.Canceled); err != context.Canceled {
		t.Errorf("who does not look any more: %v", err)
	}
}

// TestWatch checks that a log entry each minute reports an unreachable coordinator, and another one its return. A
// coordinator that is replaced within seconds is not reported.
func TestWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		w := joinWatch{Log: slog.New(slog.NewTextHandler(&out, nil)), Addr: "a:1"}
		try := func(d time.Duration) {
			for range d / time.Second {
				time.Sleep(time.Second) // virtual time
				w.AttemptFailed(syscall.ECONNREFUSED)
			}
		}
		try(time.Minute) // no coordinator was ever reachable
		w.Up()
		for range 2 {
			w.Down()
			try(9 * time.Second)
			w.Up()
		}
		if out.Len() > 0 {
			t.Errorf("told %s", &out)
		}
		w.Down()
		try(3 * time.Minute)
		w.Up()
		w.Up()
		said := strings.Split(strings.TrimSpace(out.String()), "\n")
		for i, words := range []string{"for=10s", "for=1m10s", "for=2m10s", "again\" coordinator=a:1 after=3m0s"} {
			if len(said) != 4 || !strings.Contains(said[i], words) || !strings.Contains(said[i], "level=ERROR") ||
				i < 3 && !strings.Contains(said[i], "no process listens there") {
				t.Fatalf("told %s", &out)
			}
		}
	})
}
