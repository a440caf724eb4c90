package checkpoint

import (
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/states"
	"github.com/perdure/perdure/internal/data/store"
)

// Removal is what is to be deleted of a folder.
type Removal struct {
	Manifests []string // oldest first
	Files     []string // that no manifest names which stays
}

// Without returns what is to be deleted so that of the checkpoints only the newest n are left, and
// nothing that belongs to none. What a checkpoint may need that stays is not in it: where the
// manifest of one cannot be used, that is every segment which may be one of its own. newer says
// that what is newer than all manifests stays, too: somebody may be about to publish it.
func (f *Found) Without(n int, newer bool) (r Removal) {
	n = min(n, len(f.Kept))
	named := map[string]bool{}
	for i := range f.Kept[:n] {
		for _, file := range f.Kept[i].Files() {
			named[file.File] = true
		}
	}
	s := f.spares(n, newer)
	delete := func(name string) {
		if !named[name] && !s.may(name) {
			r.Files = append(r.Files, name)
		}
	}
	for i := range f.Kept {
		if i >= n {
			r.Manifests = append(r.Manifests, f.Kept[i].File)
		}
		for _, file := range f.Kept[i].Files() {
			delete(file.File)
		}
	}
	slices.Reverse(r.Manifests)
	for _, l := range f.Loose {
		delete(l.File)
	}
	slices.Sort(r.Files)
	r.Files = slices.Compact(r.Files)
	return r
}

// Prune deletes what the checkpoint keep has made superfluous: first the manifests of before it, but
// for the n-1 newest of them that can be read (n is 0: for all), and when that is durable the
// segments that nobody needs any more, and what writers that died left behind. What is newer than
// the newest stays: it may be about to be published.
func Prune(in store.Store, keep Manifest, n int) error {
	return prune(in, keep.key().manifest(), n)
}

// PruneRunning does so with a running checkpoint.
func PruneRunning(in store.Store, keep Running, n int) error {
	return prune(in, keep.name(), n)
}

// Withdraw deletes the manifest of a checkpoint, which is then no checkpoint any more. Its segments stay until the next
// Prune. A manifest that is missing is not an error.
func Withdraw(in store.Store, m Manifest) error {
	if err := in.Delete(m.key().manifest()); err != nil {
		return fmt.Errorf("checkpoint: withdraw %s: %w", m.key().manifest(), err)
	}
	return nil
}

func prune(in store.Store, keep string, n int) error {
	all, err := listed(in)
	if err != nil {
		return fmt.Errorf("checkpoint: prune: %w", err)
	}
	// Cuts and running checkpoints have nothing in common.
	found := gather(in, all, func(name string) bool { return path.Ext(name) == path.Ext(keep) })
	at := slices.IndexFunc(found.Kept, func(k Kept) bool { return k.File == keep })
	switch {
	case at < 0:
		return fmt.Errorf("checkpoint: prune: %s is %w", keep, fs.ErrNotExist)
	case found.Kept[at].Err != nil:
		return fmt.Errorf("checkpoint: prune: %w", found.Kept[at].Err)
	}
	stay := len(found.Kept)
	for i := at; i < stay && n > 0; i++ {
		if found.Kept[i].Err != nil {
			continue
		}
		if n--; n == 0 {
			stay = i + 1
		}
	}
	return Remove(in, found.Without(stay, true))
}

// spares says which files stay though no manifest that stays is known to name them.
type spares struct {
	newer  bool   // what is newer than all stays
	states bool   // all states of slots stay: the job may live, and who needs them is not known here
	number uint64 // of the newest running checkpoint
	// of cuts: the last of those that may need what they do not say, and the last of all
	unread, newest key
	// Of running checkpoints: where any, segments of rows stay that are newer than those of last,
	// or all, where there is no last.
	any  bool // newer says so, too
	last *Running
}

// spares looks at the newest n checkpoints.
func (f *Found) spares(n int, newer bool) *spares {
	s := &spares{newer: newer, states: newer}
	s.unread.cut, s.newest.cut = -1, -1
	for i := range f.Kept {
		k := &f.Kept[i]
		s.states = s.states || i < n && k.Err != nil
		switch {
		case k.Number > 0:
			s.number = max(s.number, k.Number)
			if i < n {
				s.running(k)
			}
			continue
		case k.key().compare(s.newest) > 0:
			s.newest = k.key()
		}
		if i < n && k.Err != nil && k.key().compare(s.unread) > 0 {
			s.unread = k.key()
		}
	}
	return s
}

// running takes in the next older one of the running checkpoints that stay. What one needs is what
// the next older one names, or newer; so one that cannot be used needs nothing else.
func (s *spares) running(k *Kept) {
	switch {
	case k.Err != nil:
		s.any, s.last = true, nil
	case s.last == nil:
		s.last = &k.Running
	}
}

// may reports whether a file may be needed that nobody names who stays.
func (s *spares) may(name string) bool {
	if isState(name) {
		return s.states
	}
	_, begun := store.BegunOf(name)
	cut, rows, number, _ := partOf(name)
	switch {
	case number > 0:
		return s.newer && number >= s.number
	case rows != nil:
		return (s.newer || s.any && !begun) && (s.last == nil || s.last.lacks(rows))
	}
	newer := cut.compare(s.newest)
	return !begun && cut.compare(s.unread) <= 0 || s.newer && (newer > 0 || begun && newer == 0)
}

// isState reports whether a file is what a slot gave to be saved, or was begun to become it. One that no manifest
// names is not looked at here: the coordinator knows who needs it.
func isState(name string) bool {
	return strings.HasPrefix(name, states.Prefix)
}

// lacks reports whether a segment is no older than all that it names of that shard.
func (m *Running) lacks(f *rowsFile) bool {
	return int(f.shard) >= len(m.Shards) ||
		f.generation >= m.Generation && f.compare(m.Shards[f.shard].last()) >= 0
}

// rowsFile is a segment of chosen rows, and of which shard it is.
type rowsFile struct {
	rowsKey
	shard perdure.ShardID
}

// partOf returns of what a segment is, or a file that somebody has begun: of a cut, of chosen
// rows, or the manifest of that number.
func partOf(name string) (cut key, rows *rowsFile, number uint64, ok bool) {
	if final, temporary := store.BegunOf(name); temporary {
		if cut, ok = parseManifestName(final); ok {
			return cut, nil, 0, true
		}
		if number, ok = parseRunningName(final); ok {
			return cut, nil, number, true
		}
		name = final
	}
	if k, shard, ok := parseRowsName(name); ok {
		return cut, &rowsFile{k, shard}, 0, true
	}
	cut, _, ok = parseSegmentName(name)
	return cut, nil, 0, ok
}

// Remove deletes what Without returned: first the manifests, and when that is durable what they
// named, so that no manifest outlives its segments.
func Remove(in store.Store, r Removal) error {
	if err := in.Sync(); err != nil { // what stays is durable before others go
		return fmt.Errorf("checkpoint: %w", err)
	}
	for _, names := range [][]string{r.Manifests, r.Files} {
		if err := in.Delete(names...); err != nil {
			return fmt.Errorf("checkpoint: %w", err)
		}
	}
	return nil
}
