// Package logtool looks into update logs: it lists their streams, shows and verifies records,
// and removes the streams of a job that has ended. A log is found by a run's folder, by its own
// folder, or by the address at which it is served; its process may run or not, but for Remove.
// Of a run's own log it knows from the folder's settings and snapshots what must be there, so
// that what is gone is told as damage, too.
//
// It prints what it finds, and returns the first damage as an error. It only reads, but for
// Remove and RemoveOf. All is safe for concurrent use.
package logtool

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/updatelog"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/run/settings"
)

// Place is where a log is that somebody looks into: at a folder, or at an address with what it
// takes to be let in.
type Place struct {
	Dir       string // a run's folder, or a log's
	NATS      string
	Creds, CA string
	Cert, Key string
	Job       string // only this job's streams; "": all
}

// Patience is how long a log may take to answer somebody who looks into it.
const Patience = 5 * time.Second

// open opens the log and lists its streams, and those that should be there.
func (p *Place) open(ctx context.Context) (i *updatelog.Inspector, streams []updatelog.Stream, err error) {
	if err := settings.CheckPair(p.Cert, p.Key); err != nil {
		return nil, nil, err
	}
	var known *knownLog
	switch {
	case (p.Dir == "") == (p.NATS == ""):
		return nil, nil, fmt.Errorf("%w: which log? name a run's folder, or write nats://HOST:PORT", perdure.ErrUsage)
	case p.NATS != "":
		soon, cancel := context.WithTimeout(ctx, Patience)
		defer cancel()
		i, err = updatelog.Inspect(soon, p.NATS, updatelog.DialOptions{
			Credentials: p.Creds, CA: p.CA, Cert: p.Cert,
			Key: p.Key,
		})
	default:
		dir := p.Dir
		if _, err := os.Stat(settings.LogFolder(dir)); err == nil {
			dir = settings.LogFolder(dir)
			if known, err = knowLog(p.Dir); err != nil {
				return nil, nil, err
			}
		}
		i, err = updatelog.InspectFolder(ctx, dir, Patience)
	}
	if err != nil {
		return nil, nil, err
	}
	if streams, err = p.streams(ctx, i, known); err != nil {
		return nil, nil, errors.Join(err, i.Close())
	}
	return i, streams, nil
}

// streams lists a log's streams that are asked for.
func (p *Place) streams(ctx context.Context, i *updatelog.Inspector, known *knownLog) ([]updatelog.Stream, error) {
	ctx, cancel := context.WithTimeout(ctx, Patience)
	defer cancel()
	all, err := i.Streams(ctx)
	if err == nil && known != nil {
		all, err = known.check(all)
	}
	some := only(all, func(s updatelog.Stream) bool { return p.Job == "" || s.Job == p.Job })
	if err == nil && len(some) == 0 {
		err = fmt.Errorf("there are no streams of %s in this log", cmp.Or(p.Job, "any job"))
	}
	return some, err
}

// streamsOf returns those of a job.
func streamsOf(streams []updatelog.Stream, job string) []updatelog.Stream {
	return only(streams, func(s updatelog.Stream) bool { return s.Job == job })
}

func only(streams []updatelog.Stream, wanted func(updatelog.Stream) bool) (some []updatelog.Stream) {
	for _, s := range streams {
		if wanted(s) {
			some = append(some, s)
		}
	}
	return some
}

// List lists the streams of a log: one for each shard of a job. It says what is damaged, as
// far as that shows, and returns the first damage.
func List(ctx context.Context, out io.Writer, p Place) error {
	i, streams, err := p.open(ctx)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "%-32s %5s %10s %10s %10s %10s\n", "job", "shard", "first", "last", "records", "MB")
	var damaged error
	for _, s := range streams {
		note := ""
		if s.Damage != nil {
			note, damaged = "  damaged", cmp.Or(damaged, s.Damage)
		}
		fmt.Fprintf(out, "%-32s %5d %10s %10s %10d %10.1f%s\n", s.Job, s.Shard, position(s, s.First),
			position(s, s.Next-1), s.Records, float64(s.Bytes)/1e6, note)
	}
	return errors.Join(damaged, i.Close())
}

// position is a position in a stream; "-" where it has no record.
func position(s updatelog.Stream, p updatelog.Position) string {
	if s.Records == 0 {
		return "-"
	}
	return fmt.Sprint(p)
}

// Part is what Dump shows of a stream.
type Part struct {
	Shard int
	From  updatelog.Position // the first position; 0: the first there is
	Most  *int               // how many records; nil: all
}

// Dump shows the records of one shard's stream.
func Dump(ctx context.Context, out io.Writer, p Place, part Part) error {
	if part.Most != nil && *part.Most < 1 {
		return fmt.Errorf("%w: --most %d; choose 1 or more, or leave it out to see all", perdure.ErrUsage, *part.Most)
	}
	i, streams, err := p.open(ctx)
	if err != nil {
		return err
	}
	streams = only(streams, func(s updatelog.Stream) bool { return s.Shard == part.Shard })
	switch {
	case len(streams) == 0:
		err = fmt.Errorf("%w: there is no shard %d in this log; see perdure log ls", perdure.ErrUsage, part.Shard)
	case len(streams) > 1:
		err = fmt.Errorf("%w: %d jobs have a shard %d in this log; choose one with --job", perdure.ErrUsage,
			len(streams), part.Shard)
	default:
		err = dump(ctx, out, i, streams[0], part)
	}
	return errors.Join(err, i.Close())
}

var errEnoughShown = errors.New("enough was shown")

// dump shows a part of a stream.
func dump(ctx context.Context, out io.Writer, i *updatelog.Inspector, s updatelog.Stream, part Part) error {
	shown := 0
	err := i.Records(ctx, s, func(r updatelog.Record) error {
		if r.Position < part.From {
			return nil
		}
		if part.Most != nil && shown == *part.Most {
			return errEnoughShown
		}
		shown++
		fmt.Fprintf(out, "%d %s producer %016x group %d part %d/%d %d bytes\n", r.Position,
			r.Stored.UTC().Format(time.RFC3339Nano), r.Producer, r.Group, r.Index+1, r.Count, r.Bytes)
		for _, e := range r.Entries {
			fmt.Fprintf(out, "    %s; resume from %d\n", describe(e.Payload), e.Resume)
		}
		return nil
	})
	if errors.Is(err, errEnoughShown) {
		return nil
	}
	return err
}

// kindNames are those of the messages that are kept in a log.
var kindNames = map[wire.Kind]string{
	wire.KindUpdate: "update", wire.KindTick: "tick", wire.KindFence: "fence", wire.KindDecide: "decide",
	wire.KindEnd:      "end",
	wire.KindAddTable: "add table", wire.KindBase: "base", wire.KindPassCut: "pass cut", wire.KindRoster: "roster",
	wire.KindLife: "life",
}

// describe says what an entry is: the frames in it, or else how long it is.
func describe(entry []byte) string {
	var parts []string
	for rest := entry; len(rest) > 0; {
		var f wire.Frame
		var err error
		if rest, err = wire.Decode(rest, &f); err != nil {
			return fmt.Sprintf("%d bytes", len(entry))
		}
		name, ok := kindNames[f.Kind]
		if !ok {
			name = fmt.Sprintf("message %d", f.Kind)
		}
		clocks := fmt.Sprintf("clock %d", f.Clock)
		if f.Clocks > 1 {
			clocks = fmt.Sprintf("clocks %d to %d", f.Clock, f.Until()-1)
		}
		parts = append(parts, fmt.Sprintf("%s slot %d incarnation %d %s part %d/%d generation %d, %d bytes",
			name, f.Slot, f.Incarnation, clocks, f.Part+1, max(f.Parts, 1), f.Generation, f.PayloadBytes()))
	}
	if len(parts) == 0 {
		return "0 bytes"
	}
	return strings.Join(parts, "; ")
}

// Verify reads every record of a log, says which streams are whole, and returns the first
// damage.
func Verify(ctx context.Context, out io.Writer, p Place) error {
	i, streams, err := p.open(ctx)
	if err != nil {
		return err
	}
	var damaged error
	for _, s := range streams {
		records, entries, size := 0, 0, 0
		err := i.Records(ctx, s, func(r updatelog.Record) error {
			records, entries, size = records+1, entries+len(r.Entries), size+r.Bytes
			return nil
		})
		if err != nil && damaged == nil {
			damaged = err
		}
		if err == nil {
			fmt.Fprintf(out, "job %s shard %d: %d records, %d entries, %.1f MB: whole\n", s.Job, s.Shard, records,
				entries, float64(size)/1e6)
		} else {
			fmt.Fprintf(out, "job %s shard %d: whole for %d records\n", s.Job, s.Shard, records)
		}
	}
	return errors.Join(damaged, i.Close())
}
