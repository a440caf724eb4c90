package checkpoints

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/slotstate"
	"github.com/perdure/perdure/internal/data/checkpoint"
	"github.com/perdure/perdure/internal/data/store"
	"github.com/perdure/perdure/internal/run/humanize"
)

// Verify reads every byte of the checkpoints, of the checkpoint of f.Clock, or of the snapshots of a run with an update
// log. It prints which are whole, and a line for each defect of the others. With asJSON it prints JSON.
func (f *Location) Verify(out io.Writer, asJSON bool) error {
	if in, names, err := snapshotsOf(f.Run, f.Store); err != nil {
		return err
	} else if len(names) > 0 && f.Clock == nil {
		return verifySnapshots(humanize.NewPrinter(out, asJSON), in, names)
	}
	return f.withRetries(func() (meanwhile bool, err error) { return f.verify(humanize.NewPrinter(out, asJSON)) })
}

// verifyResult is the JSON output of Verify for a checkpoint.
type verifyResult struct {
	Clock   perdure.Clock `json:"clock"`
	Whole   bool          `json:"whole"`
	Defects []string      `json:"defects"`
}

func newVerifyResult(k *checkpoint.Info, wrong []checkpoint.Defect, whole bool) verifyResult {
	v := verifyResult{Clock: k.Cut, Whole: whole, Defects: []string{}}
	for _, d := range wrong {
		v.Defects = append(v.Defects, d.String())
	}
	return v
}

// verify makes one attempt. meanwhile reports whether the job has deleted all checkpoints meanwhile.
func (f *Location) verify(tell *humanize.Printer) (meanwhile bool, err error) {
	found, err := f.selected()
	if err != nil {
		return false, err
	}
	kept := found.Checkpoints
	started := time.Now()
	audit := checkpoint.NewAudit(f.Store)
	read, bad, wrong, offer := 0, 0, 0, ""
	all := []verifyResult{}
	for i := range kept {
		line, more, whole := f.audit(audit, &kept[i])
		if !whole && f.isDeleted(&kept[i]) {
			continue
		}
		v := newVerifyResult(&kept[i], more, whole)
		all = append(all, v)
		tell.Line("%s", strings.Join(append([]string{line}, v.Defects...), "\n  "))
		read++
		switch {
		case !whole:
			bad, wrong = bad+1, wrong+len(more)
		case bad > 0 && offer == "":
			offer = fmt.Sprintf("; the newest complete one is %s@%d", f.Store, kept[i].Cut)
		}
	}
	if read == 0 {
		return true, nil
	}
	var stray []checkpoint.Defect
	if f.Clock == nil {
		if stray, err = strays(f.Store, audit, &found); err != nil {
			return false, err
		}
	}
	if len(stray) > 0 {
		v := newVerifyResult(&checkpoint.Info{Cut: -1}, stray, false)
		all = append(all, v)
		tell.Line("%s", strings.Join(append([]string{"files that belong to no checkpoint: damaged"}, v.Defects...),
			"\n  "))
	}
	tellSpeed(tell, audit.Bytes, audit.Files, started)
	if err := tell.End(all); err != nil {
		return false, err
	}
	if bad > 0 || len(stray) > 0 {
		return false, fmt.Errorf("%s: %s, %d damaged, %s%s", f.Store, humanize.Count(read, "checkpoint"), bad,
			humanize.Count(wrong+len(stray), "defect"), offer)
	}
	return false, nil
}

// tellSpeed prints how much was read, and how fast.
func tellSpeed(tell *humanize.Printer, bytes int64, files int, started time.Time) {
	took := time.Since(started).Seconds()
	tell.Line("read %s of %s in %.3f s: %s/s", humanize.Bytes(bytes), humanize.Count(files, "file"), took,
		humanize.Bytes(int64(float64(bytes)/max(took, 1e-9))))
}

// strays reads the files that belong to no checkpoint, and returns their defects. It ignores files that the job has
// deleted since the store was listed.
func strays(in store.Store, a *checkpoint.Audit, found *checkpoint.Listing) (defects []checkpoint.Defect, err error) {
	named, loose := map[string]bool{}, map[string]bool{}
	for i := range found.Checkpoints {
		for _, file := range found.Checkpoints[i].Files() {
			named[file.File] = true
		}
	}
	for _, file := range found.Unreferenced {
		loose[file.File] = true
	}
	all, err := in.List("") // without files in progress
	for _, e := range all {
		var wrong []checkpoint.Defect
		switch _, state := slotstate.ParseName(e.Name); {
		case loose[e.Name]:
			wrong = a.Segment(e.Name)
		case state && !named[e.Name]:
			if err := store.CheckUnreferencedState(in, e.Name); err != nil {
				wrong = []checkpoint.Defect{{File: e.Name, Err: err}}
			}
		case e.Name == claimName:
			wrong = claimDefects(in)
		}
		if len(wrong) > 0 && checkpoint.Exists(in, e.Name) {
			defects = append(defects, wrong...)
		}
	}
	return defects, err
}

// audit reads a checkpoint. It returns a summary line and the defects.
func (f *Location) audit(a *checkpoint.Audit, k *checkpoint.Info) (line string, wrong []checkpoint.Defect, whole bool) {
	clock := "clock " + clockText(k.Cut)
	if k.Err != nil {
		return clock + ": damaged", k.Defects(), false
	}
	var rows []int64
	if k.Number > 0 {
		wrong, whole = a.Running(k.Running)
	} else {
		rows, wrong, whole = a.Checkpoint(k.Manifest)
	}
	switch {
	case !whole && len(wrong) == 0:
		return clock + ": damaged: it needs a damaged file, see above", nil, false
	case !whole:
		return clock + ": damaged", wrong, false
	case k.Number > 0:
		return fmt.Sprintf("%s: complete: %s, %s of rows", clock, humanize.Count(len(k.Running.Shards), "shard"),
			humanize.Count(len(k.Files()), "file")), nil, true
	}
	all := int64(0)
	for _, n := range rows {
		all += n
	}
	return fmt.Sprintf("%s: complete: %s, %s, %d rows in %s", clock, humanize.Count(len(k.Manifest.Segments), "shard"),
		humanize.Count(len(k.Files()), "segment"), all, humanize.Count(len(rows), "table")), nil, true
}
