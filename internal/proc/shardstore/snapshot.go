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

// A snapshot is a shard's complete state at a position of its update log, in an object of a store, so that a restore
// need not read the log from the start. It is written atomically and never changed. A reader that returns no error has
// read exactly what was written.
//
// The content of a snapshot depends only on the log before its position and not on its writer. Therefore the newest
// existing snapshot may be used, and their names are not recorded anywhere.

// ErrOtherJob is wrapped when a file belongs to another job, or another shard.
var ErrOtherJob = errors.New("belongs to another job")

// SnapshotVersion is the version of the file format.
const SnapshotVersion = 2

// A snapshot file has the same content as the messages that copy a shard to another replica. All integers are
// little-endian.
//
//	 0      8     magic "PRDRSNAP"
//	 8      4     version of this format (2)
//	12      4     length n of the description
//	16      n     SnapshotHeader, as JSON
//	16+n    h     the head, as in snapshot messages
//	16+n+h  r     the rows, as in snapshot messages
//	        4     CRC-32C of all before
const (
	magic          = "PRDRSNAP"
	fixedBytes     = 16
	maxHeaderBytes = 1 << 16
	trailerBytes   = 4
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// SnapshotHeader describes the content of a snapshot file.
type SnapshotHeader struct {
	Job        string             `json:"job"`
	Shard      perdure.ShardID    `json:"shard"`
	Generation perdure.Generation `json:"generation"`
	Epoch      perdure.Epoch      `json:"epoch"`
	Seq        uint64             `json:"seq"`      // number of updates in the rows
	Position   uint64             `json:"position"` // the first log record that may not be in the snapshot
	Head       int64              `json:"head"`     // length in bytes
	Rows       int64              `json:"rows"`     // length in bytes
}

// SnapshotFile identifies a snapshot in its store.
type SnapshotFile struct {
	Name     string
	Position uint64
}

var fileName = regexp.MustCompile(`^s(\d+)-p(\d+)-g(\d+)-e(\d+)\.snapshot$`)

func (s *SnapshotHeader) name() string {
	return fmt.Sprintf("s%05d-p%020d-g%06d-e%06d.snapshot", s.Shard, s.Position, s.Generation, s.Epoch)
}

// WriteSnapshot writes a snapshot to a store. body must write the head and then the rows with the lengths given in s.
func WriteSnapshot(in store.Store, s *SnapshotHeader, body func(io.Writer) error) (SnapshotFile, error) {
	about, err := json.Marshal(s)
	if err != nil {
		return SnapshotFile{}, fmt.Errorf("snapshot: %w", err)
	}
	file := SnapshotFile{s.name(), s.Position}
	err = in.Put(file.Name, func(to io.Writer) error {
		w := &checksummer{to: to}
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
			return fmt.Errorf("snapshot: wrote %d bytes, want %d", w.n-before, s.Head+s.Rows)
		}
		_, err := to.Write(binary.LittleEndian.AppendUint32(nil, w.sum))
		return err
	})
	return file, err
}

// checksummer counts the bytes written or read and computes their checksum.
type checksummer struct {
	to   io.Writer
	from io.Reader
	n    int64
	sum  uint32
}

func (s *checksummer) Write(b []byte) (int, error) {
	s.add(b)
	return s.to.Write(b)
}

func (s *checksummer) Read(b []byte) (int, error) {
	n, err := s.from.Read(b)
	s.add(b[:n])
	return n, err
}

func (s *checksummer) add(b []byte) {
	s.n, s.sum = s.n+int64(len(b)), crc32.Update(s.sum, castagnoli, b)
}

// prefix returns the prefix of the names of a shard's snapshots. Shards with more digits may share it.
func prefix(shard perdure.ShardID) string { return fmt.Sprintf("s%05d-p", shard) }

// ListSnapshots lists a shard's snapshots, newest first, without checking their content.
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

// PruneSnapshots deletes a shard's snapshots with positions below before, including incomplete ones.
func PruneSnapshots(in store.Store, shard perdure.ShardID, before uint64) error {
	all, err := in.List(prefix(shard))
	if err != nil {
		return fmt.Errorf("snapshot: %w", err)
	}
	started, err := in.Unfinished()
	if err != nil {
		return fmt.Errorf("snapshot: %w", err)
	}
	var old []string
	for _, e := range append(all, started...) {
		final, ok := store.ParseUnfinished(e.Name)
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

// ReadSnapshot reads and checks a snapshot of a job's shard. body receives the description, and a reader of the head
// and the rows. Its results are valid only if ReadSnapshot returns no error.
func ReadSnapshot(in store.Store, name, job string, shard perdure.ShardID,
	body func(*SnapshotHeader, io.Reader) error,
) error {
	return read(in, name, func(s *SnapshotHeader) error {
		if s.Job == job && s.Shard == shard {
			return nil
		}
		return fmt.Errorf("snapshot: %s %w: shard %d of %q, not shard %d of %q", name, ErrOtherJob, s.Shard, s.Job,
			shard, job)
	}, body)
}

// CheckSnapshot checks a complete snapshot. It returns its length and the ID of its job, which must be job unless job
// is "".
func CheckSnapshot(in store.Store, name, job string) (bytes int64, of string, err error) {
	err = read(in, name, func(s *SnapshotHeader) error {
		if of = s.Job; name != s.name() || job != "" && job != of {
			return fmt.Errorf("snapshot: %s %w: it is %s of %q", name, ErrOtherJob, s.name(), of)
		}
		return nil
	}, func(s *SnapshotHeader, _ io.Reader) error {
		bytes = s.Head + s.Rows
		return nil
	})
	return bytes, of, err
}

// AllSnapshots returns the names of all snapshots in a store.
func AllSnapshots(in store.Store) (names []string, err error) {
	all, err := in.List("s")
	for _, e := range all {
		if _, _, ok := parseName(e.Name); ok {
			names = append(names, e.Name)
		}
	}
	return names, err
}

// read reads and checks a snapshot whose description passes means.
func read(
	in store.Store,
	name string,
	means func(*SnapshotHeader) error,
	body func(*SnapshotHeader, io.Reader) error,
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
	r := &checksummer{from: f}
	s, err := readHeader(r, bad)
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
		return bad("its length of %d bytes does not match its header", size)
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

// readHeader reads the description at the start of a snapshot file.
func readHeader(r io.Reader, bad func(string, ...any) error) (*SnapshotHeader, error) {
	start := make([]byte, fixedBytes)
	if _, err := io.ReadFull(r, start); err != nil || !bytes.HasPrefix(start, []byte(magic)) {
		return nil, bad("it does not start with %q", magic)
	}
	if err := disk.CheckVersion(uint64(binary.LittleEndian.Uint32(start[8:])), SnapshotVersion); err != nil {
		return nil, err
	}
	n := binary.LittleEndian.Uint32(start[12:])
	if n > maxHeaderBytes {
		return nil, bad("its description has an invalid length of %d bytes", n)
	}
	about := make([]byte, n)
	if _, err := io.ReadFull(r, about); err != nil {
		return nil, bad("truncated")
	}
	s := new(SnapshotHeader)
	if err := json.Unmarshal(about, s); err != nil {
		return nil, bad("%v", err)
	}
	return s, nil
}
