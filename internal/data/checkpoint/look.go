package checkpoint

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/store"
)

// Found is what a folder of checkpoints has, as names, manifests and lengths of files tell. No
// segment was read.
type Found struct {
	Kept  []Kept   // newest first
	Loose []Loose  // what no manifest names that can be read
	Other []string // names of whatever else is there
}

// Kept is one checkpoint that a folder keeps: one of a cut, or a running one.
type Kept struct {
	File       string // of its manifest
	Generation perdure.Generation
	Cut        perdure.Clock // of a running one its clock; -1: that is not known
	Manifest   Manifest      // of a running one what Running.Manifest says
	Number     uint64        // of a running one; 0: it is of a cut
	Running    Running       // where Number > 0
	Err        error         // why the manifest cannot be used; nil: it can
	Lacks      []Defect      // segments that are not there in full length
	Recorded   bool          // the store lacks the manifest, and the run's coordinator has recorded it
}

// Loose is a segment that belongs to no checkpoint, or a file that somebody has only begun.
type Loose struct {
	File  string
	Bytes int64
}

// Defect is something that is wrong with a file.
type Defect struct {
	File  string
	Place string // where in the file, and what should be there; "": all of the file is meant
	Err   error
}

// String is one line that names the file and the place.
func (d Defect) String() string {
	where := d.File
	if d.Place != "" {
		where += ", " + d.Place
	}
	return where + ": " + d.cause()
}

// cause says what is wrong, without the words that name the file again.
func (d Defect) cause() string {
	if at := (*fs.PathError)(nil); errors.As(d.Err, &at) {
		return strings.TrimPrefix(at.Err.Error(), ErrCorrupt.Error()+": ")
	}
	text := d.Err.Error()
	for _, known := range []error{ErrOtherVersion, ErrOtherJob} {
		if i := strings.LastIndex(text, known.Error()); errors.Is(d.Err, known) && i >= 0 {
			return text[i:]
		}
	}
	said := ErrCorrupt.Error() + ": "
	if i := strings.LastIndex(text, said); i >= 0 {
		return text[i+len(said):]
	}
	return text
}

// Whole reports whether all of a checkpoint's files are there, in full length.
func (k *Kept) Whole() bool { return k.Err == nil && len(k.Lacks) == 0 }

// Defects are what is wrong with a checkpoint, as far as was looked.
func (k *Kept) Defects() []Defect {
	if k.Err != nil {
		return []Defect{{File: k.File, Err: k.Err}}
	}
	return k.Lacks
}

func (k *Kept) key() key { return key{k.Generation, k.Cut} }

// compare orders what a folder keeps: it has cuts or running checkpoints, and of both the latter
// come last.
func (k *Kept) compare(other *Kept) int {
	return cmp.Or(cmp.Compare(k.Number, other.Number), k.key().compare(other.key()))
}

// Files returns all that it needs: segments, and states of slots.
func (k *Kept) Files() []FileRef {
	if k.Number > 0 {
		return k.Running.Files()
	}
	return k.Manifest.Files()
}

// CheckJob returns ErrOtherJob unless it is of the job of that ID.
func (k *Kept) CheckJob(id string) error {
	if k.Number > 0 {
		return k.Running.CheckJob(id)
	}
	return k.Manifest.CheckJob(id)
}

// KeptOf reads the manifest that a file is; ok says that it is one by its name.
func KeptOf(in store.Store, name string) (kept Kept, ok bool) {
	if k, ok := parseManifestName(name); ok {
		kept = Kept{File: name, Generation: k.generation, Cut: k.cut}
		kept.Manifest, kept.Err = readManifest(in, k)
		return kept, true
	}
	number, ok := parseRunningName(name)
	if !ok {
		return kept, false
	}
	kept = Kept{File: name, Number: number, Cut: -1}
	if kept.Running, kept.Err = readRunning(in, number); kept.Err == nil {
		kept.Manifest = kept.Running.Manifest()
		kept.Generation, kept.Cut = kept.Running.Generation, kept.Running.Clock
	}
	return kept, true
}

// Files returns all that a checkpoint needs: of each shard the segments that its own one follows, then
// that, and then the states of slots that it refers to.
func (m Manifest) Files() (files []FileRef) {
	for _, ref := range m.Segments {
		files = append(append(files, ref.files()...), ref.States...)
	}
	return files
}

// Names are the names of all that a checkpoint is made of: its manifest, and the segments.
func (m Manifest) Names() []string { return names(m.key().manifest(), m.Files()) }

// Names are the names of all that a running checkpoint is made of.
func (m *Running) Names() []string { return names(m.name(), m.Files()) }

func names(manifest string, files []FileRef) []string {
	all := []string{manifest}
	for _, f := range files {
		all = append(all, f.File)
	}
	return all
}

// ClaimFile is what says whose a store is, where somebody has put it there.
const ClaimFile = "perdure.job"

// looks is how often a folder is looked at of which checkpoints are deleted meanwhile.
const looks = 10

// Look says what a folder has. The job may live, and write and delete meanwhile: what is gone
// is not missed if its manifest is gone, too.
func Look(in store.Store) (found Found, err error) {
	for range looks {
		var meanwhile bool
		if found, meanwhile, err = look(in); err != nil || !meanwhile {
			break
		}
	}
	return found, err
}

// look looks once; meanwhile says that a checkpoint was deleted while it did.
func look(in store.Store) (found Found, meanwhile bool, err error) {
	all, err := listed(in)
	if err != nil {
		return found, false, fmt.Errorf("checkpoint: %w", err)
	}
	found = gather(in, all, func(string) bool { return true })
	known := map[string]Defect{} // of files that were looked at
	sizes := sizesOf(all)
	kept := found.Kept[:0]
	for _, k := range found.Kept {
		k.Lacks = lacks(in, k.Files(), sizes, known)
		if !k.Whole() && !Names(in, k.File) {
			meanwhile = true
			continue
		}
		kept = append(kept, k)
	}
	found.Kept = kept
	return found, meanwhile, nil
}

// listed returns all that a store has, and what was begun.
func listed(in store.Store) ([]store.Entry, error) {
	there, err := in.List("")
	if err != nil {
		return nil, err
	}
	begun, err := in.Begun()
	return append(begun, there...), err
}

// gather reads the manifests of some names, and sorts the others by what they are.
func gather(in store.Store, all []store.Entry, of func(name string) bool) (found Found) {
	named := map[string]bool{} // and manifests
	for _, e := range all {
		if !of(e.Name) {
			continue
		}
		kept, ok := KeptOf(in, e.Name)
		if !ok {
			continue
		}
		named[e.Name] = true
		for _, f := range kept.Files() {
			named[f.File] = true
		}
		found.Kept = append(found.Kept, kept)
	}
	slices.SortFunc(found.Kept, func(a, b Kept) int { return b.compare(&a) })
	for _, e := range all {
		if _, _, _, ours := partOf(e.Name); named[e.Name] || e.Name == ClaimFile || isState(e.Name) {
			continue
		} else if ours {
			found.Loose = append(found.Loose, Loose{e.Name, max(e.Bytes, 0)})
		} else {
			found.Other = append(found.Other, e.Name)
		}
	}
	return found
}

// Names reports whether a store has something of that name. What cannot be asked is there.
func Names(in store.Store, name string) bool {
	all, err := in.List(name)
	return err != nil || slices.ContainsFunc(all, func(e store.Entry) bool { return e.Name == name })
}

// lacks returns which files are not there in full length; what is not listed so is asked for, once.
func lacks(in store.Store, files []FileRef, sizes map[string]int64, known map[string]Defect) (out []Defect) {
	for _, f := range files {
		if n, there := sizes[f.File]; there && n == f.Bytes {
			continue
		}
		d, ok := known[f.File]
		if !ok {
			d = lack(in, f)
			known[f.File] = d
		}
		if d.Err != nil {
			out = append(out, d)
		}
	}
	return out
}

var errMissing = store.Kind(fs.ErrNotExist, fmt.Errorf("%w: it is missing", ErrCorrupt))

func lack(in store.Store, f FileRef) Defect {
	n, err := store.Size(in, f.File)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		err = errMissing
	case err == nil && n != f.Bytes:
		err = corrupt("it has %d bytes, not %d", n, f.Bytes)
	}
	return Defect{File: f.File, Err: err}
}
