package checkpoint

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/recovery"
	"github.com/perdure/perdure/internal/data/disk"
	"github.com/perdure/perdure/internal/data/store"
)

// ManifestVersion is the version of the manifest format.
const ManifestVersion = 1

// A manifest file is a sealed document (see disk.Seal) with a JSON body:
//
//	PERDURE CHECKPOINT <version> bytes <body bytes> crc32c <8 hexadecimal digits>\n
//	{ the type Manifest, indented }\n
const manifestKind = "CHECKPOINT"

func (m Manifest) encode() ([]byte, error) {
	body, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return nil, err
	}
	return disk.Seal(manifestKind, ManifestVersion, append(body, '\n')), nil
}

func decodeManifest(sealed []byte) (m Manifest, err error) {
	body, err := disk.Unseal(manifestKind, ManifestVersion, sealed)
	if err != nil {
		return m, err
	}
	if err := json.Unmarshal(body, &m); err != nil {
		return m, corrupt("%v", err)
	}
	if err := m.check(); err != nil {
		return m, corrupt("%v", err)
	}
	return m, nil
}

// normalized returns the manifest with its segments sorted by shard.
func (m Manifest) normalized() Manifest {
	m.Segments = slices.Clone(m.Segments)
	slices.SortFunc(m.Segments, func(a, b SegmentRef) int { return cmp.Compare(a.Shard, b.Shard) })
	return m
}

// checkStates returns an error if a file's name is not that of a slot state.
func checkStates(files []FileRef) error {
	if i := slices.IndexFunc(files, func(f FileRef) bool { return !isState(f.File) }); i >= 0 {
		return fmt.Errorf("%q is not a saved state", files[i].File)
	}
	return nil
}

// check returns an error if the manifest is invalid in itself, whatever the store holds.
func (m Manifest) check() error {
	if err := recovery.Check(&m.Job); err != nil {
		return err
	}
	if m.Cut < 0 || m.PastClocks < 0 {
		return fmt.Errorf("invalid cut %d or number of past clocks %d: both must be ≥ 0", m.Cut, m.PastClocks)
	}
	if i := slices.IndexFunc(m.Clocks, func(c perdure.Clock) bool { return c < 0 || c > perdure.MaxClock }); i >= 0 {
		return fmt.Errorf("invalid clock %d of slot %d", m.Clocks[i], i)
	}
	for _, t := range m.Tables {
		if err := t.Validate(m.Job.Shards); err != nil {
			return err
		}
	}
	if len(m.Segments) != m.Job.Shards {
		return fmt.Errorf("it has %d segments for %d shards", len(m.Segments), m.Job.Shards)
	}
	for i, ref := range m.Segments {
		if ref.Shard != perdure.ShardID(i) {
			return fmt.Errorf("segment %d of %d belongs to shard %d; each shard must have exactly one", i,
				len(m.Segments), ref.Shard)
		}
		if k, shard, ok := parseSegmentName(ref.File); !ok || k != m.key() || shard != ref.Shard {
			return fmt.Errorf("%q is not a segment of shard %d at generation %d, cut %d", ref.File, i, m.Generation,
				m.Cut)
		}
		if err := cmp.Or(ref.checkBase(m.key()), checkStates(ref.States)); err != nil {
			return err
		}
	}
	return nil
}

// checkBase checks that the files in Base are earlier segments of the same shard, in order.
func (r SegmentRef) checkBase(k key) error {
	for i := len(r.Base) - 1; i >= 0; i-- {
		earlier, shard, ok := parseSegmentName(r.Base[i].File)
		if !ok || shard != r.Shard || earlier.compare(k) >= 0 {
			return fmt.Errorf(
				"%q is not an earlier segment of shard %d; a segment at generation %d, cut %d cannot follow it",
				r.Base[i].File, r.Shard, k.generation, k.cut)
		}
		k = earlier
	}
	return nil
}

// Publish creates a checkpoint from segments that have been written. It checks that every shard has exactly one segment
// and that these segments, and those they build on, exist at full length. Then it writes the manifest durably and
// atomically. Publishing the same checkpoint again has no effect; publishing one older than the newest returns
// perdure.ErrFenced. A store holds the checkpoints of one job.
func Publish(in store.Store, m Manifest) error {
	m = m.normalized()
	name := m.key().manifest()
	old, err := Latest(in)
	if err != nil && !errors.Is(err, ErrNoCheckpoint) {
		return err
	}
	if err == nil {
		if err := old.CheckJob(m.Job.ID); err != nil {
			return err
		}
		if old.key().compare(m.key()) > 0 {
			return fmt.Errorf("checkpoint: publish %s: %s is newer: %w", name, old.key().manifest(), perdure.ErrFenced)
		}
	}
	sealed, err := m.encode()
	if err == nil {
		_, err = decodeManifest(sealed) // a manifest that cannot be read back must not be published
	}
	if err != nil {
		return fmt.Errorf("checkpoint: publish %s: %w", name, err)
	}
	if err := writeManifest(in, name, sealed, m.Files()); err != nil {
		return fmt.Errorf("checkpoint: publish %s: %w", name, err)
	}
	return nil
}

// writeManifest writes a manifest durably, after checking that all files it names exist and are durable.
func writeManifest(in store.Store, name string, sealed []byte, files []FileRef) error {
	if err := in.Sync(); err != nil {
		return err
	}
	if err := checkSizes(in, files); err != nil {
		return err
	}
	return in.Put(name, func(w io.Writer) error {
		_, err := w.Write(sealed)
		return err
	})
}

// checkSizes checks that all files exist at full length. A file whose listed size differs is queried individually.
func checkSizes(in store.Store, files []FileRef) error {
	all, err := in.List("")
	sizes := sizesOf(all)
	for _, f := range files {
		if n, there := sizes[f.File]; err == nil && (!there || n != f.Bytes) {
			err = checkSize(in, f)
		}
	}
	return err
}

// sizesOf returns the sizes of the listed files, by name.
func sizesOf(all []store.Entry) map[string]int64 {
	sizes := map[string]int64{}
	for _, e := range all {
		sizes[e.Name] = e.Bytes
	}
	return sizes
}

func checkSize(in store.Store, ref FileRef) error {
	switch err := sizeDefect(in, ref).Err; {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%s is missing: %w: %w", ref.File, ErrCorrupt, fs.ErrNotExist)
	case err != nil:
		return fmt.Errorf("%s: %w", ref.File, err)
	}
	return nil
}

// readManifest reads the manifest with that key.
func readManifest(in store.Store, k key) (Manifest, error) {
	name := k.manifest()
	sealed, err := store.Read(in, name)
	if err != nil {
		return Manifest{}, fmt.Errorf("checkpoint: read manifest: %w", err)
	}
	m, err := decodeManifest(sealed)
	if err == nil && m.key() != k {
		err = corrupt("it describes %s", m.key().manifest())
	}
	if err != nil {
		return Manifest{}, fmt.Errorf("checkpoint: manifest %s/%s: %w", in, name, err)
	}
	return m, nil
}

// manifests returns the keys of the manifests in a store, newest first.
func manifests[K any](in store.Store, prefix string, parse func(string) (K, bool), compare func(a, b K) int,
) (keys []K, err error) {
	all, err := in.List(prefix)
	if err != nil {
		return nil, fmt.Errorf("checkpoint: %w", err)
	}
	for _, e := range all {
		if k, ok := parse(e.Name); ok {
			keys = append(keys, k)
		}
	}
	slices.SortFunc(keys, func(a, b K) int { return compare(b, a) })
	return keys, nil
}

// Latest returns the newest checkpoint whose manifest is valid: the highest generation and, within it, the highest cut.
// It is durable: Latest syncs the store first, because a process may have died after renaming a file but before syncing
// it.
//
// A damaged manifest is skipped, because Publish never leaves one. A manifest of another version of Perdure is an
// error: starting from an earlier checkpoint instead would lose training progress. If no manifest is valid, the error
// is ErrNoCheckpoint.
func Latest(in store.Store) (Manifest, error) {
	keys, err := manifests(in, "g", parseManifestName, key.compare)
	if err != nil {
		return Manifest{}, err
	}
	return newest(in, keys, readManifest)
}

// newest returns the first undamaged manifest of those with the given keys, which are ordered newest first.
func newest[K, M any](in store.Store, keys []K, read func(store.Store, K) (M, error),
) (none M, err error) {
	if len(keys) == 0 {
		return none, fmt.Errorf("checkpoint: %s holds %w", in, ErrNoCheckpoint)
	}
	if err := in.Sync(); err != nil {
		return none, fmt.Errorf("checkpoint: %w", err)
	}
	var damaged error
	for _, k := range keys {
		m, err := read(in, k)
		switch {
		case err == nil:
			return m, nil
		case !errors.Is(err, ErrCorrupt):
			return none, err
		case damaged == nil:
			damaged = err
		}
	}
	return none, fmt.Errorf("checkpoint: %s holds %w that can be read: %w", in, ErrNoCheckpoint, damaged)
}

// LatestOfCut returns the newest checkpoint of a cut among the generations up to upTo. It opens manifests by name,
// because a listing may lack the newest. It skips damaged ones; if no other exists, the error describes the damaged
// one.
func LatestOfCut(in store.Store, cut perdure.Clock, upTo perdure.Generation) (none Manifest, err error) {
	damaged := fmt.Errorf("%w of clock %d in %s", ErrNoCheckpoint, cut, in)
	for n := range upTo + 1 {
		m, err := readManifest(in, key{upTo - n, cut})
		if err == nil {
			return m, in.Sync()
		} else if errors.Is(err, ErrCorrupt) {
			damaged = err
		} else if !errors.Is(err, fs.ErrNotExist) {
			return none, err
		}
	}
	return none, damaged
}

// Verify reads all segments of a checkpoint and checks every byte.
func Verify(in store.Store, m Manifest) error {
	m = m.normalized()
	if err := m.check(); err != nil {
		return fmt.Errorf("checkpoint: manifest %s: %w", m.key().manifest(), corrupt("%v", err))
	}
	for _, ref := range m.Segments {
		if _, err := m.restore(in, ref, nil, true); err != nil {
			return err
		}
		if wrong, whole := NewAudit(in).states(ref.States); !whole {
			return fmt.Errorf("checkpoint: %s: %w", wrong[0].File, wrong[0].Err)
		}
	}
	return nil
}
