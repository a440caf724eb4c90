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
	"github.com/perdure/perdure/internal/run/locate"
)

// drainCosts measures a server that hands over its shards: the MB it held, the seconds from the signal until others
// have everything, and the updates lost in all rounds. For comparison it has the speed of sending as much over a plain
// TCP connection to another process on this machine, and of writing it to a plain file that is synced, while the same
// job trains.
type drainCosts struct {
	MB          float64 `json:"mb"`
	Seconds     float64 `json:"seconds"`
	SecondsMin  float64 `json:"seconds_min"`
	SecondsMax  float64 `json:"seconds_max"`
	Lost        int64   `json:"updates_lost"`
	TCPMBPerS   float64 `json:"tcp_mb_per_s"`
	FileMBPerS  float64 `json:"file_mb_per_s"`
	TCPSeconds  float64 `json:"tcp_seconds"`
	FileSeconds float64 `json:"file_seconds"`
}

// drainSample is the result of one round for a server that was asked to end.
type drainSample struct {
	mb, seconds, tcp, file float64 // the last two in MB/s
	lost                   int64
}

// measureDrain measures a server that has handed over its shards since struck. before is its status before that.
func (j *recoveryJob) measureDrain(ctx context.Context, before *control.Process, sent []wire.Event, struck time.Time) (
	d *drainSample, err error,
) {
	d = &drainSample{mb: float64(before.Bytes) / 1e6}
	target := supervisor.Target{Role: wire.RoleServer, Index: before.Index}.String()
	for _, e := range sent {
		if e.Kind == "drained" && e.Target == target {
			d.seconds = time.Unix(0, e.UnixNs).Sub(struck).Seconds()
		}
		d.lost = max(d.lost, e.UpdatesLost)
	}
	if d.seconds == 0 {
		return nil, fmt.Errorf("bench: %s was asked to hand over its shards, but no event reports that it did", target)
	}
	if d.mb < 1 {
		return d, nil // too little to compare
	}
	if d.tcp, err = j.sendRaw(ctx, int64(d.mb*1e6)); err == nil {
		d.file, err = writeRaw(filepath.Join(j.rawDir, "raw-file"), int(d.mb))
	}
	return d, err
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

// serverOf returns the status of a server.
func serverOf(s *control.Status, t supervisor.Target) *control.Process {
	p := locate.ProcessOf(s, t)
	return &p
}

// addDrains adds the measurements of servers that handed over their shards.
func (r *RecoveryResult) addDrains(rounds []outage) {
	var mb, seconds, tcp, file []float64
	d := &drainCosts{}
	for i := range rounds {
		o := rounds[i].drained
		if o == nil {
			continue
		}
		mb, seconds, d.Lost = append(mb, o.mb), append(seconds, o.seconds), max(d.Lost, o.lost)
		if o.tcp > 0 {
			tcp, file = append(tcp, o.tcp), append(file, o.file)
		}
	}
	if len(seconds) == 0 {
		return
	}
	took := newSpread(seconds)
	d.MB, d.Seconds, d.SecondsMin, d.SecondsMax = Median(mb), took.Median, took.Min, took.Max
	if len(tcp) > 0 {
		d.TCPMBPerS, d.FileMBPerS = Median(tcp), Median(file)
		d.TCPSeconds, d.FileSeconds = d.MB/d.TCPMBPerS, d.MB/d.FileMBPerS
	}
	r.Drain = d
}

// drain formats the cost of handing over, or "" if it was not measured.
func (r *RecoveryResult) drain() string {
	d := r.Drain
	if d == nil {
		return ""
	}
	s := fmt.Sprintf("\n  hands over %.1f MB in %.2f s (%.2f to %.2f); %d updates lost", d.MB, d.Seconds, d.SecondsMin,
		d.SecondsMax, d.Lost)
	if d.TCPMBPerS > 0 {
		s += fmt.Sprintf("; plain TCP %.0f MB/s, %.2f s; a plain file %.0f MB/s, %.2f s", d.TCPMBPerS, d.TCPSeconds,
			d.FileMBPerS, d.FileSeconds)
	}
	return s
}
