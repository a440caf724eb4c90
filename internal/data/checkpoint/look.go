package checkpoint

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/disk"
)

// Found is what a folder of checkpoints has, as names, manifests and lengths of files tell. No
// segment was read.
type Found struct {
	Kept  []Kept   // newest first
	Loose []Loose  // what no manifest names that can be read
	Other []string // names of whatever else is there
}

// Kept is one checkpoint that a folder keeps.
type Kept struct {
	File       string // of its manifest
	Generation perdure.Generation
	Cut        perdure.Clock
	Manifest   Manifest
	Err        error    // why the manifest cannot be used; nil: it can
	Lacks      []Defect // segments that are not there in full length
}

// Loose is a segment that belongs to no checkpoint, or a file that somebody has only begun.
type Loose struct {
	File  string
	Bytes int64
	key   key
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
	for _, known := range []error{ErrNewerVersion, ErrOlderVersion, ErrOtherJob} {
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

// Files returns all segments that a checkpoint needs: of each shard those that its own one
// follows, and then that.
func (m Manifest) Files() (files []FileRef) {
	for _, ref := range m.Segments {
		files = append(files, ref.files()...)
	}
	return files
}

// looks is how often a folder is looked at of which checkpoints are deleted meanwhile.
const looks = 10

// Look says what a folder has. The job may live, and write and delete meanwhile: what is gone
// is not missed if its manifest is gone, too.
func Look(fsys disk.FS, dir string) (found Found, err error) {
	for range looks {
		var meanwhile bool
		if found, meanwhile, err = look(fsys, dir); err != nil || !meanwhile {
			break
		}
	}
	return found, err
}

// look looks once; meanwhile says that a checkpoint was deleted while it did.
func look(fsys disk.FS, dir string) (found Found, meanwhile bool, err error) {
	names, err := fsys.List(dir)
	if err != nil {
		return found, false, fmt.Errorf("checkpoint: %w", err)
	}
	known := map[string]Defect{} // of files that were looked at; without an error, nothing is wrong
	named := map[string]bool{}
	for _, name := range names {
		k, ok := parseManifestName(name)
		if !ok {
			continue
		}
		kept := Kept{File: name, Generation: k.generation, Cut: k.cut}
		kept.Manifest, kept.Err = readManifest(fsys, dir, k)
		kept.Lacks = lacks(fsys, dir, kept.Manifest, known)
		for _, f := range kept.Manifest.Files() {
			named[f.File] = true
		}
		if !kept.Whole() && !Names(fsys, dir, name) {
			meanwhile = true
			continue
		}
		found.Kept = append(found.Kept, kept)
	}
	slices.SortFunc(found.Kept, func(a, b Kept) int { return b.key().compare(a.key()) })
	for _, name := range names {
		if _, manifest := parseManifestName(name); manifest || named[name] {
			continue
		}
		k, ours := keyOf(name)
		if !ours {
			found.Other = append(found.Other, name)
			continue
		}
		n, err := disk.Size(fsys, path.Join(dir, name))
		if !errors.Is(err, fs.ErrNotExist) || Names(fsys, dir, name) {
			found.Loose = append(found.Loose, Loose{name, n, k})
		}
	}
	return found, meanwhile, nil
}

// keyOf returns of which checkpoint a segment is, or a file that somebody has begun.
func keyOf(name string) (k key, ok bool) {
	if final, temporary := disk.TemporaryOf(name); temporary {
		if k, ok = parseManifestName(final); ok {
			return k, true
		}
		name = final
	}
	k, _, ok = parseSegmentName(name)
	return k, ok
}

// Names reports whether a folder has something of that name. What cannot be asked is there.
func Names(fsys disk.FS, dir, name string) bool {
	names, err := fsys.List(dir)
	return err != nil || slices.Contains(names, name)
}

// lacks returns which files of a checkpoint are not there in full length.
func lacks(fsys disk.FS, dir string, m Manifest, known map[string]Defect) (out []Defect) {
	for _, f := range m.Files() {
		d, ok := known[f.File]
		if !ok {
			d = lack(fsys, dir, f)
			known[f.File] = d
		}
		if d.Err != nil {
			out = append(out, d)
		}
	}
	return out
}

var errMissing = fmt.Errorf("%w: it is missing", ErrCorrupt)

func lack(fsys disk.FS, dir string, f FileRef) Defect {
	n, err := disk.Size(fsys, path.Join(dir, f.File))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		err = errMissing
	case err == nil && n != f.Bytes:
		err = corrupt("it has %d bytes, not %d", n, f.Bytes)
	}
	return Defect{File: f.File, Err: err}
}

// Removal is what is to be deleted of a folder.
type Removal struct {
	Manifests []string // oldest first
	Files     []string // that no manifest names which stays
}

// Without returns what is to be deleted so that of the checkpoints only the newest n are left, and
// nothing that belongs to none. What a checkpoint may need that stays is not in it: of one whose
// manifest cannot be used that is every segment of its clock and before. newer says that what is
// newer than all manifests stays, too: somebody may be about to publish it.
func (f *Found) Without(n int, newer bool) (r Removal) {
	named := map[string]bool{}
	var unread, newest key // the last of those that may need what they do not say; the last of all
	unread.cut, newest.cut = -1, -1
	for i := range f.Kept {
		k := &f.Kept[i]
		if k.key().compare(newest) > 0 {
			newest = k.key()
		}
		if i >= n {
			r.Manifests = append(r.Manifests, k.File)
			continue
		}
		if k.Err != nil && k.key().compare(unread) > 0 {
			unread = k.key()
		}
		for _, file := range k.Manifest.Files() {
			named[file.File] = true
		}
	}
	slices.Reverse(r.Manifests)
	needed := func(name string, of key) bool {
		_, begun := disk.TemporaryOf(name)
		return named[name] || !begun && of.compare(unread) <= 0 || newer && of.compare(newest) > 0
	}
	for i := range f.Kept {
		for _, file := range f.Kept[i].Manifest.Files() {
			if of, _ := keyOf(file.File); !needed(file.File, of) {
				r.Files = append(r.Files, file.File)
			}
		}
	}
	for _, l := range f.Loose {
		if !needed(l.File, l.key) {
			r.Files = append(r.Files, l.File)
		}
	}
	slices.Sort(r.Files)
	r.Files = slices.Compact(r.Files)
	return r
}

// Remove deletes what Without returned: first the manifests, and when that is durable what they
// named, so that no manifest outlives its segments.
func Remove(fsys disk.FS, dir string, r Removal) error {
	if err := fsys.SyncDir(dir); err != nil { // what stays is durable before others go
		return fmt.Errorf("checkpoint: %w", err)
	}
	for _, names := range [][]string{r.Manifests, r.Files} {
		for _, name := range names {
			if err := fsys.Remove(path.Join(dir, name)); err != nil {
				return fmt.Errorf("checkpoint: %w", err)
			}
		}
		if err := fsys.SyncDir(dir); err != nil {
			return fmt.Errorf("checkpoint: %w", err)
		}
	}
	return nil
}
