package checkpoint

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/disk"
	"github.com/perdure/perdure/internal/data/store"
	"github.com/perdure/perdure/internal/data/table"
)

// testSparse returns a table whose image has sections of every kind.
func testSparse(name string, dim int) perdure.TableSpec {
	return perdure.TableSpec{
		Name: name, Sparse: true, Dim: dim, Evict: 100,
		Rule:        perdure.Rule{Kind: perdure.RuleAdam, Rate: 0.5}.WithDefaults(),
		Consistency: perdure.Consistency{Kind: perdure.BSP},
	}
}

// dense returns an image of rows without rule state.
func dense(dim int, values ...float32) table.Image {
	return table.Image{Rows: len(values) / dim, Planes: [][][]float32{{values}}}
}

// sameImage compares bits, so that NaN equals itself. How the images are divided into pieces does not matter.
func sameImage(a, b table.Image) bool {
	same := func(x, y [][]byte) bool { return bytes.Equal(bytes.Join(x, nil), bytes.Join(y, nil)) }
	if a.Rows != b.Rows || len(a.Planes) != len(b.Planes) || !same(asBytes(a.IDs), asBytes(b.IDs)) ||
		!same(asBytes(a.Touched), asBytes(b.Touched)) {
		return false
	}
	for i := range a.Planes {
		if !same(asBytes(a.Planes[i]), asBytes(b.Planes[i])) {
			return false
		}
	}
	return true
}

// cut divides v into about 7 pieces, some of them empty. Their boundaries need not be those of rows.
func cut[T any](rng *rand.Rand, v []T) (pieces [][]T) {
	for len(v) > 0 {
		n := min(len(v), rng.IntN(1+len(v)/3+1))
		pieces = append(pieces, v[:n:n])
		v = v[n:]
	}
	return pieces
}

// cutImage returns an image of the same content whose columns are divided into random pieces.
func cutImage(rng *rand.Rand, img table.Image) table.Image {
	img.IDs = cut(rng, slices.Concat(img.IDs...))
	img.Touched = cut(rng, slices.Concat(img.Touched...))
	img.Planes = slices.Clone(img.Planes)
	for i, p := range img.Planes {
		img.Planes[i] = cut(rng, slices.Concat(p...))
	}
	return img
}

var allRules = []perdure.Rule{
	{Kind: perdure.RuleAdd},
	{Kind: perdure.RuleSGD, Rate: 0.5, Schedule: perdure.ScheduleStep, Every: 10, Factor: 0.5},
	{Kind: perdure.RuleMomentum, Rate: 0.5, Momentum: 0.9, ClipNorm: 2},
	{Kind: perdure.RuleNesterov, Rate: 0.5, Momentum: 0.9, Decay: 0.1},
	{Kind: perdure.RuleAdagrad, Rate: 0.5, Epsilon: 1e-10},
	{Kind: perdure.RuleRowwiseAdagrad, Rate: 0.5, Epsilon: 1e-10, ClipValue: 3},
	{Kind: perdure.RuleAdam, Rate: 0.5, Beta1: 0.9, Beta2: 0.999, Epsilon: 1e-8},
	{Kind: perdure.RuleFTRL, Rate: 0.5, Beta: 1, L1: 0.1, L2: 0.2},
}

// drawTable draws a table of any kind and a part of it, divided into pieces.
func drawTable(rt *rapid.T, name string) TableRows {
	t := TableRows{Spec: perdure.TableSpec{
		Name: name, Dim: rapid.IntRange(1, 5).Draw(rt, "dim"),
		Rule:        rapid.SampledFrom(allRules).Draw(rt, "rule"),
		Consistency: perdure.Consistency{Kind: perdure.SSP, Staleness: 2},
		NonFinite: rapid.SampledFrom([]perdure.NonFinite{perdure.RefuseNonFinite, perdure.AllowNonFinite}).Draw(rt,
			"non-finite"),
	}}
	var rows int64
	if t.Spec.Sparse = rapid.Bool().Draw(rt, "sparse"); t.Spec.Sparse {
		t.Spec.Evict = perdure.Clock(rapid.SampledFrom([]int64{0, 1, math.MaxInt32}).Draw(rt, "evict"))
		rows = rapid.Int64Range(0, 50).Draw(rt, "stored rows")
	} else {
		t.Spec.Rows = rapid.Int64Range(1, 50).Draw(rt, "table rows")
		t.First = rapid.Int64Range(0, t.Spec.Rows).Draw(rt, "first")
		rows = rapid.Int64Range(0, t.Spec.Rows-t.First).Draw(rt, "rows")
	}
	rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(rt, "content"), 0))
	t.Image = randomImage(rng, t.Spec, rows)
	return t
}

func randomImage(rng *rand.Rand, spec perdure.TableSpec, rows int64) table.Image {
	img := newImage(spec, rows)
	for _, c := range columns(spec) {
		for _, piece := range c.bytesOf(img) {
			for i := range piece {
				piece[i] = byte(rng.Uint32())
			}
		}
	}
	return cutImage(rng, img)
}

// TestColumnsOfEveryRule checks the columns against the documentation of the rules, not against package table.
func TestColumnsOfEveryRule(t *testing.T) {
	for kind, want := range map[perdure.RuleKind]string{
		perdure.RuleAdd: "3.0:20", perdure.RuleSGD: "3.0:20",
		perdure.RuleMomentum: "3.0:20 6.1:20", perdure.RuleNesterov: "3.0:20 6.1:20",
		perdure.RuleAdagrad:        "3.0:20 6.1:20",
		perdure.RuleRowwiseAdagrad: "3.0:20 6.1:4",
		perdure.RuleAdam:           "3.0:20 6.1:20 6.2:20 6.3:4",
		perdure.RuleFTRL:           "3.0:20 6.1:20 6.2:20",
	} {
		spec := perdure.TableSpec{Dim: 5, Rule: perdure.Rule{Kind: kind}}
		for _, c := range []struct {
			sparse bool
			evict  perdure.Clock
			before string
		}{{false, 0, ""}, {true, 0, "4.0:8 "}, {true, 1, "4.0:8 5.0:4 "}} {
			spec.Sparse, spec.Evict = c.sparse, c.evict
			var got []string
			for _, c := range columns(spec) {
				got = append(got, fmt.Sprintf("%d.%d:%d", c.kind, c.plane, c.rowBytes))
			}
			if got := strings.Join(got, " "); got != c.before+want {
				t.Errorf("%s, sparse %v, evict %d: %s; want %s", kind, c.sparse, c.evict, got, c.before+want)
			}
		}
	}
}

func TestReadsIntoTheCallersMemory(t *testing.T) {
	want := testSegment()
	b := segmentBytes(t, want)
	memory := map[string]table.Image{}
	rng := rand.New(rand.NewPCG(1, 2))
	var asked []string
	s, err := readBytes(b, func(spec perdure.TableSpec, first, rows int64) (table.Image, error) {
		asked = append(asked, fmt.Sprint(spec.Name, first, rows))
		memory[spec.Name] = cutImage(rng, newImage(spec, rows))
		return memory[spec.Name], nil
	})
	must(t, err)
	if !sameSegment(s, want) {
		t.Errorf("read %+v", s)
	}
	if got := strings.Join(asked, ", "); got != "w3 2, b2 2, e0 3" {
		t.Errorf("memory was requested for %s", got)
	}
	for _, part := range s.Tables {
		for _, c := range columns(part.Spec) {
			for k, piece := range c.bytesOf(memory[part.Spec.Name]) {
				if got := c.bytesOf(part.Image)[k]; len(piece) > 0 && &got[0] != &piece[0] {
					t.Errorf("table %s: piece %d of %s is not in the caller's memory", part.Spec.Name, k, c)
				}
			}
		}
	}
}

// spoilers make an image of testSparse, with 3 rows of dimension 2, invalid.
var spoilers = map[string]func(img *table.Image){
	"fewer rows":         func(img *table.Image) { img.Rows-- },
	"negative rows":      func(img *table.Image) { img.Rows = -1 },
	"no ids":             func(img *table.Image) { img.IDs = nil },
	"too many ids":       func(img *table.Image) { img.IDs = append(img.IDs, []perdure.RowID{9}) },
	"no touched":         func(img *table.Image) { img.Touched = nil },
	"too few touched":    func(img *table.Image) { img.Touched = [][]uint32{{1}, {2}} },
	"no values":          func(img *table.Image) { img.Planes[0] = nil },
	"half a row":         func(img *table.Image) { img.Planes[0] = [][]float32{{1, 2, 3}, {4, 5, 6, 7}} },
	"a plane too few":    func(img *table.Image) { img.Planes = img.Planes[:3] },
	"no planes at all":   func(img *table.Image) { img.Planes = nil },
	"a plane too many":   func(img *table.Image) { img.Planes = append(img.Planes, nil) },
	"short state":        func(img *table.Image) { img.Planes[2] = [][]float32{{1, 2}} },
	"row plane by value": func(img *table.Image) { img.Planes[3] = img.Planes[1] },
}

func TestImagesThatDoNotFit(t *testing.T) {
	b := segmentBytes(t, testSegment())
	for what, spoil := range spoilers {
		s := testSegment()
		spoil(&s.Tables[2].Image)
		if _, err := WriteSegment(store.NewDir(disk.NewMemory(), "."), s); err == nil ||
			!strings.Contains(err.Error(), "table e: ") || strings.Contains(err.Error(), "\n") {
			t.Errorf("writing %s gives %v", what, err)
		}
		_, err := readBytes(b, func(spec perdure.TableSpec, _, rows int64) (table.Image, error) {
			img := newImage(spec, rows)
			if spec.Sparse {
				spoil(&img)
			}
			return img, nil
		})
		if err == nil || errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), "table e: ") {
			t.Errorf("reading into %s gives %v", what, err)
		}
	}
	_, err := readBytes(b, func(spec perdure.TableSpec, _, rows int64) (table.Image,
		error,
	) {
		return newImage(spec, rows+1), nil
	})
	if err == nil || errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), "holds 3 rows, but 2 are") {
		t.Errorf("reading into one row more gives %v", err)
	}
	unknown := errors.New("unknown table")
	_, err = readBytes(b, func(perdure.TableSpec, int64, int64) (table.Image, error) { return table.Image{}, unknown })
	if !errors.Is(err, unknown) {
		t.Errorf("the destination's error became %v", err)
	}
}

// TestSectionsMustBeThoseOfTheMeta: with a changed meta, a reader expects other sections than the file has. All
// checksums are correct.
func TestSectionsMustBeThoseOfTheMeta(t *testing.T) {
	for what, edit := range map[string][3]string{
		"evicts no more":       {`,"evict":100`, ``, "unexpected section of kind 3, index 0"},
		"evicts, but is dense": {`"sparse":true,"dim":2`, `"rows":9,"dim":2`, "meta: "},
		"rule with fewer planes": {
			`"kind":"momentum","rate":0.5,"momentum":0.9`, `"kind":"sgd","rate":0.5`,
			"unexpected section",
		},
		"rule without row plane": {
			`"kind":"adam","rate":0.5,"beta1":0.9,"beta2":0.999,"epsilon":1e-8`,
			`"kind":"ftrl","rate":0.5,"beta":1`, "unexpected section",
		},
		"rule with more planes": {
			`"kind":"momentum","rate":0.5,"momentum":0.9`,
			`"kind":"adam","rate":0.5,"beta1":0.9,"beta2":0.9,"epsilon":0.1`, "unexpected section of kind 2, index 0",
		},
		"more rows":               {`"first":0,"rows":3`, `"first":0,"rows":4`, "table e has "},
		"fewer rows":              {`"first":0,"rows":3`, `"first":0,"rows":2`, "table e has "},
		"negative rows":           {`"first":0,"rows":3`, `"first":0,"rows":-3`, "meta: "},
		"a first row of a sparse": {`"first":0,"rows":3`, `"first":1,"rows":3`, "meta: "},
		"more rows than a file": {
			`"first":0,"rows":3`, `"first":0,"rows":9223372036854775807`,
			"table e claims 9223372036854775807 rows",
		},
		"another dimension": {`"sparse":true,"dim":2`, `"sparse":true,"dim":1`, "table e has "},
	} {
		_, err := readBytes(editMeta(t, segmentBytes(t, testSegment()), edit[0], edit[1]), nil)
		if !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), edit[2]) ||
			strings.Contains(err.Error(), "\n") {
			t.Errorf("%s gives %v; want %q", what, err, edit[2])
		}
	}
}

// TestIDsAreThereIfAndOnlyIfSparse: a sparse table must have ids, and a dense table must not.
func TestIDsAreThereIfAndOnlyIfSparse(t *testing.T) {
	sparse, dim := testSparse("e", 2), 2
	sparse.Rule, sparse.Evict = perdure.Rule{Kind: perdure.RuleAdd}, 0
	asSparse, asDense := `"sparse":true,"dim":2`, `"rows":3,"dim":2`
	with := dense(dim, 1, 2, 3, 4, 5, 6)
	with.IDs = [][]perdure.RowID{{1, 2, 3}}
	b := segmentBytes(t, &Segment{Job: "j", Tables: []TableRows{{Spec: sparse, Image: with}}})
	_, err := readBytes(editMeta(t, b, asSparse, asDense), nil)
	wantErr(t, err, ErrCorrupt, "unexpected section of kind 4, index 0")

	plain := sparse
	plain.Sparse, plain.Rows = false, 3
	b = segmentBytes(t, &Segment{Job: "j", Tables: []TableRows{{Spec: plain, Image: dense(dim, 1, 2, 3, 4, 5, 6)}}})
	_, err = readBytes(editMeta(t, b, asDense, asSparse), nil)
	wantErr(t, err, ErrCorrupt, "it has 2 sections, but its tables need 1 more")
}

// TestSectionsInAnotherOrder: readers reject swapped, duplicated and missing sections and those of unknown kinds. All
// checksums are correct.
func TestSectionsInAnotherOrder(t *testing.T) {
	s := testSegment()
	all, err := s.sections()
	must(t, err)
	refused := func(what string, sections []section) {
		t.Helper()
		if _, err := readBytes(rawSegment(t, s, sections), nil); !errors.Is(err, ErrCorrupt) {
			t.Errorf("%s gives %v", what, err)
		}
	}
	if _, err := readBytes(rawSegment(t, s, all), nil); err != nil {
		t.Fatalf("the valid segment: %v", err)
	}
	for i := range all {
		state := all[i].kind == sectionState // may be absent and may have any length
		if !state {
			refused(fmt.Sprint("without section ", i), slices.Delete(slices.Clone(all), i, i+1))
		}
		refused(fmt.Sprint("twice section ", i), slices.Insert(slices.Clone(all), i, all[i]))
		if i > 0 {
			x := slices.Clone(all)
			x[i-1], x[i] = x[i], x[i-1]
			refused(fmt.Sprint("exchanged section ", i), x)
		}
		for _, change := range []section{
			{kind: all[i].kind + 6, index: all[i].index, word: all[i].word, memory: all[i].memory},
			{kind: all[i].kind, index: all[i].index + 3, word: all[i].word, memory: all[i].memory},
			{
				kind: all[i].kind, index: all[i].index, word: 1,
				memory: append(slices.Clone(all[i].memory), []byte("12345678")),
			},
		} {
			if state && len(change.memory) > len(all[i].memory) {
				continue
			}
			x := slices.Clone(all)
			x[i] = change
			refused(fmt.Sprintf("section %d changed to kind %d, index %d", i, change.kind, change.index), x)
		}
	}
}

// editMeta replaces text in the meta section and corrects the checksums.
func editMeta(t *testing.T, b []byte, old, with string) []byte {
	t.Helper()
	le := binary.LittleEndian
	n := int64(le.Uint64(b[headerBytes+8:]))
	words := b[headerBytes+sectionBytes:][:n]
	if bytes.Count(words, []byte(old)) != 1 {
		t.Fatalf("%s does not occur exactly once in %s", old, words)
	}
	words = bytes.Replace(words, []byte(old), []byte(with), 1)
	out := bytes.Clone(b[:headerBytes+sectionBytes])
	le.PutUint64(out[headerBytes+8:], uint64(len(words)))
	out = append(out, words...)
	out = append(out, make([]byte, padding(int64(len(words)))+trailerBytes)...)
	return reseal(append(out, b[headerBytes+sectionSize(n):]...))
}

// rawSegment writes sections unchecked.
func rawSegment(t *testing.T, s *Segment, sections []section) []byte {
	t.Helper()
	var b bytes.Buffer
	w := &checksumWriter{w: &b}
	header, _ := s.header(sections)
	must(t, w.write(header))
	for _, sec := range sections {
		must(t, w.section(sec))
	}
	return b.Bytes()
}

// TestIDsAreNotJudged: only package table checks the rows of an image, so that the check exists in one place. Duplicate
// ids are written and read.
func TestIDsAreNotJudged(t *testing.T) {
	s := testSegment()
	s.Tables[2].Image.IDs = [][]perdure.RowID{{7, 7, 7}}
	got, err := readBytes(segmentBytes(t, s), nil)
	if err != nil || !reflect.DeepEqual(slices.Concat(got.Tables[2].Image.IDs...), []perdure.RowID{7, 7, 7}) {
		t.Errorf("got %v", err)
	}
}
