package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	perdurelib "github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/proc/control"
	"github.com/perdure/perdure/internal/proc/keys"
)

// TestExtremeCalls: every control API call is answered, whatever numbers it contains, and the job ends as if there had
// been no calls.
func TestExtremeCalls(t *testing.T) {
	t.Parallel()
	const seed = 20
	dir := newFolder(t)
	p, coordinator := up(t, dir, "--workers", "1", "--servers", "2", "--shards", "4", "--clocks", "2")
	secret, err := keys.ReadSecret(secretOf(dir))
	must(t, err)
	api := control.NewClient(controlOf(t, dir), secret, nil)

	r := rand.New(rand.NewPCG(seed, 0))
	pick := func(list ...string) string { return list[r.IntN(len(list))] }
	number := func() int64 { // none that is valid for a job of one worker
		list := []int64{
			math.MinInt64, math.MinInt32, -1, 1 << 13, 100_000, math.MaxInt32, math.MaxUint32,
			math.MaxInt64,
		}
		return list[r.IntN(len(list))]
	}
	for i := range 300 {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		call := ""
		if r.IntN(2) == 0 {
			s := control.Scale{Workers: int(number()), At: perdurelib.Clock(number())}
			for range r.IntN(2) * r.IntN(1<<r.IntN(14)) {
				s.Leave = append(s.Leave, perdurelib.Slot(number()))
			}
			call = fmt.Sprintf("scale to %d at %d, %d leave", s.Workers, s.At, len(s.Leave))
			_, err = api.Scale(ctx, s)
		} else {
			call = fmt.Sprintf("%s:%s@%s%d%s", pick("kill", "freeze", "cut", "slow*3", "slow*1e308", "slow*-1",
				"jitter*NaN"),
				pick("server:0", "worker:0", "coordinator", "shards:0.5", "shards:1e300",
					fmt.Sprintf("server:%d", number())),
				pick("clock:", "", "clock:-"), number(), pick("", "s", "h", "+1s", "s+9223372036854775807h"))
			_, err = api.Fault(ctx, call)
		}
		cancel()
		if err == nil && strings.HasPrefix(call, "scale") || errors.Is(err, context.DeadlineExceeded) ||
			errors.Is(err, control.ErrUnreachable) {
			t.Fatalf("seed %d, call %d, %s: %v", seed, i, call, err)
		}
	}

	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	c, err := joins(ctx, dir, coordinator, perdurelib.NoSlot)
	must(t, err)
	defer c.Close()
	for c.Now() < c.End() {
		_, err := c.Clock(ctx)
		must(t, err)
	}
	must(t, c.Finish(ctx))
	if code, _, stderr := p.Wait(); code != 0 || stderr != "" {
		t.Errorf("exit code %d: %s", code, stderr)
	}
}
