package wire

import (
	"bytes"
	"runtime"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/protocol"
)

// allocates runs f and fails if it allocates much more memory than the input has bytes: a peer must not make this
// process allocate memory with a few bytes. The constant is what JSON and the fuzzer itself need.
func allocates(t *testing.T, input int, f func()) {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	if took := after.TotalAlloc - before.TotalAlloc; took > uint64(64*input)+1<<20 {
		t.Errorf("%d bytes of input allocated %d bytes of memory", input, took)
	}
}

// seedPayloads adds the payloads of all samples of any kind.
func seedPayloads(f *testing.F) {
	for _, s := range samples() {
		f.Add(s.frame.Payload)
	}
}

func FuzzDecode(f *testing.F) {
	for _, s := range samples() {
		f.Add(Append(nil, &s.frame))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		allocates(t, len(b), func() {
			var got Frame
			rest, err := Decode(b, &got)
			if err == nil && b[4] == Version && !bytes.Equal(Append(nil, &got), b[:len(b)-len(rest)]) {
				t.Errorf("% x was decoded as %+v, which is encoded as % x", b, got, Append(nil, &got))
			}
		})
	})
}

func FuzzParseRows(f *testing.F) {
	seedPayloads(f)
	f.Fuzz(func(t *testing.T, b []byte) {
		allocates(t, len(b), func() {
			var r Rows
			rest, err := ParseRows(b, &r)
			if err != nil {
				return
			}
			if r.Count < 0 || r.IDs != nil && len(r.IDs) != r.Count || len(b)-len(rest) != rowsBytes+8*len(r.IDs) {
				t.Errorf("% x was decoded as %+v, with %d bytes left", b, r, len(rest))
			}
		})
	})
}

func FuzzReadBlocks(f *testing.F) {
	seedPayloads(f)
	f.Fuzz(func(t *testing.T, b []byte) {
		allocates(t, len(b), func() {
			values := 0
			_, err := readAll(b, func(x *Block) error {
				values += len(x.Values)
				return nil
			})
			if most := min(32*len(b), 4*maxPackedValues+len(b)); err == nil && 4*values > most {
				t.Errorf("%d values in %d bytes", values, len(b))
			}
		})
	})
}

func FuzzParseAnswer(f *testing.F) {
	seedPayloads(f)
	f.Fuzz(func(t *testing.T, b []byte) {
		allocates(t, len(b), func() {
			var a Answer
			if err := ParseAnswer(&Frame{Payload: b}, &a); err != nil {
				return
			}
			if back := AppendFloats(AppendState(nil, &a.State), a.Values); !bytes.Equal(back, b) {
				t.Errorf("% x was encoded again as % x", b, back)
			}
		})
	})
}

func FuzzPackedAnswer(f *testing.F) {
	for _, s := range samples() {
		f.Add(s.frame.Payload, packedValues)
	}
	f.Fuzz(func(t *testing.T, b []byte, n int) {
		allocates(t, len(b), func() {
			var a Answer
			f := Frame{Header: Header{Flags: FlagPacked}, Payload: b}
			if n < 0 || n > maxPackedValues || ParseAnswer(&f, &a) != nil {
				return
			}
			values, err := a.Unpack(n, 1, &room)
			if err == nil && (len(values) != n || n > 8*len(b)) {
				t.Errorf("%d bytes were decoded as %d values, want %d", len(b), len(values), n)
			}
		})
	})
}

var room = make([]float32, maxPackedValues)

func FuzzParsePush(f *testing.F) {
	seedPayloads(f)
	f.Fuzz(func(t *testing.T, b []byte) {
		allocates(t, len(b), func() {
			var p Push
			if err := ParsePush(&Frame{Payload: b}, &p); err != nil {
				return
			}
			back := AppendFloats(AppendPushHead(nil, &p.State, &p.Rows), p.Values)
			if len(back) != len(b) {
				t.Errorf("% x was encoded again as % x", b, back)
			}
		})
	})
}

func FuzzParseIDs(f *testing.F) {
	seedPayloads(f)
	f.Fuzz(func(t *testing.T, b []byte) {
		allocates(t, len(b), func() {
			stored, ids, err := ParseIDs(b)
			if err == nil && !bytes.Equal(AppendIDs(nil, stored, ids), b) {
				t.Errorf("% x was encoded again as % x", b, AppendIDs(nil, stored, ids))
			}
		})
	})
}

func FuzzParseCounts(f *testing.F) {
	seedPayloads(f)
	f.Fuzz(func(t *testing.T, b []byte) {
		if c, err := ParseCounts(b); err == nil && !bytes.Equal(AppendCounts(nil, c), b) {
			t.Errorf("% x was decoded as %+v", b, c)
		}
	})
}

func FuzzParseControl(f *testing.F) {
	seedPayloads(f)
	f.Fuzz(func(t *testing.T, b []byte) {
		allocates(t, len(b), func() {
			frame := Frame{Payload: b}
			for _, v := range []any{
				&Hello{}, &Welcome{}, &Refusal{}, &protocol.View{}, &protocol.ViewDelta{}, &protocol.ServerDelta{},
				&protocol.WorkerDelta{}, &perdure.TableSpec{},
				&Report{}, &Event{}, &Order{}, &Exited{}, &Progress{},
			} {
				_ = ParseControl(&frame, v) // may fail, but must not panic
			}
		})
	})
}
