package modelfile

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
	"strings"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/safetensors"
)

// TestRounding checks both conversions for every finite 16-bit number: it is converted exactly, as are the values next
// to the middle between it and the following one. The middle is rounded to the even number.
func TestRounding(t *testing.T) {
	halfValue := func(b uint16) float32 {
		exp, mantissa := int(b>>10&31), float64(b&0x3ff)
		if exp == 0 {
			return float32(math.Ldexp(mantissa, -24))
		}
		return float32(math.Ldexp(1024+mantissa, exp-25))
	}
	for _, c := range []struct {
		name  string
		round func(float32) uint16
		value func(uint16) float32
		inf   uint16
	}{
		{"float16", half, halfValue, 0x7c00},
		{"bfloat16", brain, func(b uint16) float32 { return math.Float32frombits(uint32(b) << 16) }, 0x7f80},
	} {
		inf := float32(math.Inf(1))
		for b := range c.inf {
			low, high := float64(c.value(b)), float64(c.value(b+1))
			if b+1 == c.inf {
				high = 2*low - float64(c.value(b-1)) // the number that would follow
			}
			middle := float32((low + high) / 2)
			even := b + b&1
			for v, want := range map[float32]uint16{
				float32(low): b, math.Nextafter32(middle, 0): b, middle: even, math.Nextafter32(middle, inf): b + 1,
			} {
				if c.name == "bfloat16" && b == 0 && v != 0 && v != middle {
					continue // neighbours of a subnormal middle
				}
				if got, minus := c.round(v), c.round(-v); got != want || v != 0 && minus != want|0x8000 {
					t.Fatalf("%s: %g is %#x and %#x, not %#x", c.name, v, got, minus, want)
				}
			}
		}
		if got := c.round(inf); got != c.inf {
			t.Errorf("%s: infinity is %#x", c.name, got)
		}
		if nan := c.round(float32(math.NaN())); nan&^0x8000 <= c.inf {
			t.Errorf("%s: NaN is %#x", c.name, nan)
		}
	}
}

// tablesOf returns the tables of a program with a description.
func tablesOf(text string) []safetensors.Tensor {
	b := binary.LittleEndian.AppendUint32(nil, uint32(len(text)))
	b = append(binary.LittleEndian.AppendUint32(b, crc32.ChecksumIEEE([]byte(text))), text...)
	b = append(b, make([]byte, 2048-len(b)%2048)...)
	names := safetensors.Tensor{Name: namesTable, Shape: []int64{int64(len(b) / 2048), 1024}}
	ids := safetensors.Tensor{Name: namesTable + safetensors.IDsSuffix, Shape: names.Shape[:1]}
	for i := 0; i < len(b); i += 2 {
		names.Data = append(names.Data, float32(binary.LittleEndian.Uint16(b[i:])))
	}
	for i := range len(b) / 2048 {
		ids.Ints = append(ids.Ints, int64(i))
	}
	return []safetensors.Tensor{
		names, ids,
		{Name: "weights.0", Shape: []int64{1, 4}, Data: []float32{1, 2, 3, 0}},
		{Name: "weights.0" + begunSuffix, Shape: []int64{1, 4}, Data: []float32{0.5, 0.25, 0, 0}},
		{Name: "buffers", Shape: []int64{1, 4}, Data: []float32{0x0201, 3, 0, 0}},
	}
}

const (
	described2 = `{"name":"w","keys":["w","tied"],"kind":"trained","type":"%s","shape":[2],"table":"weights.0","at":%d}`
	buffer3    = `{"name":"b","keys":["b"],"kind":"buffer","type":"%s","shape":[3],"table":"%s","at":0}`
)

// TestStateDict checks the tensors of a description and, in the file, their bytes and alignment.
func TestStateDict(t *testing.T) {
	empty := `{"name":"e","keys":["e"],"kind":"buffer","type":"int64","shape":[0,2],"table":""}`
	hidden := `{"name":"h","keys":[],"kind":"buffer","type":"uint8","shape":[3],"table":"buffers"}`
	lacking := fmt.Sprintf(buffer3, "float32", "")
	text := fmt.Sprintf(`{"version":1,"others":["extra"],"tensors":[%s,%s,%s,%s,%s]}`,
		fmt.Sprintf(described2, "bfloat16", 1), fmt.Sprintf(buffer3, "uint8", "buffers"), empty, hidden,
		strings.Replace(lacking, `["b"]`, `["lacking"]`, 1))
	tensors, missing, err := StateDict(tablesOf(text), nil)
	if err != nil || fmt.Sprint(missing) != "[extra lacking]" {
		t.Fatalf("missing %q: %v", missing, err)
	}
	var file bytes.Buffer
	if err := safetensors.Write(&file, tensors, nil); err != nil {
		t.Fatal(err)
	}
	n := binary.LittleEndian.Uint64(file.Bytes())
	header, values := file.Bytes()[8:8+n], file.Bytes()[8+n:]
	var entries map[string]any
	if err := json.Unmarshal(header, &entries); err != nil {
		t.Fatal(err)
	}
	want := map[string]any{}
	for name, entry := range map[string]string{
		"e":    `{"dtype":"I64","shape":[0,2],"data_offsets":[0,0]}`,
		"w":    `{"dtype":"BF16","shape":[2],"data_offsets":[0,4]}`,
		"tied": `{"dtype":"BF16","shape":[2],"data_offsets":[4,8]}`,
		"b":    `{"dtype":"U8","shape":[3],"data_offsets":[8,11]}`,
	} {
		var of any
		if err := json.Unmarshal([]byte(entry), &of); err != nil {
			t.Fatal(err)
		}
		want[name] = of
	}
	if fmt.Sprint(entries) != fmt.Sprint(want) {
		t.Errorf("header %s", header)
	}
	// 2.25 and 3 as bfloat16, twice, and the bytes of the buffer
	if got := fmt.Sprintf("%x", values); got != "10404040"+"10404040"+"010203" {
		t.Errorf("values %s", got)
	}
}

// TestDamagedDescription checks that damaged, incomplete and later descriptions are errors.
func TestDamagedDescription(t *testing.T) {
	document := func(tensors string) string { return `{"version":1,"others":[],"tensors":[` + tensors + `]}` }
	good := document(fmt.Sprintf(described2, "float32", 0))
	for name, c := range map[string]struct {
		text   string
		damage func([]safetensors.Tensor) []safetensors.Tensor
		usage  bool
	}{
		"a later version": {text: strings.Replace(good, `"version":1`, `"version":2`, 1), usage: true},
		"no JSON":         {text: "{"},
		"lost rows": {
			text: document(strings.Repeat(" ", 3000)), usage: true,
			damage: func(all []safetensors.Tensor) []safetensors.Tensor {
				all[0].Data, all[1].Ints = all[0].Data[1024:], all[1].Ints[1:]
				return all
			},
		},
		"not written": {
			text: good, usage: true,
			damage: func(all []safetensors.Tensor) []safetensors.Tensor {
				all[0].Data, all[1].Ints = nil, []int64{}
				return all
			},
		},
		"changed": {
			text: good, usage: true,
			damage: func(all []safetensors.Tensor) []safetensors.Tensor {
				all[0].Data[9]++
				return all
			},
		},
		"no table of names": {
			text:   good,
			damage: func(all []safetensors.Tensor) []safetensors.Tensor { return all[1:] },
		},
		"beyond the table": {text: document(fmt.Sprintf(described2, "float32", 3))},
		"before the table": {text: document(fmt.Sprintf(described2, "float32", -1))},
		"no such table":    {text: document(fmt.Sprintf(buffer3, "uint8", "other"))},
		"trained integers": {text: document(fmt.Sprintf(described2, "int32", 0))},
		"a negative shape": {text: document(strings.Replace(fmt.Sprintf(described2, "float32", 0), "[2]", "[-2]", 1))},
		"a huge shape": {text: document(strings.Replace(fmt.Sprintf(described2, "float32", 0), "[2]",
			"[9223372036854775807,9]", 1))},
	} {
		all := tablesOf(c.text)
		if c.damage != nil {
			all = c.damage(all)
		}
		_, _, err := StateDict(all, nil)
		if err == nil || errors.Is(err, perdure.ErrUsage) != c.usage || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
