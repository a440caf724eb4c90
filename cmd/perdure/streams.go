package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/updatelog"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/run/role"
	"github.com/perdure/perdure/internal/run/settings"
)

type logCmds struct {
	Serve  logServeCmd  `cmd:"" default:"withargs" help:"Serve update logs from a folder (the default)."`
	Ls     logLsCmd     `cmd:"" help:"List the streams of a log: one for each shard of a job; say what is damaged, as far as that shows."`
	Dump   logDumpCmd   `cmd:"" help:"Show the records of one shard's stream."`
	Verify logVerifyCmd `cmd:"" help:"Read every record of a log; say where the first damage is."`
	Rm     logRmCmd     `cmd:"" help:"Remove the streams of a job that has ended, which it cannot go on without, so that others have their room. The log must be served."`
}

// logServeCmd is the log as a process of its own, for jobs on many machines.
type logServeCmd struct {
	Dir    string `required:"" help:"The log's folder; it is made where it is not there." placeholder:"DIR" type:"path"`
	Listen string `help:"Where to listen (default ${default}: a free port, after a restart the same)." default:"127.0.0.1:0" placeholder:"HOST:PORT"`
	Sync   string `name:"log-sync" help:"When an update counts as in the log: interval (the system has it: it survives any process's death, but not the machine's) or always (it is on the disk) (default ${default})." default:"interval" enum:"interval,always" placeholder:"WHEN"`
	MB     int    `name:"log-mb" help:"What all streams take on the disk at most, in MiB (default three quarters of what is free)." placeholder:"N"`

	Inherits bool `hidden:"" help:"It inherits its secret, of the run that it belongs to."`
}

func (c *logServeCmd) Run(ctx context.Context) error {
	return (&role.Log{
		Dir: c.Dir, Listen: c.Listen, Sync: c.Sync, MB: c.MB, Inherits: c.Inherits, Out: stdout, Log: roleLog(),
	}).Run(ctx)
}

// logPlace is where a log is that somebody looks into.
type logPlace struct {
	Dir   string `arg:"" optional:"" help:"A run's folder, or a log's; its process may run or not." type:"path"`
	NATS  string `name:"nats" help:"The log at that address instead, for example nats://log.example:4222." placeholder:"URL"`
	Creds string `name:"nats-creds" help:"Credentials for --nats: a file as nsc makes it." placeholder:"FILE" type:"path"`
	CA    string `name:"nats-ca" help:"The certificate authority that vouches for --nats." placeholder:"FILE" type:"path"`
	Cert  string `name:"nats-cert" help:"Your own certificate for --nats." placeholder:"FILE" type:"path"`
	Key   string `name:"nats-key" help:"The key of --nats-cert." placeholder:"FILE" type:"path"`
	Job   string `help:"Only this job's streams (default all; of rm: the run's whose folder is named)." placeholder:"ID"`
}

// logPatience is how long a log may take to answer somebody who looks into it.
const logPatience = 5 * time.Second

// open opens the log and lists its streams, and those that should be there.
func (p *logPlace) open(ctx context.Context) (i *updatelog.Inspector, streams []updatelog.Stream, err error) {
	if err := settings.CheckPair(p.Cert, p.Key); err != nil {
		return nil, nil, err
	}
	var known *knownLog
	switch {
	case (p.Dir == "") == (p.NATS == ""):
		return nil, nil, fmt.Errorf("%w: which log? name a run's folder, or write --nats URL", perdure.ErrUsage)
	case p.NATS != "":
		soon, cancel := context.WithTimeout(ctx, logPatience)
		defer cancel()
		i, err = updatelog.Inspect(soon, p.NATS, updatelog.DialOptions{Credentials: p.Creds, CA: p.CA, Cert: p.Cert, Key: p.Key})
	default:
		dir := p.Dir
		if _, err := os.Stat(settings.LogFolder(dir)); err == nil {
			dir = settings.LogFolder(dir)
			if known, err = knowLog(p.Dir); err != nil {
				return nil, nil, err
			}
		}
		i, err = updatelog.InspectFolder(ctx, dir, logPatience)
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
func (p *logPlace) streams(ctx context.Context, i *updatelog.Inspector, known *knownLog) ([]updatelog.Stream, error) {
	ctx, cancel := context.WithTimeout(ctx, logPatience)
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

type logLsCmd struct{ logPlace }

func (c *logLsCmd) Run(ctx context.Context) error {
	i, streams, err := c.open(ctx)
	if err != nil {
		return err
	}
	fmt.Fprintf(stdout, "%-32s %5s %10s %10s %10s %10s\n", "job", "shard", "first", "last", "records", "MB")
	var damaged error
	for _, s := range streams {
		note := ""
		if s.Damage != nil {
			note, damaged = "  damaged", cmp.Or(damaged, s.Damage)
		}
		fmt.Fprintf(stdout, "%-32s %5d %10s %10s %10d %10.1f%s\n", s.Job, s.Shard, position(s, s.First), position(s, s.Next-1), s.Records, float64(s.Bytes)/1e6, note)
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

type logDumpCmd struct {
	logPlace
	Shard int                `required:"" help:"The shard." placeholder:"N"`
	From  updatelog.Position `help:"The first position to show (default the first there is)." placeholder:"N"`
	Most  *int               `name:"most" help:"How many records to show, 1 or more (default all)." placeholder:"N"`
}

func (c *logDumpCmd) Run(ctx context.Context) error {
	if c.Most != nil && *c.Most < 1 {
		return fmt.Errorf("%w: --most %d; choose 1 or more, or leave it out to see all", perdure.ErrUsage, *c.Most)
	}
	i, streams, err := c.open(ctx)
	if err != nil {
		return err
	}
	streams = only(streams, func(s updatelog.Stream) bool { return s.Shard == c.Shard })
	switch {
	case len(streams) == 0:
		err = fmt.Errorf("%w: there is no shard %d in this log; see perdure log ls", perdure.ErrUsage, c.Shard)
	case len(streams) > 1:
		err = fmt.Errorf("%w: %d jobs have a shard %d in this log; choose one with --job", perdure.ErrUsage, len(streams), c.Shard)
	default:
		err = c.dump(ctx, i, streams[0])
	}
	return errors.Join(err, i.Close())
}

var errEnoughShown = errors.New("enough was shown")

func (c *logDumpCmd) dump(ctx context.Context, i *updatelog.Inspector, s updatelog.Stream) error {
	shown := 0
	err := i.Records(ctx, s, func(r updatelog.Record) error {
		if r.Position < c.From {
			return nil
		}
		if c.Most != nil && shown == *c.Most {
			return errEnoughShown
		}
		shown++
		fmt.Fprintf(stdout, "%d %s producer %016x group %d part %d/%d %d bytes\n", r.Position, r.Stored.UTC().Format(time.RFC3339Nano), r.Producer, r.Group, r.Index+1, r.Count, r.Bytes)
		for _, e := range r.Entries {
			fmt.Fprintf(stdout, "    %s; resume from %d\n", describe(e.Payload), e.Resume)
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
	wire.KindUpdate: "update", wire.KindTick: "tick", wire.KindFence: "fence", wire.KindDecide: "decide", wire.KindEnd: "end",
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

type logVerifyCmd struct{ logPlace }

func (c *logVerifyCmd) Run(ctx context.Context) error {
	i, streams, err := c.open(ctx)
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
			fmt.Fprintf(stdout, "job %s shard %d: %d records, %d entries, %.1f MB: whole\n", s.Job, s.Shard, records, entries, float64(size)/1e6)
		} else {
			fmt.Fprintf(stdout, "job %s shard %d: whole for %d records\n", s.Job, s.Shard, records)
		}
	}
	return errors.Join(damaged, i.Close())
}
