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

// Listing lists the checkpoints of a store, as determined from file names, manifests and file sizes. No segment was
// read.
type Listing struct {
	Checkpoints  []Info             // newest first
	Unreferenced []UnreferencedFile // files that no readable manifest names
	Other        []string           // names of all other files
}

// Info is one checkpoint in a store: of a cut, or a running one.
type Info struct {
	File       string // manifest
	Generation perdure.Generation
	Cut        perdure.Clock // of a running checkpoint its clock; -1 if unknown
	Manifest   Manifest      // of a running checkpoint the result of Running.Manifest
	Number     uint64        // of a running checkpoint; 0 for a checkpoint of a cut
	Running    Running       // set if Number > 0
	Err        error         // why the manifest is unusable, or nil
	Missing    []Defect      // files that are missing or have the wrong size
	Recorded   bool          // the store lacks the manifest, but the run's coordinator has recorded it
}

// UnreferencedFile is a segment that belongs to no checkpoint, or a temporary file of an unfinished write.
type UnreferencedFile struct {
	File  string
	Bytes int64
}

// Defect is a fault in a file.
type Defect struct {
	File     string
	Location string // position and content of the damaged section; "": the whole file
	Err      error
}

// String returns one line with the file, the place and the cause.
func (d Defect) String() string {
	where := d.File
	if d.Location != "" {
		where += ", " + d.Location
	}
	return where + ": " + d.cause()
}

// cause returns the error's text without the prefix that names the file.
func (d Defect) cause() string {
	if at, is := errors.AsType[*fs.PathError](d.Err); is {
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

// IsComplete reports whether the manifest is readable and all files exist at full length.
func (k *Info) IsComplete() bool { return k.Err == nil && len(k.Missing) == 0 }

// Defects returns the checkpoint's known defects.
func (k *Info) Defects() []Defect {
	if k.Err != nil {
		return []Defect{{File: k.File, Err: k.Err}}
	}
	return k.Missing
}

func (k *Info) key() key { return key{k.Generation, k.Cut} }

// compare orders the checkpoints of a store. A store holds either checkpoints of cuts or running checkpoints; if it
// holds both, the running ones come last.
func (k *Info) compare(other *Info) int {
	return cmp.Or(cmp.Compare(k.Number, other.Number), k.key().compare(other.key()))
}

// Files returns all files that the checkpoint needs: segments and slot states.
func (k *Info) Files() []FileRef {
	if k.Number > 0 {
		return k.Running.Files()
	}
	return k.Manifest.Files()
}

// CheckJob returns ErrOtherJob unless the checkpoint belongs to the job with that ID.
func (k *Info) CheckJob(id string) error {
	if k.Number > 0 {
		return k.Running.CheckJob(id)
	}
	return k.Manifest.CheckJob(id)
}

// ReadInfo reads the manifest in that file; ok reports whether the name is that of a manifest.
func ReadInfo(in store.Store, name string) (kept Info, ok bool) {
	if k, ok := parseManifestName(name); ok {
		kept = Info{File: name, Generation: k.generation, Cut: k.cut}
		kept.Manifest, kept.Err = readManifest(in, k)
		return kept, true
	}
	number, ok := parseRunningName(name)
	if !ok {
		return kept, false
	}
	kept = Info{File: name, Number: number, Cut: -1}
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
func (m Manifest) Names() []string { return fileNames(m.key().manifest(), m.Files()) }

// Names returns the names of all files of a running checkpoint.
func (m *Running) Names() []string { return fileNames(m.name(), m.Files()) }

func fileNames(manifest string, files []FileRef) []string {
	all := []string{manifest}
	for _, f := range files {
		all = append(all, f.File)
	}
	return all
}

// ClaimFile is the name of the optional object that records which job a store belongs to.
const ClaimFile = "perdure.job"

// maxListAttempts is the max number of attempts to get a listing during which no checkpoint is deleted.
const maxListAttempts = 10

// List lists the contents of a store. The job may be running and write and delete files at the same time: a missing
// file is no defect if its manifest is missing also.
func List(in store.Store) (found Listing, err error) {
	for range maxListAttempts {
		var meanwhile bool
		if found, meanwhile, err = listOnce(in); err != nil || !meanwhile {
			break
		}
	}
	return found, err
}

// listOnce makes one attempt; meanwhile reports whether a checkpoint was deleted during it.
func listOnce(in store.Store) (found Listing, meanwhile bool, err error) {
	all, err := listAll(in)
	if err != nil {
		return found, false, fmt.Errorf("checkpoint: %w", err)
	}
	found = classifyEntries(in, all, func(string) bool { return true })
	known := map[string]Defect{} // by name of the files queried so far
	sizes := sizesOf(all)
	kept := found.Checkpoints[:0]
	for _, k := range found.Checkpoints {
		k.Missing = missingFiles(in, k.Files(), sizes, known)
		if !k.IsComplete() && !Exists(in, k.File) {
			meanwhile = true
			continue
		}
		kept = append(kept, k)
	}
	found.Checkpoints = kept
	return found, meanwhile, nil
}

// listAll returns all entries of a store, including temporary ones.
func listAll(in store.Store) ([]store.Entry, error) {
	there, err := in.List("")
	if err != nil {
		return nil, err
	}
	started, err := in.Unfinished()
	return append(started, there...), err
}

// classifyEntries reads the manifests whose names of accepts, and sorts the other entries by kind.
func classifyEntries(in store.Store, all []store.Entry, of func(name string) bool) (found Listing) {
	named := map[string]bool{} // manifests and the files they name
	for _, e := range all {
		if !of(e.Name) {
			continue
		}
		kept, ok := ReadInfo(in, e.Name)
		if !ok {
			continue
		}
		named[e.Name] = true
		for _, f := range kept.Files() {
			named[f.File] = true
		}
		found.Checkpoints = append(found.Checkpoints, kept)
	}
	slices.SortFunc(found.Checkpoints, func(a, b Info) int { return b.compare(&a) })
	for _, e := range all {
		if _, _, _, ours := parseSegmentFile(e.Name); named[e.Name] || e.Name == ClaimFile || isState(e.Name) {
			continue
		} else if ours {
			found.Unreferenced = append(found.Unreferenced, UnreferencedFile{e.Name, max(e.Bytes, 0)})
		} else {
			found.Other = append(found.Other, e.Name)
		}
	}
	return found
}

// Exists reports whether a store has an object of that name. If the store cannot be listed, it assumes so.
func Exists(in store.Store, name string) bool {
	all, err := in.List(name)
	return err != nil || slices.ContainsFunc(all, func(e store.Entry) bool { return e.Name == name })
}

// missingFiles returns the files that are missing or have the wrong size. A file whose listed size differs is queried
// individually, once.
func missingFiles(in store.Store, files []FileRef, sizes map[string]int64, known map[string]Defect) (out []Defect) {
	for _, f := range files {
		if n, there := sizes[f.File]; there && n == f.Bytes {
			continue
		}
		d, ok := known[f.File]
		if !ok {
			d = sizeDefect(in, f)
			known[f.File] = d
		}
		if d.Err != nil {
			out = append(out, d)
		}
	}
	return out
}

var errMissing = store.WithKind(fs.ErrNotExist, fmt.Errorf("%w: it is missing", ErrCorrupt))

func sizeDefect(in store.Store, f FileRef) Defect {
	n, err := store.Size(in, f.File)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		err = errMissing
	case err == nil && n != f.Bytes:
		err = corrupt("it has %d bytes, not %d", n, f.Bytes)
	}
	return Defect{File: f.File, Err: err}
}
