package checkpoints

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/updatelog"
	"github.com/perdure/perdure/internal/proc/keys"
	"github.com/perdure/perdure/internal/proc/logauth"
	"github.com/perdure/perdure/internal/proc/logserver"
	"github.com/perdure/perdure/internal/run/humanize"
	"github.com/perdure/perdure/internal/run/settings"
)

// DumpLog and VerifyLog do what the NATS CLI cannot: they decode the records of an update log, and read a log's
// directory whether a process serves it or not. For a run's own log the settings and snapshots say which records must
// be there, so missing ones are reported as damage.
//
// Both print what they find and return the first damage as an error. Only RemoveLogOf changes a log. All functions are
// safe for concurrent use.

// LogLocation is the location of a log to inspect: a directory, or an address with credentials.
type LogLocation struct {
	Dir       string // a run's or a log's directory
	NATS      string
	Creds, CA string
	Cert, Key string
	Keys      string // directory of keys for a log that requires keys; "": the run's keys, if any
	Job       string // only streams of this job; "": all
}

// LogPatience limits how long an inspection waits for a log's answer.
const LogPatience = 5 * time.Second

// open opens the log and lists its streams, including those that should exist but do not.
func (p *LogLocation) open(ctx context.Context) (i *updatelog.Inspector, streams []updatelog.Stream, err error) {
	if err := settings.CheckPair(p.Cert, p.Key); err != nil {
		return nil, nil, err
	}
	var known *expectedLog
	switch {
	case (p.Dir == "") == (p.NATS == ""):
		return nil, nil, perdure.Usagef("no log given; specify a run's directory or an address nats://HOST:PORT")
	case p.NATS != "":
		soon, cancel := context.WithTimeout(ctx, LogPatience)
		defer cancel()
		i, err = p.inspect(soon)
	default:
		dir := p.Dir
		if _, err := os.Stat(settings.LogFolder(dir)); err == nil {
			dir = settings.LogFolder(dir)
			if known, err = readExpectedLog(p.Dir); err != nil {
				return nil, nil, err
			}
		}
		var access *updatelog.Access
		if access, err = p.accessTo(dir); err == nil {
			i, err = logserver.InspectDir(ctx, dir, LogPatience, updatelog.DialOptions{Access: access})
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

// inspect opens the log at an address with an operator's rights.
func (p *LogLocation) inspect(ctx context.Context) (*updatelog.Inspector, error) {
	o := updatelog.DialOptions{Credentials: p.Creds, CA: p.CA, Cert: p.Cert, Key: p.Key}
	if updatelog.RequiresKeys(p.NATS) {
		var err error
		if o.Access, err = logauth.Open(p.Keys, keys.Operator); err != nil {
			return nil, err
		}
	}
	return updatelog.Inspect(ctx, p.NATS, o)
}

// accessTo returns the credentials for the log in a directory, if a process serves it and it requires keys.
func (p *LogLocation) accessTo(dir string) (*updatelog.Access, error) {
	url, err := updatelog.ReadURL(dir)
	if err != nil || !updatelog.RequiresKeys(url) {
		return nil, nil // opening the log reports the reason
	}
	if p.Keys != "" {
		return logauth.Open(p.Keys, keys.Operator)
	}
	s, err := settings.Read(filepath.Join(p.Dir, "run.json"))
	if err != nil {
		return nil, nil // not a run's directory; a log that requires keys will say so
	}
	access, err := s.LogAccess(keys.Operator)
	if err != nil {
		return nil, nil // the keys may be on another machine; a log that requires keys will say so
	}
	return access, nil
}

// streams lists the requested streams of a log.
func (p *LogLocation) streams(
	ctx context.Context,
	i *updatelog.Inspector,
	known *expectedLog,
) ([]updatelog.Stream, error) {
	ctx, cancel := context.WithTimeout(ctx, LogPatience)
	defer cancel()
	all, err := i.Streams(ctx)
	if err == nil && known != nil {
		all, err = known.check(all)
	}
	some := slices.DeleteFunc(all, func(s updatelog.Stream) bool { return p.Job != "" && s.Job != p.Job })
	if err == nil && len(some) == 0 {
		err = fmt.Errorf("this log has no streams for %s", cmp.Or(p.Job, "any job"))
	}
	return some, err
}

// streamsOf returns the streams of a job, and overwrites the list.
func streamsOf(streams []updatelog.Stream, job string) []updatelog.Stream {
	return slices.DeleteFunc(streams, func(s updatelog.Stream) bool { return s.Job != job })
}

// logVerifyResult is the JSON output of VerifyLog for a stream.
type logVerifyResult struct {
	Job     string `json:"job"`
	Shard   int    `json:"shard"`
	Whole   bool   `json:"whole"`
	Records int    `json:"records"` // valid ones, up to the first damage
	Entries int    `json:"entries"`
	Bytes   int    `json:"bytes"`
	Damage  string `json:"damage,omitempty"`
}

// VerifyLog reads every record of a log, reports which streams are whole, and returns the first damage.
func VerifyLog(ctx context.Context, out io.Writer, p LogLocation, asJSON bool) error {
	i, streams, err := p.open(ctx)
	if err != nil {
		return err
	}
	tell := humanize.NewPrinter(out, asJSON)
	var damaged error
	all := []logVerifyResult{}
	for _, s := range streams {
		v := logVerifyResult{Job: s.Job, Shard: s.Shard}
		err := i.Records(ctx, s, func(r updatelog.Record) error {
			v.Records, v.Entries, v.Bytes = v.Records+1, v.Entries+len(r.Entries), v.Bytes+r.Bytes
			return nil
		})
		if v.Whole = err == nil; v.Whole {
			tell.Line("job %s shard %d: %d records, %d entries, %.1f MB: intact", s.Job, s.Shard, v.Records,
				v.Entries, float64(v.Bytes)/1e6)
		} else {
			damaged, v.Damage = cmp.Or(damaged, err), humanize.ErrorText(err)
			tell.Line("job %s shard %d: damaged after %d records", s.Job, s.Shard, v.Records)
		}
		all = append(all, v)
	}
	return errors.Join(tell.End(all), damaged, i.Close())
}
