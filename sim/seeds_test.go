package sim_test

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/checkpoint"
	"github.com/perdure/perdure/consistency"
	"github.com/perdure/perdure/sim"
	"github.com/perdure/perdure/transport"
)

var (
	seeds   = flag.Int("sim.seeds", 100, "how many seeds to run")
	oneSeed = flag.Uint64("sim.seed", 0, "run this seed only, with a log")
)

const clocks = 24

// scenario is what a seed stands for.
type scenario struct {
	job   perdure.JobSpec
	kills int
	cuts  int
	fills int // times at which the disk is full
	sync  time.Duration
	net   transport.MemoryOptions
	// The most that a process is away, or two hosts are cut off from one another. What
	// is silent for longer than the coordinator's patience is given up.
	pause, cut time.Duration
}

// draw makes a scenario from a seed.
func draw(seed uint64) (scenario, *rand.Rand) {
	rng := rand.New(rand.NewPCG(seed, 1))
	models := []string{"bsp", "ssp:0", "ssp:2", "asp", "essp:0", "essp:2", "vap:30", "vap:200"}
	model, _ := perdure.ParseConsistency(models[rng.IntN(len(models))])
	s := scenario{pause: 30 * time.Millisecond, cut: 60 * time.Millisecond, job: perdure.JobSpec{
		ID: fmt.Sprintf("seed-%d", seed), Seed: seed, Slots: 1 + rng.IntN(4), Servers: 1 + rng.IntN(3), Clocks: clocks,
		Consistency: model, Recovery: perdure.Recovery{Kind: perdure.RecoverCheckpoint, Every: perdure.Clock(2 + rng.IntN(8))},
	}}
	s.job.Shards = s.job.Servers + rng.IntN(4)
	if model.Kind == perdure.BSP && seed%2 == 0 { // not drawn: seeds go on meaning what they did
		beside, _ := perdure.ParseConsistency([]string{"essp:1", "ssp:1", "vap:60"}[seed/2%3])
		s.job.TableConsistency = map[string]perdure.Consistency{"history": beside}
	}
	if rng.IntN(4) > 0 {
		s.kills = 1 + rng.IntN(4)
	}
	if rng.IntN(2) == 0 {
		s.net.Breaks = 0.002
	}
	if rng.IntN(2) == 0 {
		s.cuts = 1 + rng.IntN(4)
	}
	if rng.IntN(4) == 0 {
		s.fills = 1
	}
	if rng.IntN(2) == 0 {
		s.sync = time.Duration(1 + rng.Int64N(int64(10*time.Millisecond)))
	}
	return s, rng
}

// drawChain makes a scenario of replicated shards from a seed.
func drawChain(seed uint64) (scenario, *rand.Rand) {
	s, rng := draw(seed)
	n := 2 + rng.IntN(2)
	s.job.Recovery = perdure.Recovery{Kind: perdure.RecoverChain, Replicas: n}
	s.job.Servers = n + rng.IntN(2)
	s.job.Shards = s.job.Servers + rng.IntN(4)
	s.kills, s.fills = rng.IntN(6), 0
	if rng.IntN(4) == 0 {
		s.cut = 4 * time.Second
	}
	return s, rng
}

// run runs a scenario to its end in virtual time.
func run(t *testing.T, seed uint64, s scenario, rng *rand.Rand, weaken func(*sim.Options)) (err error) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute) // virtual
		defer cancel()
		h := sim.NewHistory(s.job, s.job.Recovery.LosesRows())
		o := sim.Options{Seed: seed, Job: s.job, Network: s.net, Sync: s.sync, Program: h.Program}
		if *oneSeed != 0 {
			o.Log = slog.New(slog.NewTextHandler(os.Stderr, nil))
		}
		if weaken != nil {
			weaken(&o)
		}
		c := sim.Start(ctx, o)
		hosts := []string{"coordinator"}
		for i := range s.job.Servers {
			hosts = append(hosts, fmt.Sprintf("server:%d", i))
		}
		for i := range s.job.Slots {
			hosts = append(hosts, fmt.Sprintf("worker:%d", i))
		}
		span := func(most time.Duration) time.Duration { return time.Duration(rng.Int64N(int64(most))) }
		later := func(f func()) {
			at := span(clocks * 4 * time.Millisecond)
			go func() {
				select {
				case <-time.After(at):
					f()
				case <-ctx.Done():
				}
			}()
		}
		for range s.kills {
			host, pause := hosts[rng.IntN(len(hosts))], span(s.pause)
			later(func() {
				if spares(c, s, host) {
					c.Kill(host, pause)
				}
			})
		}
		for range s.cuts {
			a, b, oneWay, d := hosts[rng.IntN(len(hosts))], hosts[rng.IntN(len(hosts))], rng.IntN(2) == 0, span(s.cut)
			if a != b {
				later(func() {
					if spares(c, s, a) && spares(c, s, b) {
						c.Cut(a, b, oneWay, d)
					}
				})
			}
		}
		for range s.fills {
			d := span(4 * time.Second)
			later(func() { c.Fill(d) })
		}
		if err = c.Wait(); err == nil {
			err = final(c, h, s.job)
		}
	})
	return err
}

// spares reports whether a fault of a host leaves a replica of every shard, where it
// matters.
func spares(c *sim.Cluster, s scenario, host string) bool {
	return s.job.Recovery.Kind != perdure.RecoverChain || !strings.HasPrefix(host, "server:") || c.Spares(host)
}

// final judges the model: the last checkpoint, or what the replicas of the shards held
// at the end, all of which must be the same.
func final(c *sim.Cluster, h *sim.History, job perdure.JobSpec) error {
	tables := map[string]sim.Contents{}
	add := func(seg *checkpoint.Segment) {
		for _, t := range seg.Tables {
			if tables[t.Spec.Name] == nil {
				tables[t.Spec.Name] = sim.Contents{}
			}
			tables[t.Spec.Name].Add(t.Image, t.First)
		}
	}
	if job.Recovery.Kind == perdure.RecoverChain {
		if err := sameReplicas(c.Ends(), job, add); err != nil {
			return err
		}
		return h.Final(tables)
	}
	m, err := checkpoint.Latest(c.Disk(), "checkpoint")
	if err != nil {
		return err
	}
	if m.Cut != job.Clocks {
		return fmt.Errorf("the last checkpoint is of clock %d, the job ended at %d", m.Cut, job.Clocks)
	}
	for s := range perdure.ShardID(job.Shards) {
		seg, err := checkpoint.Restore(c.Disk(), "checkpoint", m, s, nil)
		if err != nil {
			return err
		}
		add(seg)
	}
	return h.Final(tables)
}

// sameReplicas compares the replicas of each shard that have come to the same applied
// vector, byte by byte, and adds one of each that has come to the job's end.
func sameReplicas(ends []*checkpoint.Segment, job perdure.JobSpec, add func(*checkpoint.Segment)) error {
	bytesOf := map[string][]byte{}
	whole := map[perdure.ShardID]bool{}
	for _, seg := range ends {
		seg.Epoch, seg.Cut = 0, 0 // they need not have heard of the last view
		var b bytes.Buffer
		if err := checkpoint.Encode(&b, seg); err != nil {
			return err
		}
		at := fmt.Sprint(seg.Shard, seg.Applied)
		if other, there := bytesOf[at]; there && !bytes.Equal(other, b.Bytes()) {
			return &sim.Violation{What: fmt.Sprintf("two replicas of shard %d differ at %v", seg.Shard, seg.Applied)}
		}
		bytesOf[at] = b.Bytes()
		if slices.Min(seg.Applied) == job.Clocks && !whole[seg.Shard] {
			whole[seg.Shard] = true
			add(seg)
		}
	}
	if len(whole) < job.Shards {
		return fmt.Errorf("at the end %d of %d shards are whole", len(whole), job.Shards)
	}
	return nil
}

// Whatever is killed, every read keeps its promises and every update is in the
// model exactly once.
func TestSeeds(t *testing.T) { runSeeds(t, draw) }

// The same of replicated shards, as long as each keeps a replica; and all replicas are
// the same, byte by byte.
func TestChains(t *testing.T) { runSeeds(t, drawChain) }

func runSeeds(t *testing.T, draw func(seed uint64) (scenario, *rand.Rand)) {
	t.Helper()
	first, last := uint64(1), uint64(*seeds)
	if *oneSeed != 0 {
		first, last = *oneSeed, *oneSeed
	}
	for seed := first; seed <= last; seed++ {
		s, rng := draw(seed)
		if err := run(t, seed, s, rng, nil); err != nil {
			t.Errorf("seed %d (%d workers, %d servers, %d shards, %s, %s, %d kills, %d cuts, %d full disks): %v; replay with -sim.seed=%d", seed,
				s.job.Slots, s.job.Servers, s.job.Shards, s.job.Models(), s.job.Recovery, s.kills, s.cuts, s.fills, err, seed)
		}
		if t.Failed() {
			return
		}
	}
}

// With a safety mechanism switched off, the checker must notice: otherwise it
// would not be worth much.
func TestNegativeControls(t *testing.T) {
	for name, weaken := range map[string]func(*sim.Options){
		"exactly once": func(o *sim.Options) { o.Weakened = consistency.Weakened{ExactlyOnce: true} },
		"staging":      func(o *sim.Options) { o.Weakened = consistency.Weakened{Staging: true} },
		"generations":  func(o *sim.Options) { o.WeakenedGenerations = true },
		"pushes":       func(o *sim.Options) { o.Weakened = consistency.Weakened{Pushes: true} },
		"bound":        func(o *sim.Options) { o.Weakened = consistency.Weakened{Bound: true} },
	} {
		t.Run(name, func(t *testing.T) {
			for seed := uint64(1); seed <= 300; seed++ {
				s, rng := draw(seed)
				// The hardest case for fencing: a cut at every clock, and updates that
				// come late, from before a roll-back.
				s.job.Recovery.Every, s.cuts, s.kills = 1, 4, 3
				err := run(t, seed, s, rng, weaken)
				var v *sim.Violation
				if errors.As(err, &v) {
					t.Logf("seed %d: %v", seed, err)
					return
				}
			}
			t.Error("300 seeds without it, and nothing was noticed")
		})
	}
}
