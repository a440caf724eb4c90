package shardstore

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"regexp"
	"slices"
	"strconv"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/disk"
	"github.com/perdure/perdure/internal/data/store"
)

// A snapshot is a shard's whole state at a position of its update log, in an object of a store, so that whoever
// restores the shard need not read the log from its beginning. It is written once, whole or not at all, and
// never changed; what a reader returns without an error is what was written, bit by bit.
//
// What a snapshot says is a function of the log before its position, whoever wrote it: so the newest
// there is may be used, and nobody records their names.

// ErrOtherJob is wrapped when a file belongs to another job, or another shard.
var ErrOtherJob = errors.New("belongs to another job")

// SnapshotVersion is the version of the format.
const SnapshotVersion = 2

// A snapshot file is one shard's whole state at a position of its update log,
// little-endian: what a server sends to a replica that lacks it, in a file.
//
//	 0      8     magic "PRDRSNAP"
//	 8      4     version of this format (2)
//	12      4     bytes n of what it says of itself
//	16      n     About, as JSON
//	16+n    h     the head, as in messages of a snapshot
//	16+n+h  r     the rows, likewise
//	        4     CRC-32C of all before
const (
	magic        = "PRDRSNAP"
	fixedBytes   = 16
	mostAboutIt  = 1 << 16
	trailerBytes = 4
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// SnapshotAbout says what a snapshot file is of.
type SnapshotAbout struct {
	Job        string             `json:"job"`
	Shard      perdure.ShardID    `json:"shard"`
	Generation perdure.Generation `json:"generation"`
	Epoch      perdure.Epoch      `json:"epoch"`
	Seq        uint64             `json:"seq"`      // updates that the rows contain
	Position   uint64             `json:"position"` // from which on the log holds what is not in it
	Head       int64              `json:"head"`     // bytes
	Rows       int64              `json:"rows"`     // bytes
}

// SnapshotFile names a snapshot within its store.
type SnapshotFile struct {
	Name     string
	Position uint64
}

var fileName = regexp.MustCompile(`^s(\d+)-p(\d+)-g(\d+)-e(\d+)\.snapshot$`)

func (s *SnapshotAbout) name() string {
	return fmt.Sprintf("s%05d-p%020d-g%06d-e%06d.snapshot", s.Shard, s.Position, s.Generation, s.Epoch)
}

// WriteSnapshot puts a snapshot into a store. body writes the head and then the rows, of as many bytes as s says.
func WriteSnapshot(in store.Store, s *SnapshotAbout, body func(io.Writer) error) (SnapshotFile, error) {
	about, err := json.Marshal(s)
	if err != nil {
		return SnapshotFile{}, fmt.Errorf("snapshot: %w", err)
	}
	file := SnapshotFile{s.name(), s.Position}
	err = in.Put(file.Name, func(to io.Writer) error {
		w := &summed{to: to}
		start := append(make([]byte, 0, fixedBytes+len(about)), magic...)
		start = binary.LittleEndian.AppendUint32(start, SnapshotVersion)
		start = binary.LittleEndian.AppendUint32(start, uint32(len(about)))
		if _, err := w.Write(append(start, about...)); err != nil {
			return err
		}
		before := w.n
		if err := body(w); err != nil {
			return err
		}
		if w.n-before != s.Head+s.Rows {
			return fmt.Errorf("snapshot: %d bytes of a snapshot of %d", w.n-before, s.Head+s.Rows)
		}
		_, err := to.Write(binary.LittleEndian.AppendUint32(nil, w.sum))
		return err
	})
	return file, err
}

// summed counts what is written, or read, and adds it up.
type summed struct {
	to   io.Writer
	from io.Reader
	n    int64
	sum  uint32
}

func (s *summed) Write(b []byte) (int, error) {
	s.add(b)
	return s.to.Write(b)
}

func (s *summed) Read(b []byte) (int, error) {
	n, err := s.from.Read(b)
	s.add(b[:n])
	return n, err
}

func (s *summed) add(b []byte) {
	s.n, s.sum = s.n+int64(len(b)), crc32.Update(s.sum, castagnoli, b)
}

// prefix is how the names of a shard's snapshots begin. (Of shards with more digits there are more.)
func prefix(shard perdure.ShardID) string { return fmt.Sprintf("s%05d-p", shard) }

// ListSnapshots lists a shard's snapshots, the newest first. Whether they are whole is not known.
func ListSnapshots(in store.Store, shard perdure.ShardID) (files []SnapshotFile, err error) {
	all, err := in.List(prefix(shard))
	if err != nil {
		return nil, fmt.Errorf("snapshot: %w", err)
	}
	for _, e := range all {
		if of, position, ok := parseName(e.Name); ok && of == shard {
			files = append(files, SnapshotFile{e.Name, position})
		}
	}
	slices.SortStableFunc(files, func(a, b SnapshotFile) int {
		return cmp.Or(cmp.Compare(b.Position, a.Position), cmp.Compare(b.Name, a.Name))
	})
	return files, nil
}

func parseName(name string) (shard perdure.ShardID, position uint64, ok bool) {
	m := fileName.FindStringSubmatch(name)
	if m == nil {
		return 0, 0, false
	}
	of, err := strconv.ParseInt(m[1], 10, 32)
	if err == nil {
		position, err = strconv.ParseUint(m[2], 10, 64)
	}
	return perdure.ShardID(of), position, err == nil
}

// PruneSnapshots deletes a shard's snapshots of positions before the given one, and what was begun of such.
func PruneSnapshots(in store.Store, shard perdure.ShardID, before uint64) error {
	all, err := in.List(prefix(shard))
	if err != nil {
		return fmt.Errorf("snapshot: %w", err)
	}
	begun, err := in.Begun()
	if err != nil {
		return fmt.Errorf("snapshot: %w", err)
	}
	var old []string
	for _, e := range append(all, begun...) {
		final, ok := store.BegunOf(e.Name)
		if !ok {
			final = e.Name
		}
		if of, position, ok := parseName(final); ok && of == shard && position < before {
			old = append(old, e.Name)
		}
	}
	if err := in.Delete(old...); err != nil {
		return fmt.Errorf("snapshot: %w", err)
	}
	return nil
}

// ReadSnapshot reads and checks a snapshot of a job's shard. body is given what
// it says of itself, and the head and then the rows to read; what it makes of
// them counts only if Read returns no error.
func ReadSnapshot(in store.Store, name, job string, shard perdure.ShardID,
	body func(*SnapshotAbout, io.Reader) error,
) error {
	return read(in, name, func(s *SnapshotAbout) error {
		if s.Job == job && s.Shard == shard {
			return nil
		}
		return fmt.Errorf("snapshot: %s %w: shard %d of %q, not shard %d of %q", name, ErrOtherJob, s.Shard, s.Job,
			shard, job)
	}, body)
}

// CheckSnapshot reads a snapshot to its last byte. It returns its length, and a job's ID: that of the snapshot, which
// must be job's unless that is "".
func CheckSnapshot(in store.Store, name, job string) (bytes int64, of string, err error) {
	err = read(in, name, func(s *SnapshotAbout) error {
		if of = s.Job; name != s.name() || job != "" && job != of {
			return fmt.Errorf("snapshot: %s %w: it is %s of %q", name, ErrOtherJob, s.name(), of)
		}
		return nil
	}, func(s *SnapshotAbout, _ io.Reader) error {
		bytes = s.Head + s.Rows
		return nil
	})
	return bytes, of, err
}

// AllSnapshots returns the names of all snapshots of a store.
func AllSnapshots(in store.Store) (names []string, err error) {
	all, err := in.List("s")
	for _, e := range all {
		if _, _, ok := parseName(e.Name); ok {
			names = append(names, e.Name)
		}
	}
	return names, err
}

// read reads and checks a snapshot that means accepts.
func read(
	in store.Store,
	name string,
	means func(*SnapshotAbout) error,
	body func(*SnapshotAbout, io.Reader) error,
) error {
	bad := func(format string, args ...any) error {
		return fmt.Errorf("snapshot: %s is %w: %s", name, disk.ErrCorrupt, fmt.Sprintf(format, args...))
	}
	f, err := in.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return bad("it is missing")
	}
	if err != nil {
		return fmt.Errorf("snapshot: %w", err)
	}
	defer f.Close()
	size := f.Size()
	r := &summed{from: f}
	s, err := readAbout(r, bad)
	if err != nil {
		if errors.Is(err, disk.ErrOtherVersion) {
			return fmt.Errorf("snapshot: %s was %w", name, err)
		}
		return err
	}
	if err := means(s); err != nil {
		return err
	}
	switch {
	case s.Head < 0 || s.Rows < 0 || s.Head > size || r.n+s.Head+s.Rows+trailerBytes != size:
		return bad("it has %d bytes, not those it announces", size)
	}
	if err := body(s, io.LimitReader(r, s.Head+s.Rows)); err != nil {
		return bad("%v", err)
	}
	if _, err := io.Copy(io.Discard, io.LimitReader(r, size-trailerBytes-r.n)); err != nil {
		return bad("%v", err)
	}
	sum, want := r.sum, make([]byte, trailerBytes)
	if _, err := io.ReadFull(f, want); err != nil || binary.LittleEndian.Uint32(want) != sum {
		return bad("checksum mismatch")
	}
	return nil
}

// readAbout reads what a snapshot file says of itself.
func readAbout(r io.Reader, bad func(string, ...any) error) (*SnapshotAbout, error) {
	start := make([]byte, fixedBytes)
	if _, err := io.ReadFull(r, start); err != nil || !bytes.HasPrefix(start, []byte(magic)) {
		return nil, bad("it does not begin with %q", magic)
	}
	if err := disk.CheckVersion(uint64(binary.LittleEndian.Uint32(start[8:])), SnapshotVersion); err != nil {
		return nil, err
	}
	n := binary.LittleEndian.Uint32(start[12:])
	if n > mostAboutIt {
		return nil, bad("it says %d bytes of itself", n)
	}
	about := make([]byte, n)
	if _, err := io.ReadFull(r, about); err != nil {
		return nil, bad("truncated")
	}
	s := new(SnapshotAbout)
	if err := json.Unmarshal(about, s); err != nil {
		return nil, bad("%v", err)
	}
	return s, nil
}
