package checkpoints

import (
	"cmp"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/words"
	"github.com/perdure/perdure/internal/data/checkpoint"
	"github.com/perdure/perdure/internal/run/plain"
)

// shown is what Show writes for programs.
type shown struct {
	line
	Job    perdure.JobSpec `json:"job"`
	Tables []shownTable    `json:"tables"`
	Slots  []words.Span    `json:"slots"`
	Shards []shownShard    `json:"shards"`
	unread bool            // files are damaged that are there, as reading them tells
}

type shownTable struct {
	perdure.TableSpec
	Stored *int64 `json:"stored"` // rows; null where segments cannot be read
}

type shownShard struct {
	Shard perdure.ShardID `json:"shard"`
	Seq   uint64          `json:"seq"`   // updates that its rows contain; of a running checkpoint the newest file's
	Files []shownFile     `json:"files"` // each but the first follows the one before, or has newer rows
	// of a running checkpoint that can be read: rows that are in no file, and begin again
	Initial *int64 `json:"initial,omitempty"`
}

type shownFile struct {
	File   string `json:"file"`
	Bytes  int64  `json:"bytes"`
	CRC32C string `json:"crc32c"`
	// Of a running checkpoint that can be read: where training was when the file was begun, and how
	// many rows it has that no newer one has.
	Clock *perdure.Clock `json:"clock,omitempty"`
	Rows  *int64         `json:"rows,omitempty"`
}

// Show says what a checkpoint's manifest says, and of each table how many rows are stored. Of a
// running one it reads the files: they say how old the rows are.
func (f *Folder) Show(out io.Writer, asJSON bool) error {
	return f.retried(func() (meanwhile bool, err error) { return f.show(out, asJSON) })
}

// show says it once; meanwhile says that the job deleted the checkpoint while it was read.
func (f *Folder) show(out io.Writer, asJSON bool) (meanwhile bool, err error) {
	found, err := f.look()
	if err != nil {
		return false, err
	}
	k, err := f.one(found)
	if err != nil {
		return false, err
	}
	if k.Err != nil {
		return false, fmt.Errorf("%s/%s%s", f.Store, k.Defects()[0], f.offer(&found, k))
	}
	newest := newestWhole(found.Kept)
	s, unread := f.shown(k, newest >= 0 && k == &found.Kept[newest])
	if unread != nil && f.gone(k) {
		return true, nil
	}
	if asJSON {
		err = plain.JSON(out, s)
	} else {
		s.print(out, f.Store.String(), f.Now)
	}
	switch {
	case err != nil:
	case len(k.Lacks) > 0:
		err = fmt.Errorf("%s/%s%s", f.Store, k.Lacks[0], f.offer(&found, k))
	case unread != nil:
		err = fmt.Errorf("%w%s", unread, f.offer(&found, k))
	}
	return false, err
}

// shown describes a checkpoint. Its error says why something is not known that files say.
func (f *Folder) shown(k *checkpoint.Kept, newest bool) (s *shown, unread error) {
	m := &k.Manifest
	s = &shown{line: lineOf(k, newest), Job: m.Job, Slots: []words.Span{}, Tables: []shownTable{}}
	s.Slots = append(s.Slots, m.Slots...)
	rows, err := checkpoint.Rows(f.Store, *m)
	if k.Number > 0 {
		rows, err = f.shownRows(s, &k.Running)
		unread, s.unread = err, err != nil && k.Whole()
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

// shownRows adds the shards of a running checkpoint, and how old their rows are. It returns how
// many rows its tables have.
func (f *Folder) shownRows(s *shown, m *checkpoint.Running) (rows []int64, err error) {
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

// print says it in words, for people.
func (s *shown) print(out io.Writer, dir string, now time.Time) {
	state := "whole"
	switch {
	case s.unread:
		state = "a file is damaged"
	case s.Newest:
		state = "whole, the newest"
	case !s.Whole:
		state = fmt.Sprintf("%s missing, or not of their length", plain.Count(len(s.Defects), "file"))
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
	fmt.Fprintf(out, "  begun as  %s, %s, %s\n", plain.Count(j.Slots, "worker"), plain.Count(j.Servers, "server"),
		plain.Count(j.Shards, "shard"))
	fmt.Fprintf(out, "  under     %s, %s\n", j.Models(), j.Recovery)
	fmt.Fprintf(out, "  bytes     %s in %s\n", size(*s.Bytes), plain.Count(*s.Segments+*s.Follows, "segment"))
	s.printAges(out)
	for i, span := range s.Slots {
		if span != (words.Span{}) {
			fmt.Fprintf(out, "  slot %-4d %s\n", i, spanText(span))
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

// printAges says how old the rows of a running checkpoint are.
func (s *shown) printAges(out io.Writer) {
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
	fmt.Fprintf(out, "  rows      %d as last saved, %.1f clocks before in the mean, and %d at most\n", saved,
		float64(ages)/float64(max(1, saved)), oldest)
	if initial > 0 {
		fmt.Fprintf(out, "            %d that were never saved, and begin again\n", initial)
	}
}

// printShards lists each shard's files: its own one, and then what that follows, or has older rows.
func (s *shown) printShards(out io.Writer) {
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
			fmt.Fprintf(w, "%s\t%s\t%s\n", size(file.Bytes), file.CRC32C, file.File)
		}
	}
	_ = w.Flush() // out keeps its own errors
}

// spanText says in which clocks a slot takes part.
func spanText(s words.Span) string {
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

// printRows lists the files of each shard of a running checkpoint, the newest first, and how many
// rows are as each has them.
func (s *shown) printRows(w *tabwriter.Writer) {
	fmt.Fprint(w, "\nshard\tclock\trows\tbytes\tcrc32c\tfile\n")
	for _, one := range s.Shards {
		shard := fmt.Sprint(one.Shard)
		for i := len(one.Files) - 1; i >= 0; i-- {
			file, clock, rows := one.Files[i], "?", "?"
			if file.Rows != nil {
				clock, rows = fmt.Sprint(*file.Clock), fmt.Sprint(*file.Rows)
			}
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", shard, clock, rows, size(file.Bytes), file.CRC32C, file.File)
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
