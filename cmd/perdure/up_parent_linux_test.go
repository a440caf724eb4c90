package main

import (
	"fmt"
	"strings"
	"syscall"
	"testing"

	"github.com/perdure/perdure"
)

// TestUpSignal: the first SIGTERM ends perdure up with a last checkpoint, with and without --with-parent. While no
// worker can reach that checkpoint, a second one ends it immediately.
func TestUpSignal(t *testing.T) {
	t.Parallel()
	for _, flags := range [][]string{nil, {"--with-parent"}} {
		dir := newFolder(t)
		p := &counter{dir: dir, calm: true, lossless: true, sums: make([]float32, 4)}
		u, programs := startUp(t, p, append([]string{
			"--workers", "2", "--shards", "4", "--clocks", "100000000", "--recovery", "checkpoint:1000000", "--grace",
			"1h",
		}, flags...)...)
		awaitStatus(t, dir, `clock [1-9]\d* of`)
		u.Signal(syscall.SIGTERM)
		code, _, stderr := u.Wait()
		programs()
		cut := newestCut(t, dir)
		want := fmt.Sprintf("; resuming starts at clock %d: perdure up --resume %s\n", cut, dir)
		if code != exitSignal || !strings.HasPrefix(stderr, "perdure: interrupted at clock ") ||
			!strings.HasSuffix(stderr, want) || strings.Count(stderr, "\n") != 1 ||
			strings.Contains(stderr, "no final checkpoint") {
			t.Errorf("%v: exit code %d, newest checkpoint of clock %d: %q", flags, code, cut, stderr)
		}
	}
	dir := newFolder(t)
	u, coordinator := up(t, dir, "--workers", "2", "--shards", "4", "--clocks", "100000000", "--consistency", "ssp:3",
		"--recovery", "checkpoint:1000000", "--grace", "1h", "--with-parent")
	for slot := range perdure.Slot(2) {
		c, err := joins(t.Context(), dir, coordinator, slot)
		must(t, err)
		defer c.Close()
		_, err = c.Table(t.Context(), perdure.TableSpec{
			Name: "w", Rows: 4, Dim: 1, Rule: perdure.Rule{Kind: perdure.RuleAdd},
		})
		must(t, err)
		if slot == 1 { // so slot 0 would have to finish a clock before the checkpoint
			_, err = c.Clock(t.Context())
			must(t, err)
		}
	}
	awaitStatus(t, dir, `worker:1 .* clock 1 `)
	u.Signal(syscall.SIGTERM)
	awaitEvent(t, dir, `"closing"`, 1)
	u.Signal(syscall.SIGTERM)
	if code, _, stderr := u.Wait(); code != exitSignal {
		t.Errorf("after the second signal: exit code %d: %q", code, stderr)
	}
}
