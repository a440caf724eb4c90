package checkpoint

import (
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/slotstate"
	"github.com/perdure/perdure/internal/data/store"
)

// Removal lists the files to delete from a store.
type Removal struct {
	Manifests []string // oldest first
	Files     []string // named by no remaining manifest
}

// PlanRemoval returns the files to delete so that only the newest n checkpoints and their files remain. It excludes
// every file that a remaining checkpoint may need: if the manifest of one is unreadable, these are all segments that
// may belong to it. With newer, files newer than all manifests also remain, because a process may be about to publish
// them.
func (f *Listing) PlanRemoval(n int, newer bool) (r Removal) {
	n = min(n, len(f.Checkpoints))
	named := map[string]bool{}
	for i := range f.Checkpoints[:n] {
		for _, file := range f.Checkpoints[i].Files() {
			named[file.File] = true
		}
	}
	s := f.retention(n, newer)
	delete := func(name string) {
		if !named[name] && !s.mayNeed(name) {
			r.Files = append(r.Files, name)
		}
	}
	for i := range f.Checkpoints {
		if i >= n {
			r.Manifests = append(r.Manifests, f.Checkpoints[i].File)
		}
		for _, file := range f.Checkpoints[i].Files() {
			delete(file.File)
		}
	}
	slices.Reverse(r.Manifests)
	for _, l := range f.Unreferenced {
		delete(l.File)
	}
	slices.Sort(r.Files)
	r.Files = slices.Compact(r.Files)
	return r
}

// Prune deletes the checkpoints that keep makes superfluous. First it deletes the manifests older than keep, except
// those of the n-1 newest readable ones (all of them if n is 0). Once that is durable, it deletes the segments that are
// no longer needed and the temporary files of writers that died. Files newer than the newest manifest remain, because
// they may be about to be published.
func Prune(in store.Store, keep Manifest, n int) error {
	return prune(in, keep.key().manifest(), n)
}

// PruneRunning does the same as Prune for running checkpoints.
func PruneRunning(in store.Store, keep Running, n int) error {
	return prune(in, keep.name(), n)
}

// Withdraw deletes a checkpoint's manifest, and so the checkpoint. Its segments remain until the next Prune. A missing
// manifest is not an error.
func Withdraw(in store.Store, m Manifest) error {
	if err := in.Delete(m.key().manifest()); err != nil {
		return fmt.Errorf("checkpoint: withdraw %s: %w", m.key().manifest(), err)
	}
	return nil
}

func prune(in store.Store, keep string, n int) error {
	all, err := listAll(in)
	if err != nil {
		return fmt.Errorf("checkpoint: prune: %w", err)
	}
	// Checkpoints of cuts and running checkpoints share no files.
	found := classifyEntries(in, all, func(name string) bool { return path.Ext(name) == path.Ext(keep) })
	at := slices.IndexFunc(found.Checkpoints, func(k Info) bool { return k.File == keep })
	switch {
	case at < 0:
		return fmt.Errorf("checkpoint: prune: %s is %w", keep, fs.ErrNotExist)
	case found.Checkpoints[at].Err != nil:
		return fmt.Errorf("checkpoint: prune: %w", found.Checkpoints[at].Err)
	}
	stay := len(found.Checkpoints)
	for i := at; i < stay && n > 0; i++ {
		if found.Checkpoints[i].Err != nil {
			continue
		}
		if n--; n == 0 {
			stay = i + 1
		}
	}
	return Remove(in, found.PlanRemoval(stay, true))
}

// retention determines which files remain although no remaining manifest is known to name them.
type retention struct {
	keepNewer    bool   // files newer than all manifests remain
	keepStates   bool   // all slot states remain: the job may be alive, and their users are not known here
	newestNumber uint64 // number of the newest running checkpoint
	// checkpoints of cuts: the newest unreadable one that remains, and the newest of all
	newestUnreadable, newest key
	// Running checkpoints: if keepRows is set, segments of selected rows newer than those of oldestReadable remain, or
	// all of them if oldestReadable is nil.
	keepRows       bool // implied by keepNewer
	oldestReadable *Running
}

// retention examines the newest n checkpoints.
func (f *Listing) retention(n int, newer bool) *retention {
	s := &retention{keepNewer: newer, keepStates: newer}
	s.newestUnreadable.cut, s.newest.cut = -1, -1
	for i := range f.Checkpoints {
		k := &f.Checkpoints[i]
		s.keepStates = s.keepStates || i < n && k.Err != nil
		switch {
		case k.Number > 0:
			s.newestNumber = max(s.newestNumber, k.Number)
			if i < n {
				s.addRunning(k)
			}
			continue
		case k.key().compare(s.newest) > 0:
			s.newest = k.key()
		}
		if i < n && k.Err != nil && k.key().compare(s.newestUnreadable) > 0 {
			s.newestUnreadable = k.key()
		}
	}
	return s
}

// addRunning adds the next older one of the remaining running checkpoints. A running checkpoint needs only segments
// that the next older one names, and newer ones. So an unreadable one needs no others.
func (s *retention) addRunning(k *Info) {
	switch {
	case k.Err != nil:
		s.keepRows, s.oldestReadable = true, nil
	case s.oldestReadable == nil:
		s.oldestReadable = &k.Running
	}
}

// mayNeed reports whether a file that no remaining manifest names may still be needed.
func (s *retention) mayNeed(name string) bool {
	if isState(name) {
		k, ok := slotstate.ParseName(name)
		return s.keepStates || ok && k.IsDraft()
	}
	_, started := store.ParseUnfinished(name)
	cut, rows, number, _ := parseSegmentFile(name)
	switch {
	case number > 0:
		return s.keepNewer && number >= s.newestNumber
	case rows != nil:
		return (s.keepNewer || s.keepRows && !started) && (s.oldestReadable == nil || s.oldestReadable.predates(rows))
	}
	newer := cut.compare(s.newest)
	return !started && cut.compare(s.newestUnreadable) <= 0 || s.keepNewer && (newer > 0 || started && newer == 0)
}

// isState reports whether a file is a slot state, complete or temporary. States that no manifest names are not handled
// here: the coordinator knows which are needed.
func isState(name string) bool {
	return strings.HasPrefix(name, slotstate.Prefix)
}

// predates reports whether a segment is at least as new as all segments that the manifest names for its shard.
func (m *Running) predates(f *rowsFileName) bool {
	return int(f.shard) >= len(m.Shards) ||
		f.generation >= m.Generation && f.compare(m.Shards[f.shard].last()) >= 0
}

// rowsFileName is the key and the shard of a segment of selected rows.
type rowsFileName struct {
	rowsKey
	shard perdure.ShardID
}

// parseSegmentFile parses the name of a segment, or of a temporary file of an unfinished write. It returns the cut that
// the file belongs to, or the key of the selected rows, or the number of the running manifest.
func parseSegmentFile(name string) (cut key, rows *rowsFileName, number uint64, ok bool) {
	if final, temporary := store.ParseUnfinished(name); temporary {
		if cut, ok = parseManifestName(final); ok {
			return cut, nil, 0, true
		}
		if number, ok = parseRunningName(final); ok {
			return cut, nil, number, true
		}
		name = final
	}
	if k, shard, ok := parseRowsName(name); ok {
		return cut, &rowsFileName{k, shard}, 0, true
	}
	cut, _, ok = parseSegmentName(name)
	return cut, nil, 0, ok
}

// Remove deletes the files that PlanRemoval returned: first the manifests and, once that is durable, the files that
// they named, so that no manifest outlives its segments.
func Remove(in store.Store, r Removal) error {
	if err := in.Sync(); err != nil { // the remaining files must be durable before others are deleted
		return fmt.Errorf("checkpoint: %w", err)
	}
	for _, names := range [][]string{r.Manifests, r.Files} {
		if err := in.Delete(names...); err != nil {
			return fmt.Errorf("checkpoint: %w", err)
		}
	}
	return nil
}
