package modelfile

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"math"
	"slices"
	"strings"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/safetensors"
)

// The table of a perdure.torch program that describes its model. Each group of trained parameters has two more, unless
// the program keeps the weights itself: one for the initial weights, with the suffix begunSuffix, and one for the sum
// of all changes.
const (
	namesTable  = "weights.names"
	begunSuffix = ".begin"
	begunTable  = "begun" // of asynchronous training
)

// Limits and layout of a description: its text follows its length and CRC-32, and each float32 value has two bytes.
const (
	descriptionVersion = 1
	descriptionHead    = 8
	maxNamed           = 5 // tensors that an error names
)

// description is the document in namesTable. The Python package writes it.
type description struct {
	Version int         `json:"version"`
	Tensors []described `json:"tensors"`
	Others  []string    `json:"others"` // names in the state_dict whose values are in no table
}

// described is a parameter or buffer.
type described struct {
	Name  string   `json:"name"`
	Keys  []string `json:"keys"` // names in the state_dict; several for tied parameters
	Kind  string   `json:"kind"` // trained, buffer or frozen
	Type  string   `json:"type"` // as PyTorch names it
	Shape []int64  `json:"shape"`
	Table string   `json:"table"` // "": no table has the values
	At    int64    `json:"at"`    // index of its first value in the table
	Check string   `json:"check"` // checksum of values that the job does not have
}

// types are the safetensors types of PyTorch's types.
var types = map[string]safetensors.Type{
	"bool": safetensors.Bool, "uint8": safetensors.U8, "int8": safetensors.I8, "int16": safetensors.I16,
	"int32": safetensors.I32, "int64": safetensors.I64, "float16": safetensors.F16, "bfloat16": safetensors.BF16,
	"float32": safetensors.F32, "float64": safetensors.F64,
}

// IsDescribed reports whether a file with tensors of these names has the tables of a perdure.torch program.
func IsDescribed(names []string) bool {
	return slices.Contains(names, namesTable) && slices.Contains(names, namesTable+safetensors.IDsSuffix)
}

// IsSaved reports whether a job with these tables has a model whose weights are only in the states that its slots save,
// as with DataParallel.
func IsSaved(tables []perdure.TableSpec) bool {
	described := slices.ContainsFunc(tables, func(t perdure.TableSpec) bool { return t.Name == namesTable })
	begun := func(t perdure.TableSpec) bool { return strings.HasSuffix(t.Name, begunSuffix) }
	return described && !slices.ContainsFunc(tables, begun)
}

// HasFixedSlots reports whether a job with these tables divides its data among a fixed number of slots, as asynchronous
// training with ServerOptimizer does.
func HasFixedSlots(tables []perdure.TableSpec) bool {
	has := func(name string) bool {
		return slices.ContainsFunc(tables, func(t perdure.TableSpec) bool { return t.Name == name })
	}
	return has(namesTable) && has(begunTable)
}

// StateDict converts the tables of a perdure.torch program to the tensors of the model's state_dict. saved is the model
// in the state of a slot if the weights are there, and otherwise nil. missing are the names of the state_dict whose
// values are in neither.
func StateDict(tables []safetensors.Tensor, saved *Saved) (tensors []safetensors.Tensor, missing []string, err error) {
	m := &Model{Tensors: tables}
	d, err := m.description()
	if err != nil {
		return nil, nil, err
	}
	in, err := saved.byTensor(d.Tensors)
	if err != nil {
		return nil, nil, err
	}
	missing = d.Others
	for i := range d.Tensors {
		of := &d.Tensors[i]
		value, known, err := m.valueOf(of, in[of])
		if err != nil {
			return nil, nil, fmt.Errorf("%s: %w", of.Name, err)
		}
		if !known {
			missing = append(missing, of.Keys...)
			continue
		}
		for _, key := range of.Keys {
			value.Name = key
			tensors = append(tensors, value)
		}
	}
	return tensors, missing, nil
}

// ErrMissing returns an error that names tensors without values.
func ErrMissing(missing []string) error {
	more := ""
	if len(missing) > maxNamed {
		more = fmt.Sprintf(" and %d more", len(missing)-maxNamed)
		missing = missing[:maxNamed]
	}
	return perdure.Usagef("the job does not have the values of %s%s, such as frozen parameters above 64 MiB; call "+
		"export in the program, or add --partial to omit them", strings.Join(missing, ", "), more)
}

func (m *Model) description() (d description, err error) {
	rows := m.find(namesTable)
	ids := m.find(namesTable + safetensors.IDsSuffix)
	if rows == nil || ids == nil {
		return d, fmt.Errorf("table %s is missing", namesTable)
	}
	all := make([]byte, 0, 2*len(rows.Data))
	for _, v := range rows.Data {
		all = binary.LittleEndian.AppendUint16(all, uint16(v))
	}
	for i, id := range ids.Ints {
		if id != int64(i) {
			all = nil // a row is missing
		}
	}
	if len(all) < descriptionHead {
		return d, perdure.Usagef("table %s is incomplete: its rows were lost, or the program has not written them yet",
			namesTable)
	}
	text := all[descriptionHead:]
	if n := binary.LittleEndian.Uint32(all); uint64(n) <= uint64(len(text)) {
		text = text[:n]
	}
	if crc32.ChecksumIEEE(text) != binary.LittleEndian.Uint32(all[4:]) {
		return d, perdure.Usagef("table %s is incomplete: some of its rows were lost", namesTable)
	}
	if err := json.Unmarshal(text, &d); err != nil {
		return d, fmt.Errorf("table %s: %w", namesTable, err)
	}
	if d.Version != descriptionVersion {
		return d, perdure.Usagef("table %s has version %d, but only version %d is supported; use the version of "+
			"perdure that trained the model", namesTable, d.Version, descriptionVersion)
	}
	return d, nil
}

// elements returns the number of values of a shape. Their size in bytes fits an int64.
func elements(shape []int64) (n int64, err error) {
	n = 1
	for _, d := range shape {
		if d < 0 || d > 0 && n > math.MaxInt64/8/d {
			return 0, fmt.Errorf("invalid shape %v", shape)
		}
		n *= d
	}
	return n, nil
}

// valueOf returns the values of a tensor. in has them if they are in a saved state; otherwise it is nil. known is false
// if they are in neither.
func (m *Model) valueOf(of *described, in *savedTensor) (value safetensors.Tensor, known bool, err error) {
	kind, supported := types[of.Type]
	value.Shape = of.Shape
	n, err := elements(of.Shape)
	if err != nil {
		return value, false, err
	}
	if in != nil {
		known, err = in.set(&value, of)
		return value, known, err
	}
	switch {
	case !supported || of.Table == "" && n > 0:
		return value, false, nil
	case n == 0:
		value.SetBytes(kind, nil)
		return value, true, nil
	case of.Kind == "trained" || m.find(of.Table+begunSuffix) != nil: // or an averaged buffer
		var sums []float32
		if sums, err = m.sums(of, n); err == nil {
			err = setFloats(&value, kind, sums)
		}
		return value, true, err
	}
	size := n * kind.Width()
	halves, err := m.slice(of.Table, of.At, (size+1)/2)
	if err != nil {
		return value, false, err
	}
	bytes := make([]byte, 0, size+1)
	for _, v := range halves {
		bytes = binary.LittleEndian.AppendUint16(bytes, uint16(v))
	}
	value.SetBytes(kind, bytes[:size])
	return value, true, nil
}

// slice returns values of a table.
func (m *Model) slice(table string, at, n int64) ([]float32, error) {
	of := m.find(table)
	if of == nil || at < 0 || n > int64(len(of.Data)) || at > int64(len(of.Data))-n {
		return nil, fmt.Errorf("table %s does not have values %d to %d", table, at, at+n)
	}
	return of.Data[at:][:n], nil
}

// sums returns the weights of a trained parameter: its initial ones plus all changes, rounded once to float32.
func (m *Model) sums(of *described, n int64) ([]float32, error) {
	first, err := m.slice(of.Table+begunSuffix, of.At, n)
	if err != nil {
		return nil, err
	}
	added, err := m.slice(of.Table, of.At, n)
	if err != nil {
		return nil, err
	}
	all := make([]float32, n)
	for i := range all {
		all[i] = first[i] + added[i]
	}
	return all, nil
}

// setFloats sets the values of a tensor of floating-point numbers, rounded to nearest, ties to even.
func setFloats(t *safetensors.Tensor, kind safetensors.Type, values []float32) error {
	if kind == safetensors.F32 {
		t.Data = values
		return nil
	}
	rounded := map[safetensors.Type]func(float32) uint16{safetensors.F16: half, safetensors.BF16: brain}[kind]
	if rounded == nil {
		return fmt.Errorf("a trained parameter of type %s", kind)
	}
	bytes := make([]byte, 0, 2*len(values))
	for _, v := range values {
		bytes = binary.LittleEndian.AppendUint16(bytes, rounded(v))
	}
	t.SetBytes(kind, bytes)
	return nil
}

// brain rounds a value to bfloat16.
func brain(v float32) uint16 {
	b := math.Float32bits(v)
	if v != v {
		return 0x7fc0
	}
	return uint16((b + 0x7fff + b>>16&1) >> 16)
}

// half rounds a value to float16.
func half(v float32) uint16 {
	b := math.Float32bits(v)
	sign, b := uint16(b>>16&0x8000), b&0x7fffffff
	switch {
	case b > 0x7f800000: // NaN
		return sign | 0x7e00
	case b >= 0x477ff000: // rounds to a value above the largest finite one
		return sign | 0x7c00
	case b >= 0x38800000: // a normal number
		return sign | uint16((b-0x38000000+0xfff+b>>13&1)>>13)
	}
	// A subnormal number is a multiple of 2⁻²⁴. This sum rounds to one, and leaves it in the low bits of the mantissa.
	return sign | uint16(math.Float32bits(math.Float32frombits(b)+0.5)-math.Float32bits(0.5))
}
