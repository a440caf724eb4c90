package bench

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/control"
	"github.com/perdure/perdure/internal/proc/supervisor"
)

// measureDrain measures a server that has handed over its shards since struck: the MB it held, the seconds from the
// signal until others have everything, and the updates lost so far. For comparison it adds the speed of sending as much
// over a plain TCP connection to another process on this machine, and of writing it to a plain file that is synced,
// while the same job trains. before is the server's status before the signal.
func (j *recoveryJob) measureDrain(
	ctx context.Context, s sample, before control.Process, sent []wire.Event, struck time.Time,
) error {
	mb := float64(before.Bytes) / 1e6
	target := supervisor.Target{Role: wire.RoleServer, Index: before.Index}.String()
	lost := int64(0)
	for _, e := range sent {
		if e.Kind == "drained" && e.Target == target {
			s["drain.seconds"] = time.Unix(0, e.UnixNs).Sub(struck).Seconds()
		}
		lost = max(lost, e.UpdatesLost)
	}
	if s["drain.seconds"] == 0 {
		return fmt.Errorf("bench: %s was asked to hand over its shards, but no event reports that it did", target)
	}
	s["drain.mb"], s["drain.updates_lost"] = mb, float64(lost)
	if mb < 1 {
		return nil // too little to compare
	}
	tcp, err := j.sendRaw(ctx, int64(mb*1e6))
	if err != nil {
		return err
	}
	file, err := writeRaw(filepath.Join(j.rawDir, "raw-file"), int(mb))
	if err != nil {
		return err
	}
	s["drain.tcp_mb_per_s"], s["drain.tcp_seconds"] = tcp, mb/tcp
	s["drain.file_mb_per_s"], s["drain.file_seconds"] = file, mb/file
	return nil
}

// sendRaw sends as many bytes over a plain TCP connection to another process, and returns the speed in MB/s.
func (j *recoveryJob) sendRaw(ctx context.Context, bytes int64) (mbPerS float64, err error) {
	n := min(bytes, maxRawBytes)
	client, closes, err := j.rawCopy(ctx, "tcp", n)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, closes()) }()
	from := time.Now()
	if err := client.Exchange(); err != nil {
		return 0, fmt.Errorf("bench: send %d bytes: %w", n, err)
	}
	return float64(n) / 1e6 / time.Since(from).Seconds(), nil
}
