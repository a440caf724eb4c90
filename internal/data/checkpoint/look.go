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

// Found lists the checkpoints of a store, as determined from file names, manifests and file sizes. No segment was read.
type Found struct {
	Kept  []Kept   // newest first
	Loose []Loose  // files that no readable manifest names
	Other []string // names of all other files
}

// Kept is one checkpoint in a store: of a cut, or a running one.
type Kept struct {
	File       string // manifest
	Generation perdure.Generation
	Cut        perdure.Clock // of a running checkpoint its clock; -1 if unknown
	Manifest   Manifest      // of a running checkpoint the result of Running.Manifest
	Number     uint64        // of a running checkpoint; 0 for a checkpoint of a cut
	Running    Running       // set if Number > 0
	Err        error         // why the manifest is unusable, or nil
	Lacks      []Defect      // files that are missing or have the wrong size
	Recorded   bool          // the store lacks the manifest, but the run's coordinator has recorded it
}

// Loose is a segment that belongs to no checkpoint, or a temporary file of an unfinished write.
type Loose struct {
	File  string
	Bytes int64
}

// Defect is a fault in a file.
type Defect struct {
	File  string
	Place string // position and content of the damaged section; "": the whole file
	Err   error
}

// String returns one line with the file, the place and the cause.
func (d Defect) String() string {
	where := d.File
	if d.Place != "" {
		where += ", " + d.Place
	}
	return where + ": " + d.cause()
}

// cause returns the error's text without the prefix that names the file.
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

// Whole reports whether the manifest is readable and all files exist at full length.
func (k *Kept) Whole() bool { return k.Err == nil && len(k.Lacks) == 0 }

// Defects returns the checkpoint's known defects.
func (k *Kept) Defects() []Defect {
	if k.Err != nil {
		return []Defect{{File: k.File, Err: k.Err}}
	}
	return k.Lacks
}

func (k *Kept) key() key { return key{k.Generation, k.Cut} }

// compare orders the checkpoints of a store. A store holds either checkpoints of cuts or running checkpoints; if it
// holds both, the running ones come last.
func (k *Kept) compare(other *Kept) int {
	return cmp.Or(cmp.Compare(k.Number, other.Number), k.key().compare(other.key()))
}

// Files returns all files that the checkpoint needs: segments and slot states.
func (k *Kept) Files() []FileRef {
	if k.Number > 0 {
		return k.Running.Files()
	}
	return k.Manifest.Files()
}

// CheckJob returns ErrOtherJob unless the checkpoint belongs to the job with that ID.
func (k *Kept) CheckJob(id string) error {
	if k.Number > 0 {
		return k.Running.CheckJob(id)
	}
	return k.Manifest.CheckJob(id)
}

// KeptOf reads the manifest in that file; ok reports whether the name is that of a manifest.
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

// Files returns all files that a checkpoint needs: for each shard the segments that its own one builds on, that
// segment, and the slot states to which it refers.
func (m Manifest) Files() (files []FileRef) {
	for _, ref := range m.Segments {
		files = append(append(files, ref.files()...), ref.States...)
	}
	return files
}

// Names returns the names of all files of a checkpoint: its manifest, segments and slot states.
func (m Manifest) Names() []string { return names(m.key().manifest(), m.Files()) }

// Names returns the names of all files of a running checkpoint.
func (m *Running) Names() []string { return names(m.name(), m.Files()) }

func names(manifest string, files []FileRef) []string {
	all := []string{manifest}
	for _, f := range files {
		all = append(all, f.File)
	}
	return all
}

// ClaimFile is the name of the optional object that records which job a store belongs to.
const ClaimFile = "perdure.job"

// looks is the max number of attempts to get a listing during which no checkpoint is deleted.
const looks = 10

// Look lists the contents of a store. The job may be running and write and delete files at the same time: a missing
// file is no defect if its manifest is missing also.
func Look(in store.Store) (found Found, err error) {
	for range looks {
		var meanwhile bool
		if found, meanwhile, err = look(in); err != nil || !meanwhile {
			break
		}
	}
	return found, err
}

// look makes one attempt; meanwhile reports whether a checkpoint was deleted during it.
func look(in store.Store) (found Found, meanwhile bool, err error) {
	all, err := listed(in)
	if err != nil {
		return found, false, fmt.Errorf("checkpoint: %w", err)
	}
	found = gather(in, all, func(string) bool { return true })
	known := map[string]Defect{} // by name of the files queried so far
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

// listed returns all entries of a store, including temporary ones.
func listed(in store.Store) ([]store.Entry, error) {
	there, err := in.List("")
	if err != nil {
		return nil, err
	}
	begun, err := in.Begun()
	return append(begun, there...), err
}

// gather reads the manifests whose names of accepts, and sorts the other entries by kind.
func gather(in store.Store, all []store.Entry, of func(name string) bool) (found Found) {
	named := map[string]bool{} // manifests and the files they name
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
		if _, _, _, ours := parsePart(e.Name); named[e.Name] || e.Name == ClaimFile || isState(e.Name) {
			continue
		} else if ours {
			found.Loose = append(found.Loose, Loose{e.Name, max(e.Bytes, 0)})
		} else {
			found.Other = append(found.Other, e.Name)
		}
	}
	return found
}

// Names reports whether a store has an object of that name. If the store cannot be listed, it assumes so.
func Names(in store.Store, name string) bool {
	all, err := in.List(name)
	return err != nil || slices.ContainsFunc(all, func(e store.Entry) bool { return e.Name == name })
}

// lacks returns the files that are missing or have the wrong size. A file whose listed size differs is queried
// individually, once.
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
