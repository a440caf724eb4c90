package checkpoint

import (
	"bytes"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"hash/crc32"
	"io/fs"
	"math"
	"math/rand/v2"
	"os"
	"path"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/disk"
	"github.com/perdure/perdure/internal/data/store"
	"github.com/perdure/perdure/internal/data/table"
)

var update = flag.Bool("update", false, "write the golden files")

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func wantErr(t testing.TB, err, want error, words string) {
	t.Helper()
	if !errors.Is(err, want) || !strings.Contains(err.Error(), words) || strings.Contains(err.Error(), "\n") {
		t.Errorf("got %v; want one line that contains %q and wraps %v", err, words, want)
	}
}

func testTable(name string, rows int64, dim int) perdure.TableSpec {
	return perdure.TableSpec{
		Name: name, Rows: rows, Dim: dim,
		Rule: perdure.Rule{
			Kind: perdure.RuleSGD, Rate: 0.5, Schedule: perdure.ScheduleStep, Every: 10,
			Factor: 0.5,
		},
		Init:        perdure.Init{Kind: perdure.InitNormal, Scale: 0.01},
		Consistency: perdure.Consistency{Kind: perdure.SSP, Staleness: 2},
	}
}

func testSegment() *Segment {
	momentum := testTable("b", 4, 1)
	momentum.Rule = perdure.Rule{Kind: perdure.RuleMomentum, Rate: 0.5, Momentum: 0.9}
	return &Segment{
		Job: "job-1", Generation: 2, Epoch: 3, Cut: 40, Shard: 1, Seed: 7, Seq: 120,
		Applied: []perdure.Clock{40, 41, 40},
		States:  [][]byte{[]byte("state"), nil, {}},
		Tables: []TableRows{
			{
				Spec: testTable("w", 6, 3), First: 3,
				Image: dense(3, 1, -2, 0.5, float32(math.Inf(1)), math.Float32frombits(0x7fc00001),
					math.Float32frombits(1<<31)),
			},
			{Spec: momentum, First: 2, Image: table.Image{Rows: 2, Planes: [][][]float32{{{0.25}, {3}}, {{-1, 1.5}}}}},
			{Spec: testSparse("e", 2), Image: table.Image{
				Rows:    3,
				IDs:     [][]perdure.RowID{{1 << 63, 5}, {math.MaxUint64}},
				Touched: [][]uint32{{39}, {}, {0, 17}},
				Planes: [][][]float32{
					{{1, 2, 3}, {4, 5, 6}},
					{{7, 8, 9, 10, 11, 12}},
					{{13, 14}, {15, 16, 17, 18}},
					{{2, 3}, {40}},
				},
			}},
		},
	}
}

func segmentBytes(t testing.TB, s *Segment) []byte {
	t.Helper()
	fsys := disk.NewMemory()
	ref, err := WriteSegment(store.NewDir(fsys, "."), s)
	must(t, err)
	b, err := fsys.ReadFile(ref.File)
	must(t, err)
	if sum := sumOf(b); ref.Bytes != int64(len(b)) || ref.CRC != sum || ref.Shard != s.Shard || ref.Seq != s.Seq {
		t.Fatalf("%+v for a file of %d bytes, checksum %08x", ref, len(b), sum)
	}
	return b
}

// sumOf computes a file's checksum as docs/formats/segments.md defines it: over the header and the checksum at the end
// of each section.
func sumOf(b []byte) uint32 {
	sum := crc32.Checksum(b[:80], castagnoli)
	for b = b[80:]; len(b) > 0; {
		end := (16 + binary.LittleEndian.Uint64(b[8:]) + 4 + 7) / 8 * 8
		sum = crc32.Update(sum, castagnoli, b[end-4:end])
		b = b[end:]
	}
	return sum
}

// readSegment reads a single segment file, whatever it follows.
func readSegment(fsys disk.FS, file string, dst Dest) (*Segment, error) {
	var kept keeper
	s, _, err := readFile(store.NewDir(fsys, path.Dir(file)), path.Base(file), kept.sink(dst))
	return kept.of(s), err
}

func readBytes(b []byte, dst Dest) (*Segment, error) {
	var kept keeper
	s, err := (&checksumReader{r: bytes.NewReader(b), left: int64(len(b))}).segment(kept.sink(dst))
	return kept.of(s), err
}

// keeper collects the images of a single segment.
type keeper []*table.Image

func (k *keeper) sink(dst Dest) sink {
	return func(_ int, t metaTable, _ []table.Run) (rowWriter, error) {
		img, err := dst.image(t)
		*k = append(*k, &img)
		return imageWriter{&img}, err
	}
}

// of puts the collected images into a segment that was read.
func (k *keeper) of(s *Segment) *Segment {
	for i := range *k {
		if s != nil {
			s.Tables[i].Image = *(*k)[i]
		}
	}
	return s
}

func golden(t *testing.T, file string, got []byte) {
	t.Helper()
	if *update {
		must(t, os.WriteFile(file, got, 0o666))
	}
	want, err := os.ReadFile(file)
	must(t, err)
	if !bytes.Equal(got, want) {
		t.Errorf("the bytes differ from %s: if the format changes, its version must change also", file)
	}
}

// sameSegment compares bits, so that NaN equals itself.
func sameSegment(a, b *Segment) bool {
	x, y := *a, *b
	x.Tables, y.Tables = nil, nil
	if !reflect.DeepEqual(x, y) || len(a.Tables) != len(b.Tables) {
		return false
	}
	for i, t := range a.Tables {
		u := b.Tables[i]
		if t.Spec != u.Spec || t.First != u.First || !sameImage(t.Image, u.Image) {
			return false
		}
	}
	return true
}

func TestSegmentGolden(t *testing.T) {
	b := segmentBytes(t, testSegment())
	golden(t, "testdata/segment-whole.golden", b)
	s, err := readBytes(b, nil)
	must(t, err)
	if !sameSegment(s, testSegment()) {
		t.Errorf("read back %+v", s)
	}
}

// TestSegmentLayout checks the layout against the numbers in its description, not against the writer's own constants.
func TestSegmentLayout(t *testing.T) {
	b, err := os.ReadFile("testdata/segment-whole.golden")
	must(t, err)
	le := binary.LittleEndian
	at := func(fromEnd int, kind, index uint32, bytes uint64) bool {
		h := b[len(b)-fromEnd:]
		return le.Uint32(h) == kind && le.Uint32(h[4:]) == index && le.Uint64(h[8:]) == bytes
	}
	for what, ok := range map[string]bool{
		"magic":      string(b[:8]) == "PERDSEGM",
		"version":    le.Uint16(b[8:]) == 1,
		"kind":       le.Uint16(b[10:]) == 1,
		"generation": le.Uint64(b[16:]) == 2,
		"epoch":      le.Uint64(b[24:]) == 3,
		"cut":        le.Uint64(b[32:]) == 40,
		"seed":       le.Uint64(b[40:]) == 7,
		"seq":        le.Uint64(b[48:]) == 120,
		"shard":      le.Uint32(b[56:]) == 1,
		"sections":   le.Uint32(b[60:]) == 12, // meta, 2 states, 1 for w, 2 for b, 6 for e
		"file bytes": le.Uint64(b[64:]) == uint64(len(b)),
		"first meta": le.Uint32(b[80:]) == 1 && b[96] == '{',
		// From the end: 3 row-plane floats (16+12+4), 2 planes of 6 floats and the
		// values (16+24+4+4 each), the clocks (16+12+4), the ids (16+24+4+4).
		"row plane":  at(32, 6, 2<<8+3, 12) && le.Uint32(b[len(b)-8:]) == math.Float32bits(40),
		"2nd plane":  at(80, 6, 2<<8+2, 24),
		"1st plane":  at(128, 6, 2<<8+1, 24),
		"values":     at(176, 3, 2, 24) && le.Uint32(b[len(b)-160:]) == math.Float32bits(1),
		"clocks":     at(208, 5, 2, 12) && le.Uint32(b[len(b)-192:]) == 39,
		"ids":        at(256, 4, 2, 24) && le.Uint64(b[len(b)-240:]) == 1<<63,
		"b's state":  at(288, 6, 1<<8+1, 8) && le.Uint32(b[len(b)-272:]) == math.Float32bits(-1),
		"b's values": at(320, 3, 1, 8) && le.Uint32(b[len(b)-304:]) == math.Float32bits(0.25),
	} {
		if !ok {
			t.Errorf("%s is not at the offset given in docs/formats/segments.md", what)
		}
	}
}

func TestSegmentRoundTrip(t *testing.T) {
	native := littleEndian
	defer func() { littleEndian = native }()
	rapid.Check(t, func(rt *rapid.T) {
		s := drawSegment(rt)
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(rt, "pieces"), 0))
		littleEndian = rapid.Bool().Draw(rt, "written by cast") && native
		b := segmentBytes(t, s)
		littleEndian = rapid.Bool().Draw(rt, "read by cast") && native
		got, err := readBytes(b, nil)
		if err != nil || !sameSegment(got, s) {
			rt.Fatalf("wrote %+v, read %+v, %v", s, got, err)
		}
		got, err = readBytes(b, func(spec perdure.TableSpec, _, rows int64) (table.Image, error) {
			return cutImage(rng, newImage(spec, rows)), nil
		})
		if err != nil || !sameSegment(got, s) {
			rt.Fatalf("wrote %+v, read into pieces %+v, %v", s, got, err)
		}
	})
}

func drawSegment(rt *rapid.T) *Segment {
	slots := rapid.IntRange(0, 4).Draw(rt, "slots")
	s := &Segment{
		Job: rapid.String().Filter(func(s string) bool { return !strings.ContainsRune(s, '\uFFFD') }).Draw(rt,
			"job"),
		Generation: perdure.Generation(rapid.Uint64().Draw(rt, "generation")),
		Epoch:      perdure.Epoch(rapid.Uint64().Draw(rt, "epoch")),
		Cut:        perdure.Clock(rapid.Int64Min(0).Draw(rt, "cut")),
		Shard:      perdure.ShardID(rapid.Int32Min(0).Draw(rt, "shard")),
		Seed:       rapid.Uint64().Draw(rt, "seed"),
		Seq:        rapid.Uint64().Draw(rt, "seq"),
		Applied:    make([]perdure.Clock, slots),
		States:     make([][]byte, slots),
	}
	for i := range slots {
		s.Applied[i] = perdure.Clock(rapid.Int64().Draw(rt, "applied"))
		if rapid.Bool().Draw(rt, "saved") {
			s.States[i] = append([]byte{}, rapid.SliceOfN(rapid.Byte(), 0, 20).Draw(rt, "state")...)
		}
	}
	for i := range rapid.IntRange(0, 3).Draw(rt, "tables") {
		s.Tables = append(s.Tables, drawTable(rt, "t"+string(rune('a'+i))))
	}
	return s
}

func TestSegmentRefusesEveryChange(t *testing.T) {
	refusesEveryChange(t, segmentBytes(t, testSegment()))
}

func refusesEveryChange(t *testing.T, good []byte) {
	t.Helper()
	refused := func(what string, i int, b []byte) {
		t.Helper()
		_, err := readBytes(b, nil)
		if !errors.Is(err, ErrCorrupt) && !errors.Is(err, ErrOtherVersion) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s %d gives %v", what, i, err)
		}
	}
	for i := range good {
		refused("truncated to", i, good[:i])
		for bit := range 8 {
			b := bytes.Clone(good)
			b[i] ^= 1 << bit
			refused("flipped a bit of byte", i, b)
		}
	}
	longer := append(bytes.Clone(good), make([]byte, 8)...)
	refused("extended by", 8, longer)
	refused("extended, with its header adjusted, by", 8, reseal(longer))
}

func TestSegmentErrors(t *testing.T) {
	fsys := disk.NewMemory()
	ref, err := WriteSegment(store.NewDir(fsys, "."), testSegment())
	must(t, err)
	good, err := fsys.ReadFile(ref.File)
	must(t, err)
	read := func(b []byte) error {
		f, err := fsys.Create(ref.File)
		must(t, err)
		_, err = f.Write(b)
		must(t, err)
		_, err = readSegment(fsys, ref.File, nil)
		return err
	}
	for _, version := range []byte{SegmentVersion - 1, SegmentVersion + 1} {
		other := bytes.Clone(good)
		other[8] = version
		wantErr(t, read(other), ErrOtherVersion, fmt.Sprintf("%s: written by another version of Perdure (format %d, "+
			"this one reads format %d); use the version that wrote it", ref.File, version, SegmentVersion))
	}
	wantErr(t, read(good[:100]), ErrCorrupt, ref.File+": damaged: truncated: 100 of")
	wantErr(t, read([]byte(strings.Repeat("x", 100))), ErrCorrupt, ref.File+": damaged: not a segment")
	must(t, fsys.Remove(ref.File))
	_, err = readSegment(fsys, ref.File, nil)
	wantErr(t, err, ErrCorrupt, ref.File+" is missing")
	wantErr(t, err, fs.ErrNotExist, ref.File)
}

func TestWriteSegmentRefusesWhatCannotBeRead(t *testing.T) {
	for what, spoil := range map[string]func(*Segment){
		"ids of a dense":   func(s *Segment) { s.Tables[0].Image.IDs = [][]perdure.RowID{{1, 2}} },
		"clocks of no use": func(s *Segment) { s.Tables[0].Image.Touched = [][]uint32{{1, 2}} },
		"first of sparse":  func(s *Segment) { s.Tables[2].First = 1 },
		"rows beyond":      func(s *Segment) { s.Tables[0].First = 5 },
		"negative row":     func(s *Segment) { s.Tables[0].First = -1 },
		"bad table":        func(s *Segment) { s.Tables[0].Spec.Dim = 0 },
		"states for slots": func(s *Segment) { s.States = s.States[:2] },
		"negative cut":     func(s *Segment) { s.Cut = -1 },
		"negative shard":   func(s *Segment) { s.Shard = -1 },
		"job not UTF-8":    func(s *Segment) { s.Job = "\xff" },
	} {
		fsys := disk.NewMemory()
		s := testSegment()
		spoil(s)
		_, err := WriteSegment(store.NewDir(fsys, "."), s)
		if names, _ := fsys.List("."); err == nil || len(names) != 0 {
			t.Errorf("%s: %v, and left %q", what, err, names)
		}
	}
}

// reseal corrects all checksums of a segment that can be located by the section lengths, so that the checks after them
// are reached.
func reseal(b []byte) []byte {
	b = bytes.Clone(b)
	if len(b) < headerBytes {
		return b
	}
	le := binary.LittleEndian
	le.PutUint64(b[64:], uint64(len(b)))
	le.PutUint32(b[12:], 0)
	le.PutUint32(b[12:], crc32.Checksum(b[:headerBytes], castagnoli))
	for rest := b[headerBytes:]; len(rest) >= sectionBytes; {
		n := le.Uint64(rest[8:])
		if n > uint64(len(rest)) || sectionSize(int64(n)) > int64(len(rest)) {
			break
		}
		end := sectionSize(int64(n))
		le.PutUint32(rest[end-trailerBytes:], crc32.Checksum(rest[:end-trailerBytes], castagnoli))
		rest = rest[end:]
	}
	return b
}

func TestLyingLengthsAllocateNothing(t *testing.T) {
	good := segmentBytes(t, testSegment())
	for i := headerBytes + 8; i < headerBytes+sectionBytes; i++ { // length of the meta section
		b := bytes.Clone(good)
		b[i] ^= 0x7f
		wantSmallError(t, reseal(b))
	}
	// A table that claims 240 GB in a small file, with correct checksums.
	s := testSegment()
	s.Tables[0].Spec.Rows, s.Tables[0].First = 1e12, 1e10
	wantSmallError(t, editMeta(t, segmentBytes(t, s), `"first":10000000000,"rows":2}`, `"first":0,"rows":20000000000}`))
	// A sparse table whose claimed number of rows overflows to 0 bytes.
	wantSmallError(t, editMeta(t, good, `"first":0,"rows":3}`, `"first":0,"rows":4611686018427387904}`))
}

func wantSmallError(t *testing.T, b []byte) {
	t.Helper()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err := readBytes(b, nil)
	runtime.ReadMemStats(&after)
	if !errors.Is(err, ErrCorrupt) {
		t.Errorf("got %v", err)
	}
	if grown := after.TotalAlloc - before.TotalAlloc; grown > 1<<20 {
		t.Errorf("allocated %d bytes for a file of %d", grown, len(b))
	}
}

func FuzzReadSegment(f *testing.F) {
	f.Add(segmentBytes(f, testSegment()))
	f.Add(segmentBytes(f, &Segment{}))
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, b := range [][]byte{b, reseal(b)} {
			s, err := readBytes(b, nil)
			if err != nil {
				if !errors.Is(err, ErrCorrupt) && !errors.Is(err, ErrOtherVersion) {
					t.Fatalf("error is neither ErrCorrupt nor ErrOtherVersion: %v", err)
				}
				continue
			}
			again, err := readBytes(segmentBytes(t, s), nil)
			if err != nil || !sameSegment(again, s) {
				t.Fatalf("a segment that was read cannot be written: %v", err)
			}
		}
	})
}

// BenchmarkRestore reaches several GB/s on the two-core reference machine.
func BenchmarkRestore(b *testing.B) { benchmark(b, true) }

func BenchmarkWriteSegment(b *testing.B) { benchmark(b, false) }

// benchmark uses 100 MB of rows: dense ones in one piece, and sparse ones with Adam's full state in pieces of 1,024
// rows, whose ids take 8 KiB.
func benchmark(b *testing.B, restore bool) {
	const dim, rows = 1000, 25_000
	values := make([]float32, rows*dim)
	for i := range values {
		values[i] = float32(i)
	}
	sparse := testSparse("e", 16)
	const sparseRows = 100_000_000 / (8 + 4 + 3*4*16 + 4)
	img := newImage(sparse, sparseRows)
	img.IDs = slices.Collect(slices.Chunk(img.IDs[0], 1024))
	img.Touched = slices.Collect(slices.Chunk(img.Touched[0], 1024))
	for i, p := range img.Planes {
		img.Planes[i] = slices.Collect(slices.Chunk(p[0], 1024*len(p[0])/sparseRows))
	}
	for name, t := range map[string]TableRows{
		"dense":  {Spec: testTable("w", rows, dim), Image: dense(dim, values...)},
		"sparse": {Spec: sparse, Image: img},
	} {
		b.Run(name, func(b *testing.B) {
			s := &Segment{Job: "bench", Tables: []TableRows{t}}
			dir := b.TempDir()
			ref, err := WriteSegment(store.NewDir(disk.OS(), dir), s)
			must(b, err)
			b.SetBytes(ref.Bytes)
			for b.Loop() {
				if restore {
					_, err = readSegment(disk.OS(), dir+"/"+ref.File,
						func(perdure.TableSpec, int64, int64) (table.Image, error) {
							return t.Image, nil
						})
				} else {
					_, err = WriteSegment(store.NewDir(disk.OS(), dir), s)
				}
				must(b, err)
			}
		})
	}
}
