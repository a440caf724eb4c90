package role_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/updatelog"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/transport"
	"github.com/perdure/perdure/internal/run/locate"
	"github.com/perdure/perdure/internal/run/role"
)

// TestLog checks that the role of an update log needs nothing but a directory.
func TestLog(t *testing.T) {
	t.Setenv("GOGC", "100") // keeps the collector's setting of this process
	dir := filepath.Join(t.TempDir(), "log")
	ctx, cancel := context.WithCancel(t.Context())
	var out told
	out.when = func() {
		defer cancel()
		url, err := updatelog.ReadURL(dir)
		if err != nil {
			t.Errorf("after it reported that it listens: %v", err)
			return
		}
		i, err := updatelog.Inspect(ctx, url, updatelog.DialOptions{})
		if err != nil {
			t.Errorf("after it reported that it listens: %v", err)
			return
		}
		if streams, err := i.Streams(ctx); err != nil || len(streams) > 0 {
			t.Errorf("a new log has streams %v, %v", streams, err)
		}
		_ = i.Close() // only read
	}
	l := role.Log{
		Dir: dir, Listen: "127.0.0.1:0", Sync: string(updatelog.SyncInterval), MB: 64, Out: &out,
		Log: slog.New(slog.DiscardHandler),
	}
	if err := l.Run(ctx); err != nil && !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if want := "the log listens; its URL, which is secret, is in " + filepath.Join(dir, "url") +
		"\n"; out.String() != want {
		t.Errorf("output %q, want %q", out.String(), want)
	}
	l.MB = -1
	if err := l.Run(t.Context()); !errors.Is(err, perdure.ErrUsage) {
		t.Errorf("a log of -1 MiB: %v", err)
	}
}

// told calls a function on the first output.
type told struct {
	bytes.Buffer
	when func()
}

func (t *told) Write(b []byte) (int, error) {
	t.Buffer.Write(b)
	t.when()
	return len(b), nil
}

// TestMistakes checks the errors that a role reports before it looks for its job, and the jobs that it finds to be
// over.
func TestMistakes(t *testing.T) {
	var out bytes.Buffer
	if err := (&role.Server{Zone: "a/b"}).Run(t.Context(), t.Context()); !errors.Is(err, perdure.ErrUsage) ||
		!strings.Contains(err.Error(), "--zone") {
		t.Errorf("invalid zone: %v", err)
	}
	if err := (&role.Worker{LostAfter: -time.Second}).Run(t.Context()); !errors.Is(err, perdure.ErrUsage) {
		t.Errorf("negative --lost-after: %v", err)
	}
	run := t.TempDir()
	drawn, err := locate.WriteSecrets(run, locate.NewKeys())
	if err == nil {
		err = drawn.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	none, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = none.Close() // it never answered
	work := func() error {
		w := role.Worker{Job: locate.Job{Run: run, Join: none.Addr().String()}, Out: &out}
		return w.Run(t.Context())
	}
	if err := work(); err == nil || !strings.Contains(err.Error(), "no job answers") || out.Len() > 0 {
		t.Errorf("without a job: %v, %s", err, &out)
	}
	if err := os.WriteFile(filepath.Join(run, "summary.json"), nil, 0o666); err != nil {
		t.Fatal(err)
	}
	if err := work(); err != nil || !strings.HasPrefix(out.String(), "the job is done") {
		t.Errorf("run with a summary: %v, %s", err, &out)
	}
}

// TestObey checks that an order makes this process's network fail, and that an invalid order has no effect.
func TestObey(t *testing.T) {
	faults := transport.NewFaultLayer(transport.TCP{})
	l, err := faults.Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	reached := func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		c, err := faults.Dial(ctx, l.Addr())
		if err != nil {
			return false
		}
		return c.Close() == nil
	}
	for _, spec := range []string{"", "cut", "cut soon 1h", "cut 0 soon", "hide 0 1h"} {
		if role.ApplyFault(wire.Order{Spec: spec}, faults, nil, 1); !reached() {
			t.Fatalf("%q cut the network", spec)
		}
	}
	if role.ApplyFault(wire.Order{Spec: "cut 0 1h"}, faults, nil, 1); reached() {
		t.Error("the network was not cut")
	}
}
