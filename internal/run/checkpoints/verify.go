package checkpoints

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/checkpoint"
	"github.com/perdure/perdure/internal/run/plain"
)

// Verify reads every byte of the checkpoints, or of the one of a clock, or of the snapshots that a run with an update log
// keeps in their place. It says which are whole, and of those that are not what is wrong, a line for each; or all of it
// as JSON.
func (f *Folder) Verify(out io.Writer, asJSON bool) error {
	if in, names, err := f.snapshots(); err != nil {
		return err
	} else if len(names) > 0 && f.Clock == nil {
		return verifySnapshots(out, in, names, asJSON)
	}
	for range tries {
		meanwhile, err := f.verify(out, asJSON)
		if !meanwhile {
			return err
		}
	}
	return f.tooFast()
}

// verified is what Verify has found of a checkpoint, for programs.
type verified struct {
	Clock   perdure.Clock `json:"clock"`
	Whole   bool          `json:"whole"`
	Defects []string      `json:"defects"`
}

func verifiedOf(k *checkpoint.Kept, wrong []checkpoint.Defect, whole bool) verified {
	v := verified{Clock: k.Cut, Whole: whole, Defects: []string{}}
	for _, d := range wrong {
		v.Defects = append(v.Defects, d.String())
	}
	return v
}

// verify reads what there is; meanwhile says that the job had deleted all of it by then.
func (f *Folder) verify(out io.Writer, asJSON bool) (meanwhile bool, err error) {
	found, err := f.asked()
	if err != nil {
		return false, err
	}
	kept := found.Kept
	begun := time.Now()
	audit := checkpoint.NewAudit(f.Store)
	read, bad, wrong, offer := 0, 0, 0, ""
	all := []verified{}
	for i := range kept {
		line, more, whole := f.audit(audit, &kept[i])
		if !whole && f.gone(&kept[i]) {
			continue
		}
		v := verifiedOf(&kept[i], more, whole)
		if all = append(all, v); !asJSON {
			fmt.Fprintln(out, strings.Join(append([]string{line}, v.Defects...), "\n  "))
		}
		read++
		switch {
		case !whole:
			bad, wrong = bad+1, wrong+len(more)
		case bad > 0 && offer == "":
			offer = fmt.Sprintf("; the newest that is whole is %s@%d", f.Store, kept[i].Cut)
		}
	}
	if read == 0 {
		return true, nil
	}
	stray := f.others(audit, &found)
	if len(stray) > 0 {
		v := verifiedOf(&checkpoint.Kept{Cut: -1}, stray, false)
		if all = append(all, v); !asJSON {
			fmt.Fprintln(out, strings.Join(append([]string{"files of no checkpoint: damaged"}, v.Defects...), "\n  "))
		}
	}
	took := time.Since(begun).Seconds()
	if asJSON {
		if err := plain.JSON(out, all); err != nil {
			return false, err
		}
	} else {
		fmt.Fprintf(out, "read %s of %s in %.3f s: %s/s\n", size(audit.Bytes), count(audit.Files, "file"), took,
			size(int64(float64(audit.Bytes)/max(took, 1e-9))))
	}
	if bad > 0 || len(stray) > 0 {
		return false, fmt.Errorf("%s: %s, %d not whole, %s%s", f.Store, count(read, "checkpoint"), bad,
			count(wrong+len(stray), "defect"), offer)
	}
	return false, nil
}

// others reads what belongs to no checkpoint, and returns its defects.
func (f *Folder) others(a *checkpoint.Audit, found *checkpoint.Found) (defects []checkpoint.Defect) {
	for _, files := range [][]checkpoint.Loose{found.Loose, found.States} {
		for _, file := range files {
			defects = append(defects, a.Loose(file)...)
		}
	}
	if err := checkClaim(f.Store); err != nil && f.Clock == nil {
		defects = append(defects, checkpoint.Defect{File: claimName, Err: err})
	}
	return defects
}

// audit reads a checkpoint: it returns a line that says what it has, and what is wrong.
func (f *Folder) audit(a *checkpoint.Audit, k *checkpoint.Kept) (line string, wrong []checkpoint.Defect, whole bool) {
	clock := "clock " + clockText(k.Cut)
	if k.Err != nil {
		return clock + ": not whole", k.Defects(), false
	}
	var rows []int64
	if k.Number > 0 {
		wrong, whole = a.Running(k.Running)
	} else {
		rows, wrong, whole = a.Checkpoint(k.Manifest)
	}
	switch {
	case !whole && len(wrong) == 0:
		return clock + ": not whole: it needs a file that is damaged, see above", nil, false
	case !whole:
		return clock + ": not whole", wrong, false
	case k.Number > 0:
		return fmt.Sprintf("%s: whole: %s, %s of rows", clock, count(len(k.Running.Shards), "shard"),
			count(len(k.Files()), "file")), nil, true
	}
	all := int64(0)
	for _, n := range rows {
		all += n
	}
	return fmt.Sprintf("%s: whole: %s, %s, %d rows in %s", clock, count(len(k.Manifest.Segments), "shard"),
		count(len(k.Files()), "segment"), all, count(len(rows), "table")), nil, true
}
