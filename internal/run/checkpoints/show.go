package checkpoints

import (
	"cmp"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/protocol"
	"github.com/perdure/perdure/internal/data/checkpoint"
	"github.com/perdure/perdure/internal/run/humanize"
)

// showResult is the JSON output of Show.
type showResult struct {
	line
	Job    perdure.JobSpec     `json:"job"`
	Tables []shownTable        `json:"tables"`
	Slots  []protocol.Interval `json:"slots"`
	Clocks protocol.SlotClocks `json:"clocks,omitempty"` // of a cut by slot
	Shards []shownShard        `json:"shards"`
	unread bool                // files exist but are damaged
}

type shownTable struct {
	perdure.TableSpec
	Stored *int64 `json:"stored"` // number of rows; null if segments cannot be read
}

type shownShard struct {
	Shard perdure.ShardID `json:"shard"`
	Seq   uint64          `json:"seq"`   // updates contained in its rows; for a running checkpoint, in the newest file
	Files []shownFile     `json:"files"` // each follows the previous one, or has newer rows
	// for a readable running checkpoint: rows in no file, which start from scratch
	Initial *int64 `json:"initial,omitempty"`
}

type shownFile struct {
	File   string `json:"file"`
	Bytes  int64  `json:"bytes"`
	CRC32C string `json:"crc32c"`
	// For a readable running checkpoint: the clock at which the file was started, and the number of its rows that no
	// newer file has.
	Clock *perdure.Clock `json:"clock,omitempty"`
	Rows  *int64         `json:"rows,omitempty"`
}

// Show describes a checkpoint from its manifest, with the number of stored rows of each table. For a running checkpoint
// it reads the files to find the age of the rows.
func (f *Location) Show(out io.Writer, asJSON bool) error {
	return f.withRetries(func() (meanwhile bool, err error) { return f.show(out, asJSON) })
}

// show makes one attempt to print the chosen checkpoint. It returns meanwhile = true, and prints nothing, if the job
// deleted the checkpoint while it was read; the caller then tries again.
func (f *Location) show(out io.Writer, asJSON bool) (meanwhile bool, err error) {
	found, err := f.find()
	if err != nil {
		return false, err
	}
	k, err := f.selectOne(found)
	if err != nil {
		return false, err
	}
	if k.Err != nil {
		return false, fmt.Errorf("%s/%s%s", f.Store, k.Defects()[0], f.olderHint(&found, k))
	}
	newest := newestWhole(found.Checkpoints)
	s, unread := f.describe(k, newest >= 0 && k == &found.Checkpoints[newest])
	if unread != nil && f.isDeleted(k) {
		return true, nil
	}
	if asJSON {
		err = humanize.JSON(out, s)
	} else {
		s.print(out, f.Store.String(), f.Now)
	}
	switch {
	case err != nil:
	case len(k.Missing) > 0:
		err = fmt.Errorf("%s/%s%s", f.Store, k.Missing[0], f.olderHint(&found, k))
	case unread != nil:
		err = fmt.Errorf("%w%s", unread, f.olderHint(&found, k))
	}
	return false, err
}

// describe returns what is known about checkpoint k. newest says whether it is the newest complete one. If some of the
// files of a running checkpoint cannot be read, unread says why, and their figures are missing.
func (f *Location) describe(k *checkpoint.Info, newest bool) (s *showResult, unread error) {
	m := &k.Manifest
	s = &showResult{line: lineOf(k, newest), Job: m.Job, Slots: []protocol.Interval{}, Tables: []shownTable{}}
	s.Slots, s.Clocks = append(s.Slots, m.Slots...), m.Clocks
	rows, err := checkpoint.Rows(f.Store, *m)
	if k.Number > 0 {
		rows, err = f.shownRows(s, &k.Running)
		unread, s.unread = err, err != nil && k.IsComplete()
	}
	for i, t := range m.Tables {
		one := shownTable{TableSpec: t}
		if err == nil {
			one.Stored = &rows[i]
		}
		s.Tables = append(s.Tables, one)
	}
	for _, ref := range m.Segments {
		one := shownShard{Shard: ref.Shard, Seq: ref.Seq}
		for _, file := range append(ref.Base[:len(ref.Base):len(ref.Base)], ref.Self()) {
			one.Files = append(one.Files, fileOf(file))
		}
		s.Shards = append(s.Shards, one)
	}
	return s, unread
}

func fileOf(f checkpoint.FileRef) shownFile {
	return shownFile{File: f.File, Bytes: f.Bytes, CRC32C: fmt.Sprintf("%08x", f.CRC)}
}

// shownRows adds to s each shard of running checkpoint m, with the clock and the number of rows of each of its files.
// It returns the number of rows of each table, or the first error if a shard's files cannot be read.
func (f *Location) shownRows(s *showResult, m *checkpoint.Running) (rows []int64, err error) {
	rows = make([]int64, len(m.Tables))
	for _, shard := range m.Shards {
		one := shownShard{Shard: shard.Shard, Files: []shownFile{}}
		for _, file := range shard.Files {
			one.Files = append(one.Files, fileOf(file))
		}
		r, wrong := f.restore(m, shard.Shard)
		if wrong != nil {
			err = cmp.Or(err, wrong)
		} else {
			initial, in := r.count()
			one.Initial = &initial
			for i, seg := range r.layers.Segments {
				one.Seq = seg.Seq
				one.Files[i].Clock, one.Files[i].Rows = &seg.Cut, &in[i]
			}
			for t, p := range r.parts {
				rows[t] += int64(p.Stored())
			}
		}
		s.Shards = append(s.Shards, one)
	}
	if err != nil {
		return nil, err
	}
	return rows, nil
}

// print writes the description as text.
func (s *showResult) print(out io.Writer, dir string, now time.Time) {
	state := "complete"
	switch {
	case s.unread:
		state = "a file is damaged"
	case s.Newest:
		state = "complete, the newest"
	case !s.Whole:
		state = fmt.Sprintf("%s missing, or of the wrong length", humanize.Count(len(s.Defects), "file"))
	}
	j := &s.Job
	what := "checkpoint"
	if s.Number > 0 {
		what = "running checkpoint"
	}
	fmt.Fprintf(out, "%s of clock %d, generation %d: %s\n", what, s.Clock, s.Generation, state)
	fmt.Fprintf(out, "  in        %s\n", dir)
	fmt.Fprintf(out, "  manifest  %s\n", s.Manifest)
	fmt.Fprintf(out, "  saved     %s, %s ago\n", s.SavedAt.UTC().Format(time.RFC3339), age(now.Sub(*s.SavedAt)))
	fmt.Fprintf(out, "  job       %s (%s), seed %d\n", j.ID, j.Workload, j.Seed)
	fmt.Fprintf(out, "  started   %s, %s, %s\n", humanize.Count(j.Slots, "worker"), humanize.Count(j.Servers, "server"),
		humanize.Count(j.Shards, "shard"))
	fmt.Fprintf(out, "  under     %s, %s\n", j.Models(), j.Recovery)
	fmt.Fprintf(out, "  bytes     %s in %s\n", humanize.Bytes(*s.Bytes),
		humanize.Count(*s.Segments+*s.Follows, "segment"))
	for i, clock := range s.Clocks {
		fmt.Fprintf(out, "  slot %-4d at clock %d\n", i, clock)
	}
	s.printAges(out)
	for i, interval := range s.Slots {
		if interval != (protocol.Interval{}) {
			fmt.Fprintf(out, "  slot %-4d %s\n", i, intervalText(interval))
		}
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprint(w, "\ntable\trows\tdim\trule\tmodel\n")
	for _, t := range s.Tables {
		rows := "?"
		switch {
		case t.Stored != nil && t.Sparse:
			rows = fmt.Sprintf("%d stored", *t.Stored)
		case t.Whole:
			rows = fmt.Sprintf("%d, all on shard %d", t.Rows, t.Shard)
		case !t.Sparse:
			rows = fmt.Sprint(t.Rows)
		}
		fmt.Fprintf(w, "%s\t%s\t%d\t%s\t%s\n", t.Name, rows, t.Dim, ruleText(t.Rule), t.Consistency)
	}
	_ = w.Flush() // out keeps its own errors
	s.printShards(out)
}

// printAges writes how old the rows of a running checkpoint are.
func (s *showResult) printAges(out io.Writer) {
	if s.Number == 0 {
		return
	}
	saved, initial, ages, oldest := int64(0), int64(0), int64(0), perdure.Clock(0)
	for i := range s.Shards {
		one := &s.Shards[i]
		if one.Initial == nil {
			return
		}
		initial += *one.Initial
		for _, file := range one.Files {
			if *file.Rows > 0 {
				old := max(0, s.Clock-*file.Clock)
				saved, ages, oldest = saved+*file.Rows, ages+int64(old)**file.Rows, max(oldest, old)
			}
		}
	}
	fmt.Fprintf(out, "  rows      %d saved, %.1f clocks old on average, and %d at most\n", saved,
		float64(ages)/float64(max(1, saved)), oldest)
	if initial > 0 {
		fmt.Fprintf(out, "            %d never saved, which start from scratch\n", initial)
	}
}

// printShards lists the files of each shard, newest first.
func (s *showResult) printShards(out io.Writer) {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	if s.Number > 0 {
		s.printRows(w)
		return
	}
	fmt.Fprint(w, "\nshard\tupdates\tbytes\tcrc32c\tfile\n")
	for _, one := range s.Shards {
		for i := len(one.Files) - 1; i >= 0; i-- {
			file := one.Files[i]
			if i == len(one.Files)-1 {
				fmt.Fprintf(w, "%d\t%d\t", one.Shard, one.Seq)
			} else {
				fmt.Fprint(w, "\tfollows\t")
			}
			fmt.Fprintf(w, "%s\t%s\t%s\n", humanize.Bytes(file.Bytes), file.CRC32C, file.File)
		}
	}
	_ = w.Flush() // out keeps its own errors
}

// intervalText describes the membership interval of a slot.
func intervalText(s protocol.Interval) string {
	if s.Until == 0 {
		return fmt.Sprintf("from clock %d on", s.From)
	}
	return fmt.Sprintf("from clock %d, up to clock %d", s.From, s.Until)
}

func ruleText(r perdure.Rule) string {
	if r.Rate == 0 {
		return string(r.Kind)
	}
	return fmt.Sprintf("%s, rate %g", r.Kind, r.Rate)
}

// printRows lists the files of each shard of a running checkpoint, newest first, and the number of current rows in
// each.
func (s *showResult) printRows(w *tabwriter.Writer) {
	fmt.Fprint(w, "\nshard\tclock\trows\tbytes\tcrc32c\tfile\n")
	for _, one := range s.Shards {
		shard := fmt.Sprint(one.Shard)
		for i := len(one.Files) - 1; i >= 0; i-- {
			file, clock, rows := one.Files[i], "?", "?"
			if file.Rows != nil {
				clock, rows = fmt.Sprint(*file.Clock), fmt.Sprint(*file.Rows)
			}
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", shard, clock, rows, humanize.Bytes(file.Bytes), file.CRC32C,
				file.File)
			shard = ""
		}
		if one.Initial != nil && *one.Initial > 0 || len(one.Files) == 0 {
			rows := "?"
			if one.Initial != nil {
				rows = fmt.Sprint(*one.Initial)
			}
			fmt.Fprintf(w, "%s\tnever\t%s\n", shard, rows)
		}
	}
	_ = w.Flush() // out keeps its own errors
}
