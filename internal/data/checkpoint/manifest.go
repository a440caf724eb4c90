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

// normal returns the manifest with its segments in order.
func (m Manifest) normal() Manifest {
	m.Segments = slices.Clone(m.Segments)
	slices.SortFunc(m.Segments, func(a, b SegmentRef) int { return cmp.Compare(a.Shard, b.Shard) })
	return m
}

// checkStates reports what cannot be the name of a saved state.
func checkStates(files []FileRef) error {
	if i := slices.IndexFunc(files, func(f FileRef) bool { return !isState(f.File) }); i >= 0 {
		return fmt.Errorf("%q is no saved state", files[i].File)
	}
	return nil
}

// check reports what makes a manifest useless, whatever the disk holds.
func (m Manifest) check() error {
	if err := recovery.Check(&m.Job); err != nil {
		return err
	}
	if m.Cut < 0 || m.PastClocks < 0 {
		return fmt.Errorf("cut %d, %d past clocks", m.Cut, m.PastClocks)
	}
	for _, t := range m.Tables {
		if err := t.Validate(m.Job.Shards); err != nil {
			return err
		}
	}
	if len(m.Segments) != m.Job.Shards {
		return fmt.Errorf("%d segments for %d shards", len(m.Segments), m.Job.Shards)
	}
	for i, ref := range m.Segments {
		if ref.Shard != perdure.ShardID(i) {
			return fmt.Errorf("segment %d of %d is of shard %d; each shard must have exactly one", i, len(m.Segments),
				ref.Shard)
		}
		if k, shard, ok := parseSegmentName(ref.File); !ok || k != m.key() || shard != ref.Shard {
			return fmt.Errorf("%q is no segment of shard %d at generation %d, cut %d", ref.File, i, m.Generation, m.Cut)
		}
		if err := cmp.Or(ref.checkBase(m.key()), checkStates(ref.States)); err != nil {
			return err
		}
	}
	return nil
}

// checkBase checks that a segment follows earlier ones of its shard, in order.
func (r SegmentRef) checkBase(k key) error {
	for i := len(r.Base) - 1; i >= 0; i-- {
		earlier, shard, ok := parseSegmentName(r.Base[i].File)
		if !ok || shard != r.Shard || earlier.compare(k) >= 0 {
			return fmt.Errorf("%q is no segment that one of shard %d at generation %d, cut %d can follow",
				r.Base[i].File, r.Shard, k.generation, k.cut)
		}
		k = earlier
	}
	return nil
}

// Publish makes a checkpoint of segments that have been written: it checks that every shard has exactly one, that
// these and those that they follow are there in full length, and then writes the manifest durably, whole or not at
// all. Publishing it again does no harm; publishing one older than the newest gives perdure.ErrFenced. A folder holds
// the checkpoints of one job.
func Publish(in store.Store, m Manifest) error {
	m = m.normal()
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
		_, err = decodeManifest(sealed) // what cannot be read back must not be published
	}
	if err != nil {
		return fmt.Errorf("checkpoint: publish %s: %w", name, err)
	}
	if err := writeManifest(in, name, sealed, m.Files()); err != nil {
		return fmt.Errorf("checkpoint: publish %s: %w", name, err)
	}
	return nil
}

// writeManifest writes a manifest durably, when all files that it names are there and durable.
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

// checkSizes checks that all files are there, in full length; what is not listed so is asked for.
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

// sizesOf returns the sizes of what a store has listed.
func sizesOf(all []store.Entry) map[string]int64 {
	sizes := map[string]int64{}
	for _, e := range all {
		sizes[e.Name] = e.Bytes
	}
	return sizes
}

func checkSize(in store.Store, ref FileRef) error {
	switch err := lack(in, ref).Err; {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%s is missing: %w: %w", ref.File, ErrCorrupt, fs.ErrNotExist)
	case err != nil:
		return fmt.Errorf("%s: %w", ref.File, err)
	}
	return nil
}

// readManifest reads the manifest of that name.
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

// manifests returns which manifests a folder holds, newest first.
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

// Latest returns the newest checkpoint: the highest generation, and in it the
// highest cut, whose manifest is valid. It is durable: what a process that died
// had renamed but not synced yet is synced before it is believed.
//
// A damaged manifest is passed over, because publishing leaves none behind. A
// manifest of another version of Perdure is an error: starting from an earlier
// checkpoint instead would lose training. Without a valid one the error is ErrNoCheckpoint.
func Latest(in store.Store) (Manifest, error) {
	keys, err := manifests(in, "g", parseManifestName, key.compare)
	if err != nil {
		return Manifest{}, err
	}
	return newest(in, keys, readManifest)
}

// newest reads the first manifest that is not damaged, of those that a folder holds, newest first.
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

// Of returns the newest checkpoint of a cut, of the generations up to one. It opens manifests by their names, since a
// list may lack the newest. A damaged one is passed over; without another the error is about it.
func Of(in store.Store, cut perdure.Clock, upTo perdure.Generation) (none Manifest, err error) {
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
	m = m.normal()
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
