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
	"path/filepath"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/updatelog"
	"github.com/perdure/perdure/internal/data/updatelog/gate"
	"github.com/perdure/perdure/internal/proc/keys"
	"github.com/perdure/perdure/internal/proc/logkeys"
	"github.com/perdure/perdure/internal/run/plain"
	"github.com/perdure/perdure/internal/run/settings"
)

// Place is where a log is that somebody looks into: at a folder, or at an address with what it
// takes to be let in.
type Place struct {
	Dir       string // a run's folder, or a log's
	NATS      string
	Creds, CA string
	Cert, Key string
	Keys      string // the folder of what is shown to a log that asks for keys; "": the run's, where it has some
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
		i, err = p.inspect(soon, keys.Operator)
	default:
		dir := p.Dir
		if _, err := os.Stat(settings.LogFolder(dir)); err == nil {
			dir = settings.LogFolder(dir)
			if known, err = knowLog(p.Dir); err != nil {
				return nil, nil, err
			}
		}
		var access *gate.Access
		if access, err = p.accessTo(dir, keys.Operator); err == nil {
			i, err = updatelog.InspectFolder(ctx, dir, Patience, updatelog.DialOptions{Access: access})
		}
	}
	if err != nil {
		return nil, nil, err
	}
	if streams, err = p.streams(ctx, i, known); err != nil {
		return nil, nil, errors.Join(err, i.Close())
	}
	return i, streams, nil
}

// inspect opens the log at an address, for what a role may do.
func (p *Place) inspect(ctx context.Context, role keys.Role) (*updatelog.Inspector, error) {
	o := updatelog.DialOptions{Credentials: p.Creds, CA: p.CA, Cert: p.Cert, Key: p.Key}
	if gate.Asks(p.NATS) {
		var err error
		if o.Access, err = logkeys.Open(p.Keys, role); err != nil {
			return nil, err
		}
	}
	return updatelog.Inspect(ctx, p.NATS, o)
}

// accessTo is what is shown to the log of a folder, if somebody serves it and it asks for keys.
func (p *Place) accessTo(dir string, role keys.Role) (*gate.Access, error) {
	url, err := updatelog.ReadURL(dir)
	if err != nil || !gate.Asks(url) {
		return nil, nil // who opens it says why
	}
	if p.Keys != "" {
		return logkeys.Open(p.Keys, role)
	}
	s, err := settings.Read(filepath.Join(p.Dir, "run.json"))
	if err != nil {
		return nil, nil // it is no run's: if it is served it says that it asks for keys
	}
	access, err := s.LogAccess("", role)
	if err != nil {
		return nil, nil // likewise, if they are on another machine
	}
	return access, nil
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

// stream is one as List shows it, for programs.
type stream struct {
	Job     string              `json:"job"`
	Shard   int                 `json:"shard"`
	First   *updatelog.Position `json:"first"` // nil: it has no record
	Last    *updatelog.Position `json:"last"`  // likewise
	Records uint64              `json:"records"`
	Bytes   uint64              `json:"bytes"`
	Damage  string              `json:"damage,omitempty"`
}

// List lists the streams of a log: one for each shard of a job. It says what is damaged, as
// far as that shows, and returns the first damage.
func List(ctx context.Context, out io.Writer, p Place, asJSON bool) error {
	i, streams, err := p.open(ctx)
	if err != nil {
		return err
	}
	tell := plain.Tell(out, asJSON)
	tell.Line("%-32s %5s %10s %10s %10s %10s", "job", "shard", "first", "last", "records", "MB")
	var damaged error
	all := []stream{}
	for _, s := range streams {
		one := stream{Job: s.Job, Shard: s.Shard, Records: s.Records, Bytes: s.Bytes}
		if s.Records > 0 {
			one.First, one.Last = new(s.First), new(s.Next-1)
		}
		note := ""
		if s.Damage != nil {
			note, damaged, one.Damage = "  damaged", cmp.Or(damaged, s.Damage), plain.Text(s.Damage)
		}
		all = append(all, one)
		tell.Line("%-32s %5d %10s %10s %10d %10.1f%s", s.Job, s.Shard, position(s, s.First),
			position(s, s.Next-1), s.Records, float64(s.Bytes)/1e6, note)
	}
	return errors.Join(tell.End(all), damaged, i.Close())
}

// position is a position in a stream; "-" where it has no record.
func position(s updatelog.Stream, p updatelog.Position) string {
	if s.Records == 0 {
		return "-"
	}
	return fmt.Sprint(p)
}

// verified is what Verify has found of a stream, for programs.
type verified struct {
	Job     string `json:"job"`
	Shard   int    `json:"shard"`
	Whole   bool   `json:"whole"`
	Records int    `json:"records"` // that are whole, up to the first damage
	Entries int    `json:"entries"`
	Bytes   int    `json:"bytes"`
	Damage  string `json:"damage,omitempty"`
}

// Verify reads every record of a log, says which streams are whole, and returns the first
// damage.
func Verify(ctx context.Context, out io.Writer, p Place, asJSON bool) error {
	i, streams, err := p.open(ctx)
	if err != nil {
		return err
	}
	tell := plain.Tell(out, asJSON)
	var damaged error
	all := []verified{}
	for _, s := range streams {
		v := verified{Job: s.Job, Shard: s.Shard}
		err := i.Records(ctx, s, func(r updatelog.Record) error {
			v.Records, v.Entries, v.Bytes = v.Records+1, v.Entries+len(r.Entries), v.Bytes+r.Bytes
			return nil
		})
		if v.Whole = err == nil; v.Whole {
			tell.Line("job %s shard %d: %d records, %d entries, %.1f MB: whole", s.Job, s.Shard, v.Records,
				v.Entries, float64(v.Bytes)/1e6)
		} else {
			damaged, v.Damage = cmp.Or(damaged, err), plain.Text(err)
			tell.Line("job %s shard %d: whole for %d records", s.Job, s.Shard, v.Records)
		}
		all = append(all, v)
	}
	return errors.Join(tell.End(all), damaged, i.Close())
}
