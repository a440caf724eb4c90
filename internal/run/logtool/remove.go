package logtool

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/updatelog"
	"github.com/perdure/perdure/internal/proc/keys"
	"github.com/perdure/perdure/internal/run/plain"
	"github.com/perdure/perdure/internal/run/reach"
	"github.com/perdure/perdure/internal/run/settings"
)

// restPatience is for how long nobody may have used the streams of a job that has ended.
const restPatience = 10 * time.Second

// Remove removes the streams of a job, which cannot go on without them; of one that seems to
// run only by force. The log must be served.
func Remove(ctx context.Context, out io.Writer, p Place, force, asJSON bool) error {
	ctx, cancel := context.WithTimeout(ctx, Patience)
	defer cancel()
	r := remover{Place: p, force: force}
	i, err := r.openServed(ctx)
	if err != nil {
		return err
	}
	return errors.Join(r.remove(ctx, plain.Tell(out, asJSON), i), i.Close())
}

// remover removes the streams of one job.
type remover struct {
	Place
	force bool
}

// openServed opens the log, of which somebody must serve it, and finds out which job is meant.
func (c *remover) openServed(ctx context.Context) (*updatelog.Inspector, error) {
	switch err := settings.CheckPair(c.Cert, c.Key); {
	case err != nil:
		return nil, err
	case (c.Dir == "") == (c.NATS == ""):
		return nil, fmt.Errorf("%w: which log? name a run's folder, or a log's that is served, or write "+
			"nats://HOST:PORT", perdure.ErrUsage)
	case c.NATS != "":
		return c.inspect(ctx, keys.Coordinator)
	}
	s, err := settings.Read(filepath.Join(c.Dir, "run.json"))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return c.openFolder(ctx)
	case err != nil:
		return nil, err
	case s.Log == nil:
		return nil, fmt.Errorf("%w: the run in %s has no update log; only those under stateless have", perdure.ErrUsage,
			c.Dir)
	case c.Job != "" && c.Job != s.Job.ID:
		return nil, fmt.Errorf("%w: %s is the folder of job %s, not of %s; leave --job out, or write "+
			"nats://HOST:PORT, where that job's log is", perdure.ErrUsage, c.Dir, s.Job.ID, c.Job)
	}
	c.Job = s.Job.ID
	if err := c.ended(ctx); err != nil {
		return nil, err
	}
	if s.HasOwnLog() {
		return c.openFolder(ctx)
	}
	return inspect(ctx, &s, c.Keys, keys.Coordinator)
}

// ended refuses to take the log from a run whose coordinator answers.
func (c *remover) ended(ctx context.Context) error {
	client, _, err := reach.Control("", c.Dir, "", "")
	if err != nil || c.force {
		return nil // it never began, or that does not matter
	}
	ctx, cancel := context.WithTimeout(ctx, Patience/4)
	defer cancel()
	if status, err := client.Status(ctx); err != nil || status.Job != c.Job {
		return nil // whoever is alive without it uses the streams
	}
	return fmt.Errorf("job %s still runs, and cannot go on without its log; end it with perdure stop --run %s, or "+
		"write --force", c.Job, c.Dir)
}

// openFolder opens the log of a folder through the process that serves it.
func (c *remover) openFolder(ctx context.Context) (*updatelog.Inspector, error) {
	dir, alone := c.Dir, false
	if _, err := os.Stat(settings.LogFolder(dir)); err == nil {
		dir, alone = settings.LogFolder(dir), true
	}
	url, err := updatelog.ReadURL(dir)
	if err != nil {
		return nil, err
	}
	soon, cancel := context.WithTimeout(ctx, Patience/4) // it is on this machine
	defer cancel()
	access, err := c.accessTo(dir, keys.Coordinator)
	if err != nil {
		return nil, err
	}
	i, err := updatelog.Inspect(soon, url, updatelog.DialOptions{Access: access})
	switch {
	case !errors.Is(err, updatelog.ErrAway):
		return i, err
	case alone:
		return nil, fmt.Errorf("nobody serves the log in %s, which is of that run alone; delete that folder", dir)
	}
	return nil, fmt.Errorf("nobody serves the log in %s; start perdure log --dir %s, and then remove the job's streams",
		dir, dir)
}

// gone is what was removed of a job's streams, for programs.
type gone struct {
	Job      string `json:"job"`
	Streams  int    `json:"streams"` // that it had
	Removed  int    `json:"removed"`
	Bytes    uint64 `json:"bytes"`
	Promised int64  `json:"promised_bytes"` // that they might have come to take: room for others now
}

// remove removes the job's streams unless it seems to run.
func (c *remover) remove(ctx context.Context, tell *plain.Teller, i *updatelog.Inspector) error {
	all, err := i.Streams(ctx)
	if err != nil {
		return err
	}
	streams := streamsOf(all, c.Job)
	switch {
	case len(all) == 0:
		return errors.New("there are no streams of any job in this log")
	case c.Job == "":
		return fmt.Errorf("%w: which job? write --job ID; there are %s", perdure.ErrUsage, jobs(all))
	case len(streams) == 0:
		return fmt.Errorf("there are no streams of %s in this log; there are those of %s", c.Job, jobs(all))
	}
	if !c.force {
		how, err := i.InUse(ctx, streams, restPatience)
		if err != nil {
			return err
		}
		if how != "" {
			return fmt.Errorf("job %s seems to run, and cannot go on without its log: %s; end it, and wait %s, or "+
				"write --force", c.Job, how, restPatience)
		}
	}
	removed, err := i.Remove(ctx, streams)
	if err != nil && removed.Streams == 0 {
		return err
	}
	tell.Line("%s", removedLine(c.Job, len(streams), removed))
	return errors.Join(err, tell.End(gone{c.Job, len(streams), removed.Streams, removed.Bytes, removed.Promised}))
}

// removedLine says what was removed of a job's streams, and what that means.
func removedLine(job string, of int, r updatelog.Removed) string {
	room := ""
	if r.Promised > 0 {
		room = fmt.Sprintf("; %d MiB of the log, which it might have come to take, are free for others", r.Promised>>20)
	}
	return fmt.Sprintf("removed %d of %d streams of job %s with %.1f MB of updates%s; if it was not done, it cannot "+
		"go on", r.Streams, of, job, float64(r.Bytes)/1e6, room)
}

// jobs lists the jobs that have streams.
func jobs(streams []updatelog.Stream) string {
	var ids []string
	for _, s := range streams {
		ids = append(ids, s.Job)
	}
	slices.Sort(ids)
	return strings.Join(slices.Compact(ids), ", ")
}
