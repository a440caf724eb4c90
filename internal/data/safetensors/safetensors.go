// Package safetensors reads and writes models in the public safetensors format, which PyTorch and other frameworks
// load, and computes a model's hash.
//
// Two types of values are read: float32 for tables, and int64 for the row ids of sparse tables ([Sparse]). Other types
// are only written. Read returns either a complete and consistent model or an error. All functions may be called
// concurrently.
package safetensors

import (
	"bufio"
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/perdure/perdure"
)

// ErrMalformed is wrapped by every error about a file that is not a complete
// safetensors file of float32 and int64 tensors.
var ErrMalformed = errors.New("safetensors: malformed file")

// Tensor is a named array whose last dimension varies fastest. Its values are float32 or, if Ints is not nil, int64, or
// those of SetBytes.
type Tensor struct {
	Name  string
	Shape []int64 // empty: a single value
	Data  []float32
	Ints  []int64 // if nil, Data has the values

	kind  Type // of bytes; "": Data or Ints has the values
	bytes []byte
}

// SetBytes sets values of any type, as little-endian bytes.
func (t *Tensor) SetBytes(kind Type, values []byte) { t.kind, t.bytes = kind, values }

// dtype returns the type of the tensor's values and their number.
func (t Tensor) dtype() (name Type, values int) {
	switch {
	case t.kind != "":
		return t.kind, len(t.bytes) / int(t.kind.Width())
	case t.Ints != nil:
		return I64, len(t.Ints)
	}
	return F32, len(t.Data)
}

// Type is a type of values, as the format names it.
type Type string

// The types.
const (
	Bool Type = "BOOL"
	U8   Type = "U8"
	I8   Type = "I8"
	I16  Type = "I16"
	I32  Type = "I32"
	I64  Type = "I64"
	F16  Type = "F16"
	BF16 Type = "BF16"
	F32  Type = "F32"
	F64  Type = "F64"
)

// Width returns the size of a value in bytes.
func (t Type) Width() int64 {
	switch t {
	case Bool, U8, I8:
		return 1
	case I16, F16, BF16:
		return 2
	case I64, F64:
		return 8
	}
	return 4
}

// A safetensors file, little-endian:
//
//	0      8     header bytes n, a multiple of 8
//	8      n     header: JSON, then blanks; keys "__metadata__", then the tensors
//	8+n    …     the tensors' values, in the order of the header, without gaps
//
// Tensors of wide values precede those of narrow ones, so that all are aligned to the size of their values, which
// PyTorch requires for int64.
const (
	lengthBytes = 8
	metadataKey = "__metadata__"
	// maxHeader is the limit of the format's reference implementation.
	maxHeader  = 100_000_000
	chunkBytes = 64 << 10
)

type entry struct {
	Dtype   Type     `json:"dtype"`
	Shape   []int64  `json:"shape"`
	Offsets [2]int64 `json:"data_offsets"` // start and end, relative to the end of the header
}

// elements returns the number of values of a shape. ok is false if it has a negative dimension or if its size in bytes
// overflows an int64.
func elements(shape []int64) (n int64, ok bool) {
	n = 1
	for _, d := range shape {
		if d < 0 || d > 0 && n > math.MaxInt64/8/d {
			return 0, false
		}
		n *= d
	}
	return n, true
}

// Write writes tensors, those of wide values first and otherwise in the given order, and the metadata, which may be
// nil. It streams.
func Write(w io.Writer, tensors []Tensor, meta map[string]string) error {
	tensors = slices.Clone(tensors)
	slices.SortStableFunc(tensors, func(a, b Tensor) int {
		x, _ := a.dtype()
		y, _ := b.dtype()
		return cmp.Compare(y.Width(), x.Width())
	})
	header, err := encodeHeader(tensors, meta)
	if err != nil {
		return err
	}
	out := bufio.NewWriterSize(w, chunkBytes)
	if _, err := out.Write(header); err != nil {
		return fmt.Errorf("safetensors: write: %w", err)
	}
	for _, t := range tensors {
		if err := writeValues(out, t); err != nil {
			return fmt.Errorf("safetensors: write %s: %w", t.Name, err)
		}
	}
	if err := out.Flush(); err != nil {
		return fmt.Errorf("safetensors: write: %w", err)
	}
	return nil
}

func encodeHeader(tensors []Tensor, meta map[string]string) ([]byte, error) {
	b := append(make([]byte, lengthBytes), '{')
	field := func(name string, value any) error {
		key, err := json.Marshal(name)
		if err != nil {
			return err
		}
		v, err := json.Marshal(value)
		if err != nil {
			return err
		}
		if len(b) > lengthBytes+1 {
			b = append(b, ',')
		}
		b = append(append(append(b, key...), ':'), v...)
		return nil
	}
	if len(meta) > 0 {
		if err := field(metadataKey, meta); err != nil {
			return nil, err
		}
	}
	seen := map[string]bool{metadataKey: true}
	var start int64
	for _, t := range tensors {
		n, ok := elements(t.Shape)
		dtype, values := t.dtype()
		switch {
		case !utf8.ValidString(t.Name) || seen[t.Name]:
			return nil, fmt.Errorf("safetensors: tensor name %q is a duplicate or not UTF-8", t.Name)
		case t.Data != nil && t.Ints != nil:
			return nil, fmt.Errorf("safetensors: tensor %s has values of two types", t.Name)
		case !ok || n != int64(values):
			return nil, fmt.Errorf("safetensors: tensor %s: %d values do not fit shape %v", t.Name, values, t.Shape)
		}
		seen[t.Name] = true
		shape := append([]int64{}, t.Shape...) // [], never null
		end := start + dtype.Width()*n
		if err := field(t.Name, entry{dtype, shape, [2]int64{start, end}}); err != nil {
			return nil, err
		}
		start = end
	}
	b = append(b, '}')
	for len(b)%8 != 0 {
		b = append(b, ' ')
	}
	if len(b)-lengthBytes > maxHeader {
		return nil, fmt.Errorf("safetensors: header of %d bytes is too large; at most %d are allowed", len(b),
			maxHeader)
	}
	binary.LittleEndian.PutUint64(b, uint64(len(b)-lengthBytes))
	return b, nil
}

// writeValues writes values in little-endian order on any machine.
func writeValues(w io.Writer, t Tensor) error {
	if t.kind != "" {
		_, err := w.Write(t.bytes)
		return err
	}
	var buf [chunkBytes]byte
	le := binary.LittleEndian
	if t.Ints != nil {
		for chunk := range slices.Chunk(t.Ints, chunkBytes/8) {
			for i, v := range chunk {
				le.PutUint64(buf[8*i:], uint64(v))
			}
			if _, err := w.Write(buf[:8*len(chunk)]); err != nil {
				return err
			}
		}
		return nil
	}
	for chunk := range slices.Chunk(t.Data, chunkBytes/4) {
		for i, v := range chunk {
			le.PutUint32(buf[4*i:], math.Float32bits(v))
		}
		if _, err := w.Write(buf[:4*len(chunk)]); err != nil {
			return err
		}
	}
	return nil
}

func malformed(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrMalformed, fmt.Sprintf(format, args...))
}

// Read reads a file of the given size and returns its tensors in the order of their values. It allocates no more memory
// than the file has bytes.
func Read(r io.ReaderAt, size int64) ([]Tensor, map[string]string, error) {
	header, err := readHeader(r, size)
	if err != nil {
		return nil, nil, err
	}
	tensors, entries, meta, err := decodeHeader(header)
	if err != nil {
		return nil, nil, err
	}
	base := lengthBytes + int64(len(header))
	if err := checkOffsets(tensors, entries, size-base); err != nil {
		return nil, nil, err
	}
	for i := range tensors {
		if err := readValues(r, &tensors[i], entries[i], base, size); err != nil {
			return nil, nil, err
		}
	}
	return tensors, meta, nil
}

// ReadNames reads only the names of a file's tensors.
func ReadNames(r io.ReaderAt, size int64) ([]string, error) {
	header, err := readHeader(r, size)
	if err != nil {
		return nil, err
	}
	tensors, _, _, err := decodeHeader(header)
	if err != nil {
		return nil, err
	}
	var names []string
	for i := range tensors {
		names = append(names, tensors[i].Name)
	}
	return names, nil
}

func readHeader(r io.ReaderAt, size int64) ([]byte, error) {
	var length [lengthBytes]byte
	if err := readAt(r, length[:], 0, size); err != nil {
		return nil, err
	}
	n := binary.LittleEndian.Uint64(length[:])
	if n > maxHeader || int64(n) > size-lengthBytes {
		return nil, malformed("header of %d bytes in a file of %d bytes", n, size)
	}
	header := make([]byte, n)
	return header, readAt(r, header, lengthBytes, size)
}

// decodeHeader returns the tensors, without data, and their entries, both in the order of the values. It parses the
// JSON token by token because a map would hide duplicate names.
func decodeHeader(header []byte) (tensors []Tensor, entries []entry, meta map[string]string, err error) {
	bad := func(err error) ([]Tensor, []entry, map[string]string, error) {
		return nil, nil, nil, malformed("header: %v", err)
	}
	d := json.NewDecoder(bytes.NewReader(header))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return bad(errors.New("not a JSON object"))
	}
	type named struct {
		name string
		entry
	}
	var all []named
	seen := map[string]bool{}
	for d.More() {
		token, err := d.Token()
		if err != nil {
			return bad(err)
		}
		name, _ := token.(string) // a key; the decoder allows nothing else
		if seen[name] {
			return bad(fmt.Errorf("%q occurs twice", name))
		}
		seen[name] = true
		e := named{name: name}
		if name == metadataKey {
			err = d.Decode(&meta)
		} else {
			err = d.Decode(&e.entry)
			all = append(all, e)
		}
		if err != nil {
			return bad(err)
		}
	}
	if _, err := d.Token(); err != nil {
		return bad(err)
	}
	if _, err := d.Token(); err != io.EOF {
		return bad(errors.New("extra data follows the JSON object"))
	}
	slices.SortStableFunc(all, func(a, b named) int {
		return cmp.Or(cmp.Compare(a.Offsets[0], b.Offsets[0]), cmp.Compare(a.Offsets[1], b.Offsets[1]))
	})
	for _, e := range all {
		tensors = append(tensors, Tensor{Name: e.name, Shape: e.Shape})
		entries = append(entries, e.entry)
	}
	return tensors, entries, meta, nil
}

// checkOffsets checks that the tensors cover every byte exactly once.
func checkOffsets(tensors []Tensor, entries []entry, bytes int64) error {
	var end int64
	for i, e := range entries {
		n, ok := elements(e.Shape)
		switch name := tensors[i].Name; {
		case e.Dtype != F32 && e.Dtype != I64:
			return malformed("tensor %q has type %q; only %s and %s are supported", name, e.Dtype, F32, I64)
		case !ok || e.Offsets[1]-e.Offsets[0] != e.Dtype.Width()*n:
			return malformed("tensor %q: %d bytes for shape %v", name, e.Offsets[1]-e.Offsets[0], e.Shape)
		case e.Offsets[0] != end || e.Offsets[1] > bytes:
			return malformed("tensor %q is at bytes %d to %d of %d, but must start at byte %d", name, e.Offsets[0],
				e.Offsets[1], bytes, end)
		}
		end = e.Offsets[1]
	}
	if end != bytes {
		return malformed("%d bytes of values, but the header describes %d", bytes, end)
	}
	return nil
}

func readAt(r io.ReaderAt, b []byte, at, size int64) error {
	if at+int64(len(b)) > size {
		return malformed("truncated: %d bytes", size)
	}
	n, err := r.ReadAt(b, at)
	switch {
	case n == len(b):
		return nil
	case err == io.EOF:
		return malformed("truncated: %d bytes, not %d", at+int64(n), size)
	}
	return fmt.Errorf("safetensors: read: %w", err)
}

// readValues reads a tensor's values. Its offsets must have been checked.
func readValues(r io.ReaderAt, t *Tensor, e entry, base, size int64) error {
	bytes := e.Offsets[1] - e.Offsets[0]
	if e.Dtype == I64 {
		t.Ints = make([]int64, bytes/8)
	} else {
		t.Data = make([]float32, bytes/4)
	}
	le := binary.LittleEndian
	buf := make([]byte, min(bytes, chunkBytes))
	for done := int64(0); done < bytes; done += int64(len(buf)) {
		buf = buf[:min(bytes-done, chunkBytes)]
		if err := readAt(r, buf, base+e.Offsets[0]+done, size); err != nil {
			return err
		}
		if t.Ints != nil {
			for i, into := 0, t.Ints[done/8:]; i < len(buf)/8; i++ {
				into[i] = int64(le.Uint64(buf[8*i:]))
			}
			continue
		}
		for i, into := 0, t.Data[done/4:]; i < len(buf)/4; i++ {
			into[i] = math.Float32frombits(le.Uint32(buf[4*i:]))
		}
	}
	return nil
}

// Find returns the tensor with a name, or nil.
func Find(tensors []Tensor, name string) *Tensor {
	if i := slices.IndexFunc(tensors, func(t Tensor) bool { return t.Name == name }); i >= 0 {
		return &tensors[i]
	}
	return nil
}

// Hash returns a model's hash: SHA-256, in hexadecimal, over the tensors in ascending order of their names' bytes, and
// nothing else. For each tensor it covers, little-endian:
//
//	4      name bytes n
//	n      name
//
//	4      rank k; for int64 tensors 2³¹ + k, for types other than float32 and int64 2³⁰ + k
//	4      for these types: the type's name, padded with zeros
//	8·k    dimensions
//	…      values
//
// Two models have the same hash if and only if names, types, shapes and all bits of all values are the same, regardless
// of the tensors' order.
func Hash(tensors []Tensor) string {
	sorted := slices.Clone(tensors)
	slices.SortStableFunc(sorted, func(a, b Tensor) int { return cmp.Compare(a.Name, b.Name) })
	h := sha256.New() // its Write never fails
	for _, t := range sorted {
		b := binary.LittleEndian.AppendUint32(nil, uint32(len(t.Name)))
		b = append(b, t.Name...)
		rank := uint32(len(t.Shape))
		switch kind, _ := t.dtype(); kind {
		case F32:
			b = binary.LittleEndian.AppendUint32(b, rank)
		case I64:
			b = binary.LittleEndian.AppendUint32(b, rank|1<<31)
		default:
			b = binary.LittleEndian.AppendUint32(b, rank|1<<30)
			b = append(b, (kind + "\x00\x00\x00")[:4]...)
		}
		for _, d := range t.Shape {
			b = binary.LittleEndian.AppendUint64(b, uint64(d))
		}
		_, _ = h.Write(b)
		_ = writeValues(h, t)
	}
	return hex.EncodeToString(h.Sum(nil))
}

// Origin describes the origin of a model.
type Origin struct {
	Job     *perdure.JobSpec
	Clock   perdure.Clock
	Version string // of Perdure; "" if unknown
	Data    string // the data set's name or path (only the last element is recorded); "" if unknown

	Constants map[string]string // needed by predictions in addition to the tables; may be nil
}

// The sealed settings that have their own key in a model's metadata.
var sealedKeys = map[string]string{"data.digest": "data", "rule": "params.Rule.kind", "rate": "params.Rule.rate"}

// Metadata returns the metadata of a model's file: its origin, the settings that produced it, and the constants that
// its predictions need.
func Metadata(o Origin) map[string]string {
	meta := map[string]string{
		"format": "pt", "clock": fmt.Sprint(o.Clock), "workload": o.Job.Workload, "seed": fmt.Sprint(o.Job.Seed),
	}
	if o.Version != "" {
		meta["perdure"] = o.Version
	}
	if o.Data != "" {
		meta["data"] = filepath.Base(o.Data) // the directory is private
	}
	for name, value := range o.Job.Seal.Settings {
		meta["setting."+name] = value
	}
	for key, name := range sealedKeys {
		if value := o.Job.Seal.Settings[name]; value != "" {
			var text string
			if json.Unmarshal([]byte(value), &text) != nil {
				text = value // not a string but a number
			}
			meta[key] = text
		}
	}
	if rule := tablesRule(o.Job.Seal.Settings); rule != "" {
		meta["rule"] = rule
	}
	maps.Copy(meta, o.Constants)
	return meta
}

// tablesRule returns the rule of all tables. It is "" if they have several rules, or if they add changes that workers
// computed by the rule of the settings.
func tablesRule(sealed map[string]string) (rule string) {
	for name, value := range sealed {
		if !strings.HasPrefix(name, "tables.") || !strings.HasSuffix(name, ".rule.kind") {
			continue
		}
		var kind string
		if json.Unmarshal([]byte(value), &kind) != nil || kind == string(perdure.RuleAdd) ||
			rule != "" && kind != rule {
			return ""
		}
		rule = kind
	}
	return rule
}
