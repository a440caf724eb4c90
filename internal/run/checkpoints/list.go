package checkpoints

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/checkpoint"
	"github.com/perdure/perdure/internal/run/humanize"
)

// line is the JSON form of a checkpoint in a list.
type line struct {
	Clock      perdure.Clock      `json:"clock"` // -1: unknown
	Generation perdure.Generation `json:"generation"`
	Number     uint64             `json:"number"` // of a running checkpoint; 0: checkpoint of one clock
	Manifest   string             `json:"manifest"`
	Newest     bool               `json:"newest"` // among the whole ones
	Whole      bool               `json:"whole"`  // judged by names and lengths of files
	Defects    []string           `json:"defects"`
	SavedAt    *time.Time         `json:"saved_at"` // from here on: null if the manifest is unusable
	Bytes      *int64             `json:"bytes"`
	Strategy   *perdure.Recovery  `json:"strategy"`
	Segments   *int               `json:"segments"` // one for each shard
	Follows    *int               `json:"follows"`  // earlier segments that these depend on
	// For a running checkpoint with readable files: the number of clocks between the oldest file and the checkpoint. No
	// saved row is older.
	Oldest *perdure.Clock `json:"oldest"`
}

// list is the JSON output of List.
type list struct {
	Folder      string      `json:"folder"`
	Job         string      `json:"job"`
	Workload    string      `json:"workload"`
	Checkpoints []line      `json:"checkpoints"` // newest first
	Loose       []strayFile `json:"loose"`       // files of no checkpoint
}

type strayFile struct {
	File  string `json:"file"`
	Bytes int64  `json:"bytes"`
}

// List lists the checkpoints of a folder, newest first. It does not read segments: a checkpoint counts as whole if its
// files exist with their full length. For running checkpoints it reads the files' headers to find their clocks. It
// returns the first defect found.
func (f *Location) List(out io.Writer, asJSON bool) error {
	if f.Clock != nil {
		return perdure.Usagef("ls lists all checkpoints; remove @%d, or use perdure checkpoint show", *f.Clock)
	}
	found, err := f.find()
	if err != nil {
		return err
	}
	l := list{Folder: f.Store.String(), Checkpoints: []line{}, Loose: []strayFile{}}
	if j := job(found.Checkpoints); j != nil {
		l.Job, l.Workload = j.ID, j.Workload
	}
	newest, damaged, clocks := newestWhole(found.Checkpoints), error(nil), f.ages()
	for i := range found.Checkpoints {
		k := &found.Checkpoints[i]
		one := lineOf(k, i == newest)
		one.Oldest = clocks.oldest(k)
		l.Checkpoints = append(l.Checkpoints, one)
		if wrong := k.Defects(); len(wrong) > 0 && damaged == nil {
			damaged = fmt.Errorf("%s/%s%s", f.Store, wrong[0], f.olderHint(&found, k))
		}
	}
	for _, file := range found.Unreferenced {
		l.Loose = append(l.Loose, strayFile{file.File, file.Bytes})
	}
	if asJSON {
		if err := humanize.JSON(out, l); err != nil {
			return err
		}
		return damaged
	}
	l.print(out, f.Now)
	return damaged
}

func lineOf(k *checkpoint.Info, newest bool) line {
	l := line{
		Clock:      k.Cut,
		Generation: k.Generation,
		Number:     k.Number,
		Manifest:   k.File,
		Newest:     newest,
		Whole:      k.IsComplete(),
		Defects:    []string{},
	}
	for _, d := range k.Defects() {
		l.Defects = append(l.Defects, d.String())
	}
	if k.Err != nil {
		return l
	}
	m := &k.Manifest
	files := k.Files()
	bytes, segments := int64(0), len(m.Segments)
	if k.Number > 0 {
		segments = len(files)
	}
	for _, file := range files {
		bytes += file.Bytes
	}
	follows := len(files) - segments
	l.SavedAt, l.Bytes, l.Strategy, l.Segments, l.Follows = &m.SavedAt, &bytes, &m.Job.Recovery, &segments, &follows
	return l
}

// print writes a table.
func (l *list) print(out io.Writer, now time.Time) {
	fmt.Fprintln(out, l.Folder)
	if l.Job != "" {
		fmt.Fprintf(out, "job %s (%s)\n", l.Job, l.Workload)
	}
	running := slices.ContainsFunc(l.Checkpoints, func(c line) bool { return c.Number > 0 })
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	segments := "segments"
	if running {
		segments = "files\told"
	}
	fmt.Fprintf(w, "clock\tgen\tage\tbytes\t%s\tstrategy\t  state\n", segments)
	for i := range l.Checkpoints {
		c := &l.Checkpoints[i]
		text := []string{clockText(c.Clock), fmt.Sprint(c.Generation), "-", "-", "-", "-", "-"}
		if c.SavedAt != nil {
			text = append(text[:2], age(now.Sub(*c.SavedAt)), humanize.Bytes(*c.Bytes), c.files(), c.oldest(),
				c.Strategy.String())
		}
		if !running {
			text = slices.Delete(text, 5, 6)
		}
		fmt.Fprintf(w, "%s\t  %s\n", strings.Join(text, "\t"), c.state())
	}
	_ = w.Flush() // out keeps its own errors
	loose := int64(0)
	for _, file := range l.Loose {
		loose += file.Bytes
	}
	if n := len(l.Loose); n > 0 {
		fmt.Fprintf(out, "not part of a checkpoint, but being written or left over: %s (%s)\n",
			humanize.Count(n, "file"), humanize.Bytes(loose))
	}
}

func (c *line) state() string {
	switch {
	case c.Newest:
		return "complete, newest"
	case c.SavedAt == nil:
		return "cannot be used"
	case !c.Whole:
		return fmt.Sprintf("lacks %d of %s", len(c.Defects), humanize.Count(*c.Segments+*c.Follows, "file"))
	}
	return "complete"
}

func (c *line) files() string {
	if *c.Follows > 0 {
		return fmt.Sprintf("%d+%d", *c.Segments, *c.Follows)
	}
	return fmt.Sprint(*c.Segments)
}

// oldest formats the age of the oldest file.
func (c *line) oldest() string {
	if c.Oldest == nil {
		return "-"
	}
	return fmt.Sprint(*c.Oldest)
}
