package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/perdure/perdure/internal/data/wire"
)

// shardBytes returns the average number of bytes of values in a shard.
func (j *recoveryJob) shardBytes() float64 {
	return float64(j.ballast.Rows*ballastDim*4) / float64(j.Settings().Job.Shards)
}

// catchUp measures the servers that joined chains in a round.
type catchUp struct {
	bytes                 float64 // copied; 0 if no server joined
	gbPerS                float64
	readRatio, clockRatio float64 // relative to the time before
}

// newCatchUp pairs the events "joining" and "joined" of each shard. The events of a round start with the failure.
func newCatchUp(sent []wire.Event, shardBytes float64, gets, clocks []lap, struck time.Time) (c catchUp) {
	began := map[string]time.Time{}
	var first, last time.Time
	copied := 0.0
	for _, e := range sent {
		at := time.Unix(0, e.UnixNs)
		switch from := began[e.Target]; {
		case e.Kind == "joining":
			began[e.Target] = at
			if first.IsZero() {
				first = at
			}
		case e.Kind == "joined" && !from.IsZero():
			delete(began, e.Target)
			copied, last = copied+shardBytes, at
		}
	}
	if copied == 0 {
		return c
	}
	return copying(copied, first, last, struck, gets, clocks)
}

// copying returns the speed of a copy between two times, and the speed of reads and clocks meanwhile, compared with the
// calm before struck.
func copying(bytes float64, from, to, struck time.Time, gets, clocks []lap) catchUp {
	before := struck.Add(-quietPeriod)
	of := func(laps []lap) float64 { return perSecond(laps, from, to) / perSecond(laps, before, struck) }
	return catchUp{bytes, bytes / to.Sub(from).Seconds() / 1e9, of(gets), of(clocks)}
}

// copyRaw copies as many bytes from this process to another, over a plain socket of the kind that servers on one
// machine use, while the job trains. This is the fastest copy that the machine allows for a joining server. Like that
// server, the other process is new and has fresh memory.
func (j *recoveryJob) copyRaw(ctx context.Context, bytes float64) (c catchUp, err error) {
	n := min(int64(bytes), maxRawBytes)
	client, closes, err := j.rawCopy(ctx, "unix", n)
	if err != nil {
		return c, err
	}
	defer func() { err = errors.Join(err, closes()) }()
	j.gets.takeLaps()
	j.clocks.takeLaps()
	if err := pause(ctx, quietPeriod); err != nil {
		return c, err
	}
	from := time.Now()
	if err := client.Exchange(); err != nil {
		return c, fmt.Errorf("bench: copy %d bytes: %w", n, err)
	}
	to := time.Now()
	return copying(float64(n), from, to, from, j.gets.takeLaps(), j.clocks.takeLaps()), nil
}

// rawCopy starts another process, and prepares an exchange in which it receives that many bytes.
func (j *recoveryJob) rawCopy(ctx context.Context, socket string, bytes int64) (
	client *rawClient, closes func() error, err error,
) {
	peer, err := startRawPeer(j.rawDir)
	if err != nil {
		return nil, nil, err
	}
	client, err = dialRaw(ctx, peer.Addrs[socket], false, 1, rawShape{Ask: bytes, Answer: 1, Chunk: rawCopyChunk})
	if err != nil {
		peer.Close()
		return nil, nil, err
	}
	stop := context.AfterFunc(ctx, client.Stop)
	client.Fill() // touch the pages, as those of a shard are
	return client, func() error {
		stop()
		defer peer.Close()
		return client.Close()
	}, nil
}

// rawCopyChunk is the size of a read or write in a plain copy.
const rawCopyChunk = 512 << 10

// addCopies adds the measurements of servers that joined.
func (r *RecoveryResult) addCopies(rounds []outage) {
	var of []float64
	each := func(what func(o *outage) catchUp) (rates, reads, clocks *float64) {
		var v [3][]float64
		for i := range rounds {
			if c := what(&rounds[i]); c.bytes > 0 {
				v[0], v[1], v[2] = append(v[0], c.gbPerS), append(v[1], c.readRatio), append(v[2], c.clockRatio)
			}
		}
		rates, _ = medianAndMax(v[0])
		reads, _ = medianAndMax(v[1])
		clocks, _ = medianAndMax(v[2])
		return rates, reads, clocks
	}
	r.CatchUpGBPerS, r.CatchUpReadRatio, r.CatchUpClockRatio = each(func(o *outage) catchUp { return o.catchUp })
	r.CatchUpRawGBPerS, r.CatchUpRawReadRatio, r.CatchUpRawClockRatio = each(func(o *outage) catchUp { return o.raw })
	for _, o := range rounds {
		if o.raw.bytes > 0 {
			of = append(of, o.catchUp.gbPerS/o.raw.gbPerS)
		}
	}
	r.CatchUpOfRaw, _ = medianAndMax(of)
}

func (r *recoveryRun) joinHeading() string {
	if !r.Snapshot {
		return ""
	}
	return "joining GB/s; reads and clocks relative to before"
}

// joining formats the speed of servers that joined, or "" if it was not measured.
func (r *RecoveryResult) joining() string {
	if r.CatchUpGBPerS == nil {
		return ""
	}
	s := fmt.Sprintf("%.3f; %.2f, %.2f", *r.CatchUpGBPerS, *r.CatchUpReadRatio, *r.CatchUpClockRatio)
	if r.CatchUpRawGBPerS != nil {
		s += fmt.Sprintf(" (%.2f of a plain copy: %.3f; %.2f, %.2f)", *r.CatchUpOfRaw, *r.CatchUpRawGBPerS,
			*r.CatchUpRawReadRatio, *r.CatchUpRawClockRatio)
	}
	return s
}
