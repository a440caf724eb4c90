package main

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/protocol"
	"github.com/perdure/perdure/internal/core/recovery"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/control"
	"github.com/perdure/perdure/internal/proc/supervisor"
	"github.com/perdure/perdure/internal/run/localrun"
)

// A blow is an external signal, sent at a wall-clock time to one process or to two at the same time. The job is not
// informed. The test finds the processes among its children, like any other program on the machine could.
type blow struct {
	at     time.Duration // after the job's start
	on     []supervisor.Target
	signal syscall.Signal
	stands time.Duration // for SIGSTOP: the time until SIGCONT
}

func (b blow) String() string {
	text := fmt.Sprintf("%v to", b.signal)
	for _, t := range b.on {
		text += " " + t.String()
	}
	if b.stands > 0 {
		text += fmt.Sprintf(" for %v", b.stands)
	}
	return fmt.Sprintf("%v: %s", b.at, text)
}

// blows is a sequence of blows.
type blows struct {
	seed     uint64
	strategy perdure.Recovery
	list     []blow
	hurt     storm // state of the servers that were hit
}

// drawBlows draws a storm's blows. A blow that would take the last replica of a chain without checkpoints is delayed
// until the chain has caught up.
func drawBlows(seed uint64, strategy perdure.Recovery, servers, workers int, within time.Duration) *blows {
	rng := rand.New(rand.NewPCG(seed, 0x51673))
	o := &blows{seed: seed, strategy: strategy, hurt: storm{strategy: strategy, hurt: map[protocol.Holder]time.Time{}}}
	target := func() supervisor.Target {
		switch n := rng.IntN(10); {
		case n < 5:
			return supervisor.Target{Role: wire.RoleServer, Index: rng.IntN(servers)}
		case n < 8:
			return supervisor.Target{Role: wire.RoleWorker, Index: rng.IntN(workers)}
		case n == 9 && recovery.Of(strategy).Traits().UsesLog():
			return supervisor.Target{Role: supervisor.RoleLog}
		}
		return supervisor.Target{Role: wire.RoleCoordinator}
	}
	for range *stormFaults {
		b := blow{
			at: time.Duration(rng.Int64N(int64(within))), signal: syscall.SIGKILL,
			on: []supervisor.Target{target()},
		}
		switch rng.IntN(6) {
		case 0, 1:
			b.signal = syscall.SIGSTOP
			b.stands = []time.Duration{50 * time.Millisecond, 500 * time.Millisecond, stands}[rng.IntN(3)]
		case 2:
			b.signal = syscall.SIGTERM
		}
		traits := recovery.Of(strategy).Traits()
		if other := target(); rng.IntN(3) == 0 && other != b.on[0] &&
			!(traits.Copies == 2 && !traits.SavesCuts() && other.Role == b.on[0].Role) {
			b.on = append(b.on, other)
		}
		o.list = append(o.list, b)
	}
	slices.SortStableFunc(o.list, func(a, b blow) int { return int(a.at - b.at) })
	return o
}

// replay returns how to repeat the storm, as far as wall-clock timing allows.
func (o *blows) replay() string {
	var texts []string
	for _, b := range o.list {
		texts = append(texts, b.String())
	}
	return fmt.Sprintf("replay with -storm.runs=1 -storm.seed=%d -storm.strategies='%s' -storm.faults=%d "+
		"-storm.ms=%d: %s",
		o.seed, o.strategy, len(o.list), *stormMs, strings.Join(texts, ", "))
}

// rage strikes the starting job until it is complete, and logs each blow.
func (o *blows) rage(ctx context.Context, j *localrun.Run, log func(format string, args ...any)) {
	began := time.Now()
	var waking sync.WaitGroup
	defer waking.Wait()
	api := j.Control()
	for _, b := range o.list {
		for next := time.After(b.at - time.Since(began)); ; {
			select {
			case <-next:
			case <-ctx.Done():
				return
			case <-j.Complete():
				return
			}
			if o.may(ctx, api, b) {
				break
			}
			next = time.After(stormLook)
		}
		for _, t := range b.on {
			p := child(t)
			if p == nil {
				log("%v: %s has no process at the moment", time.Since(began), t)
				continue
			}
			log("%v: %v to %s, process %d, clock %d", time.Since(began), b.signal, t, p.Pid, j.Clock())
			_ = p.Signal(b.signal) // the process may have ended meanwhile
			if b.stands > 0 {
				waking.Go(func() {
					select {
					case <-time.After(b.stands):
					case <-ctx.Done():
					}
					_ = p.Signal(syscall.SIGCONT) // the process may have been killed
				})
			}
		}
	}
}

// may reports whether every shard keeps an intact replica without the targets of a blow. If so, it records the targets
// as hit.
func (o *blows) may(ctx context.Context, api *control.Client, b blow) bool {
	var servers []int
	for _, t := range b.on {
		if t.Role == wire.RoleServer {
			servers = append(servers, t.Index)
		}
	}
	return o.hurt.mayAll(ctx, api, servers, b.stands)
}

// child returns the child of this process that has the given role and index, or nil if there is none.
func child(t supervisor.Target) *os.Process {
	dirs, _ := filepath.Glob("/proc/[0-9]*") // the pattern is right
	for _, dir := range dirs {
		pid, _ := strconv.Atoi(filepath.Base(dir))
		p, err := os.FindProcess(pid) // a handle: later observations refer to this process or fail
		if err != nil {
			continue
		}
		if parentOf(dir) == os.Getpid() && placeOf(dir) == t && p.Signal(syscall.Signal(0)) == nil {
			return p
		}
		_ = p.Release() // not the process sought
	}
	return nil
}

// parentOf returns a process's parent, or 0 if the process has ended.
func parentOf(dir string) int {
	stat, _ := os.ReadFile(filepath.Join(dir, "stat")) // empty: the process has ended
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	if len(fields) < 2 || fields[0] == "Z" {
		return 0
	}
	pid, _ := strconv.Atoi(fields[1])
	return pid
}

// placeOf derives a process's role and index from its command line.
func placeOf(dir string) (t supervisor.Target) {
	line, _ := os.ReadFile(filepath.Join(dir, "cmdline")) // empty: the process has ended
	args := strings.Split(strings.TrimSuffix(string(line), "\x00"), "\x00")
	if len(args) < 2 {
		return t
	}
	t.Role = wire.Role(args[1])
	if slot, err := strconv.Atoi(args[1]); err == nil { // a test program
		return supervisor.Target{Role: wire.RoleWorker, Index: slot}
	}
	for i, arg := range args[:len(args)-1] {
		if arg == "--index" || arg == "--slot" {
			t.Index, _ = strconv.Atoi(args[i+1]) // the job writes valid numbers
		}
	}
	return t
}

// briefly is the strategy of the external storms that make check runs. Only make check-all runs the others.
var briefly = map[string]string{"TestSignals": "resend:20", "TestSignalSums": "chain:2"}

// eachBlows runs external storms under the strategies of the flags.
func eachBlows(t *testing.T, servers, workers int, one func(t *testing.T, o *blows)) {
	seed, strategies := stormSeeds(t)
	for i, strategy := range strategies {
		if testing.Short() && strategy.String() != briefly[t.Name()] {
			continue
		}
		for n := range (stormJobs() + 1) / 2 {
			seed := seed + n + uint64(i) // strategies have different models
			t.Run(fmt.Sprintf("%s/seed=%d", strategy, seed), func(t *testing.T) {
				within := time.Duration(*stormMs*recovery.Of(strategy).Traits().Copies*stormClocks) * time.Millisecond
				o := drawBlows(seed, strategy, servers, workers, within)
				t.Log(o.replay())
				one(t, o)
			})
		}
	}
}

// TestSignals: a bsp job under external signals ends with the model of an undisturbed job. The test is not parallel,
// because it looks for the signals' targets among all children of this process.
func TestSignals(t *testing.T) {
	eachBlows(t, stormServers, stormWorkers, func(t *testing.T, o *blows) {
		stormKindOf(o.seed, o.strategy).stormThrough(t, o.strategy, func(ctx context.Context, j *localrun.Run) error {
			o.rage(ctx, j, t.Logf)
			return nil
		})
	})
}

// TestSignalSums: the same under the other consistency models, where each table must contain every increment exactly
// once. Like TestSignals, it is not parallel.
func TestSignalSums(t *testing.T) {
	eachBlows(t, sumsServers, sumsSlots, func(t *testing.T, o *blows) {
		sumUp(t, o.seed, o.strategy, nil, func(ctx context.Context, j *localrun.Run) error {
			o.rage(ctx, j, t.Logf)
			return nil
		}, stormPace(o.strategy))
	})
}
