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

// addCatchUp adds the speed of the servers that joined chains in a round, from the events "joining" and "joined" of
// each shard. The events of a round start with the failure. It returns the copied bytes, or 0 if no server joined.
func (s sample) addCatchUp(sent []wire.Event, shardBytes float64, gets, clocks []lap, struck time.Time) float64 {
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
	if copied > 0 {
		s.addCopy("catch_up_", copied, first, last, struck, gets, clocks)
	}
	return copied
}

// addCopy adds the speed of a copy between two times, and the speed of reads and clocks meanwhile, compared with the
// calm before struck.
func (s sample) addCopy(prefix string, bytes float64, from, to, struck time.Time, gets, clocks []lap) {
	before := struck.Add(-quietPeriod)
	of := func(laps []lap) float64 { return perSecond(laps, from, to) / perSecond(laps, before, struck) }
	s[prefix+"gb_per_s"] = bytes / to.Sub(from).Seconds() / 1e9
	s[prefix+"read_ratio"], s[prefix+"clock_ratio"] = of(gets), of(clocks)
}

// copyRaw copies as many bytes from this process to another, over a plain socket of the kind that servers on one
// machine use, while the job trains. This is the fastest copy that the machine allows for a joining server. Like that
// server, the other process is new and has fresh memory.
func (j *recoveryJob) copyRaw(ctx context.Context, s sample, bytes float64) (err error) {
	n := min(int64(bytes), maxRawBytes)
	client, closes, err := j.rawCopy(ctx, "unix", n)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closes()) }()
	j.gets.takeLaps()
	j.clocks.takeLaps()
	if err := pause(ctx, quietPeriod); err != nil {
		return err
	}
	from := time.Now()
	if err := client.Exchange(); err != nil {
		return fmt.Errorf("bench: copy %d bytes: %w", n, err)
	}
	to := time.Now()
	s.addCopy("catch_up_raw_", float64(n), from, to, from, j.gets.takeLaps(), j.clocks.takeLaps())
	s["catch_up_of_raw"] = s["catch_up_gb_per_s"] / s["catch_up_raw_gb_per_s"]
	return nil
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

func (r *recoveryRun) joinHeading() string {
	if !r.Snapshot {
		return ""
	}
	return "joining GB/s; reads and clocks relative to before"
}
