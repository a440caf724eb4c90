package checkpoints

import (
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/checkpoint"
)

// shown is what Show writes for programs.
type shown struct {
	line
	Format int             `json:"format"`
	Job    perdure.JobSpec `json:"job"`
	Tables []shownTable    `json:"tables"`
	Slots  []perdure.Span  `json:"slots"`
	Shards []shownShard    `json:"shards"`
}

type shownTable struct {
	perdure.TableSpec
	Stored *int64 `json:"stored"` // rows; null where segments cannot be read
}

type shownShard struct {
	Shard perdure.ShardID `json:"shard"`
	Seq   uint64          `json:"seq"`   // updates that its rows contain
	Files []shownFile     `json:"files"` // each but the first follows the one before
}

type shownFile struct {
	File   string `json:"file"`
	Bytes  int64  `json:"bytes"`
	CRC32C string `json:"crc32c"`
}

// Show says what a checkpoint's manifest says, and of each table how many rows are stored.
func (f *Folder) Show(out io.Writer, asJSON bool) error {
	found, err := f.look()
	if err != nil {
		return err
	}
	k, err := f.one(found)
	if err != nil {
		return err
	}
	if k.Err != nil {
		return fmt.Errorf("%s/%s", f.Dir, k.Defects()[0])
	}
	newest := newestWhole(found.Kept)
	s := f.shown(k, newest >= 0 && k == &found.Kept[newest])
	if asJSON {
		err = writeJSON(out, s)
	} else {
		s.print(out, f.Dir, f.Now)
	}
	if err == nil && len(k.Lacks) > 0 {
		err = fmt.Errorf("%s/%s", f.Dir, k.Lacks[0])
	}
	return err
}

func (f *Folder) shown(k *checkpoint.Kept, newest bool) *shown {
	m := &k.Manifest
	s := &shown{line: lineOf(k, newest), Format: m.Version, Job: m.Job, Slots: []perdure.Span{}, Tables: []shownTable{}}
	s.Slots = append(s.Slots, m.Slots...)
	rows, err := checkpoint.Rows(f.Disk, f.Dir, *m)
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
			one.Files = append(one.Files, shownFile{file.File, file.Bytes, fmt.Sprintf("%08x", file.CRC)})
		}
		s.Shards = append(s.Shards, one)
	}
	return s
}

// print says it in words, for people.
func (s *shown) print(out io.Writer, dir string, now time.Time) {
	state := "whole"
	switch {
	case s.Newest:
		state = "whole, the newest"
	case !s.Whole:
		state = fmt.Sprintf("%s missing, or not of their length", count(len(s.Defects), "file"))
	}
	j := &s.Job
	fmt.Fprintf(out, "checkpoint of clock %d, generation %d: %s\n", s.Clock, s.Generation, state)
	fmt.Fprintf(out, "  in        %s\n", dir)
	fmt.Fprintf(out, "  manifest  %s, format %d\n", s.Manifest, s.Format)
	fmt.Fprintf(out, "  saved     %s, %s ago\n", s.SavedAt.UTC().Format(time.RFC3339), age(now.Sub(*s.SavedAt)))
	fmt.Fprintf(out, "  job       %s (%s), seed %d\n", j.ID, j.Workload, j.Seed)
	fmt.Fprintf(out, "  begun as  %s, %s, %s\n", count(j.Slots, "worker"), count(j.Servers, "server"),
		count(j.Shards, "shard"))
	fmt.Fprintf(out, "  under     %s, %s\n", j.Models(), j.Recovery)
	fmt.Fprintf(out, "  bytes     %s in %s\n", size(*s.Bytes), count(*s.Segments+*s.Follows, "segment"))
	for i, span := range s.Slots {
		if span != (perdure.Span{}) {
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
		case !t.Sparse:
			rows = fmt.Sprint(t.Rows)
		}
		fmt.Fprintf(w, "%s\t%s\t%d\t%s\t%s\n", t.Name, rows, t.Dim, ruleText(t.Rule), t.Consistency)
	}
	_ = w.Flush() // out keeps its own errors
	s.printShards(out)
}

// printShards lists each shard's files: its own one, and then what that follows.
func (s *shown) printShards(out io.Writer) {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
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
func spanText(s perdure.Span) string {
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
