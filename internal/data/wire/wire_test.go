package wire

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/protocol"
)

func drawHeader(t *rapid.T) Header {
	return Header{
		Kind: Kind(rapid.Byte().Draw(t, "kind")), Flags: rapid.Uint16().Draw(t, "flags"),
		Generation: perdure.Generation(rapid.Uint64().Draw(t, "generation")),
		Epoch:      perdure.Epoch(rapid.Uint64().Draw(t, "epoch")),
		Clock:      perdure.Clock(rapid.Int64().Draw(t, "clock")),
		Request:    rapid.Uint64Max(MaxRequest).Draw(t, "request"), Clocks: rapid.Uint16().Draw(t, "clocks"),
		Slot:        perdure.Slot(rapid.Int32().Draw(t, "slot")),
		Incarnation: perdure.Incarnation(rapid.Uint32().Draw(t, "incarnation")),
		Shard:       perdure.ShardID(rapid.Int32().Draw(t, "shard")), Part: rapid.Uint16().Draw(t, "part"),
		Parts: rapid.Uint16().Draw(t, "parts"),
	}
}

// TestFramesRoundTrip: any sequence of frames is decoded unchanged.
func TestFramesRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var sent []Frame
		var b []byte
		for range rapid.IntRange(1, 4).Draw(t, "frames") {
			f := Frame{Header: drawHeader(t), Payload: rapid.SliceOfN(rapid.Byte(), 0, 300).Draw(t, "payload")}
			sent = append(sent, f)
			seam := rapid.IntRange(0, len(f.Payload)).Draw(t, "seam") // not visible in the encoding
			b = Append(b, &Frame{Header: f.Header, Payload: f.Payload[:seam], Body: f.Payload[seam:]})
		}
		for i := range sent {
			var f Frame
			var err error
			if b, err = Decode(b, &f); err != nil || f.Header != sent[i].Header ||
				!bytes.Equal(f.Payload, sent[i].Payload) {
				t.Fatalf("frame %d: %+v, %v; want %+v", i, f, err, sent[i])
			}
		}
		if len(b) > 0 {
			t.Fatalf("%d bytes left", len(b))
		}
	})
}

func drawRows(t *rapid.T) Rows {
	r := Rows{Table: perdure.TableID(rapid.Uint32Max(math.MaxUint32-3).Draw(t, "table"))}
	if rapid.Bool().Draw(t, "run") {
		r.First, r.Count = perdure.RowID(rapid.Uint64().Draw(t, "first")),
			rapid.IntRange(0, MaxPayload*8).Draw(t, "count")
		return r
	}
	r.IDs = []perdure.RowID{}
	for range rapid.IntRange(0, 20).Draw(t, "ids") {
		r.IDs = append(r.IDs, perdure.RowID(rapid.Uint64().Draw(t, "id")))
	}
	r.Count = len(r.IDs)
	return r
}

func sameRows(a, b Rows) bool {
	return a.Table == b.Table && a.First == b.First && a.Count == b.Count && slices.Equal(a.IDs, b.IDs) &&
		(a.IDs == nil) == (b.IDs == nil)
}

func sameFloats(a, b []float32) bool { // compares bits, so that NaN equals itself
	return slices.EqualFunc(a, b, func(x, y float32) bool { return math.Float32bits(x) == math.Float32bits(y) })
}

func drawFloats(t *rapid.T) []float32 {
	bits := rapid.SliceOfN(rapid.Uint32(), 0, 50).Draw(t, "values")
	out := make([]float32, len(bits))
	for i, b := range bits {
		out[i] = math.Float32frombits(b)
	}
	return out
}

// TestBlocksRoundTrip: any update is decoded unchanged, including the slot state, whatever its values and wherever its
// bytes are in memory.
func TestBlocksRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var sent []Block
		var payload, state []byte
		for range rapid.IntRange(0, 4).Draw(t, "blocks") {
			b := Block{drawRows(t), drawFloats(t)}
			sent = append(sent, b)
			payload = AppendBlock(payload, &b)
		}
		basis := rapid.SampledFrom([]perdure.Clock{NoBasis, 0, 7, math.MaxInt64}).Draw(t, "basis")
		if basis != NoBasis {
			payload = AppendBasisBlock(payload, basis, 3)
		}
		alone := rapid.Bool().Draw(t, "alone")
		if alone {
			payload = AppendOutageBlock(payload)
		}
		if rapid.Bool().Draw(t, "has state") {
			state = rapid.SliceOfN(rapid.Byte(), 0, 30).Draw(t, "state")
			payload = AppendStateBlock(payload, state)
		}
		shift := rapid.IntRange(0, 8).Draw(t, "shift")
		payload = append(make([]byte, shift), payload...)[shift:]
		i := 0
		got, err := readAll(payload, func(b *Block) error {
			if i == len(sent) || !sameRows(b.Rows, sent[i].Rows) || !sameFloats(b.Values, sent[i].Values) {
				return fmt.Errorf("block %d is %+v", i, b)
			}
			i++
			return nil
		})
		if err != nil || i != len(sent) || !bytes.Equal(got, state) || (got == nil) != (state == nil) {
			t.Fatalf("%v; %d of %d blocks, state %q; want %q", err, i, len(sent), got, state)
		}
		b := ReadBlocks(payload)
		for b.Next() {
		}
		if b.Basis != basis || basis != NoBasis && b.Lag != 3 {
			t.Fatalf("basis MinClock %d, want %d", b.Basis, basis)
		}
		if b.InOutage != alone {
			t.Fatalf("made while the shard was unavailable: %v, want %v", b.InOutage, alone)
		}
	})
}

func TestAnswersAndCountsRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		clocks := func() (out []perdure.Clock) {
			for _, c := range rapid.SliceOfN(rapid.Int64(), 0, 10).Draw(t, "clocks") {
				out = append(out, perdure.Clock(c))
			}
			return out
		}
		sent := Answer{
			State:  State{rapid.Uint64().Draw(t, "seq"), rapid.Uint64().Draw(t, "waited"), clocks()},
			Values: drawFloats(t),
		}
		var got Answer
		err := ParseAnswer(&Frame{Payload: AppendFloats(AppendState(nil, &sent.State), sent.Values)}, &got)
		if err != nil || got.Seq != sent.Seq || got.WaitedMicros != sent.WaitedMicros ||
			!slices.Equal(got.Applied, sent.Applied) ||
			!sameFloats(got.Values, sent.Values) {
			t.Fatalf("%+v, %v; want %+v", got, err, sent)
		}
		c := protocol.Counts{
			Staged: perdure.Clock(rapid.Int64().Draw(t, "s")),
			Ticked: perdure.Clock(rapid.Int64().Draw(t, "t")), Applied: perdure.Clock(rapid.Int64().Draw(t, "a")),
			Seen: perdure.Clock(rapid.Int64().Draw(t, "n")),
		}
		if back, err := ParseCounts(AppendCounts(nil, c)); err != nil || back != c {
			t.Fatalf("%+v, %v; want %+v", back, err, c)
		}
	})
}

// TestDamage: a truncated or changed frame is rejected in one line.
func TestDamage(t *testing.T) {
	sentinels := []error{ErrMagic, ErrVersion, ErrTooLarge, ErrChecksum, ErrPayload}
	refused := func(what string, b []byte) {
		var f Frame
		_, err := Decode(b, &f)
		if !slices.ContainsFunc(sentinels, func(s error) bool {
			return errors.Is(err, s)
		}) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v", what, err)
		}
	}
	for _, s := range samples() {
		b := Append(nil, &s.frame)
		for n := range b {
			refused(fmt.Sprintf("%s cut to %d bytes", s.name, n), b[:n])
		}
		for bit := range 8 * len(b) {
			b[bit/8] ^= 1 << (bit % 8)
			refused(fmt.Sprintf("%s with bit %d flipped", s.name, bit), b)
			b[bit/8] ^= 1 << (bit % 8)
		}
	}
}

func TestHeaderErrors(t *testing.T) {
	for what, c := range map[string]struct {
		change func(b []byte)
		want   error
	}{
		"other magic":     {func(b []byte) { copy(b, "HTTP") }, ErrMagic},
		"version 0":       {func(b []byte) { b[4] = 0 }, ErrVersion},
		"later version":   {func(b []byte) { b[4] = Version + 1 }, ErrVersion},
		"oversize":        {func(b []byte) { binary.LittleEndian.PutUint32(b[8:], MaxPayload+1) }, ErrTooLarge},
		"largest length":  {func(b []byte) { binary.LittleEndian.PutUint32(b[8:], math.MaxUint32) }, ErrTooLarge},
		"longer than is":  {func(b []byte) { binary.LittleEndian.PutUint32(b[8:], 6) }, ErrPayload},
		"shorter than is": {func(b []byte) { binary.LittleEndian.PutUint32(b[8:], 4) }, ErrChecksum},
		"another clock":   {func(b []byte) { b[32]++ }, ErrChecksum},
		"another payload": {func(b []byte) { b[HeaderBytes]++ }, ErrChecksum},
	} {
		b := Append(nil, &Frame{Header: Header{Kind: KindState}, Payload: []byte("state")})
		c.change(b)
		var f Frame
		if _, err := Decode(b, &f); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", what, err, c.want)
		}
	}
	large := Frame{Header: Header{Kind: KindState}, Payload: make([]byte, MaxPayload)}
	var f Frame
	if _, err := Decode(Append(nil, &large), &f); err != nil || len(f.Payload) != MaxPayload {
		t.Errorf("the largest valid payload: %v", err)
	}
}

// TestTruncatedPayloads: a truncated payload is rejected or yields a prefix, never something else.
func TestTruncatedPayloads(t *testing.T) {
	for _, s := range dataSamples() {
		for n := range len(s.frame.Payload) {
			f := Frame{Header: s.frame.Header, Payload: s.frame.Payload[:n:n]}
			switch got := s.parse(&f).(type) {
			case error:
				if s.frame.Kind != KindGet && s.frame.Kind != KindScan && s.frame.Kind != KindUnsubscribe &&
					!errors.Is(got, ErrPayload) {
					t.Errorf("%s truncated to %d: %v", s.name, n, got)
				}
			case blocks: // truncated at the end of a block, or before the padding
				want := s.want.(blocks)
				if len(got.Blocks) > len(want.Blocks) || len(got.Blocks) == len(want.Blocks) &&
					string(got.State) == string(want.State) && n <= len(s.frame.Payload)-8 {
					t.Errorf("%s truncated to %d yields %+v", s.name, n, got)
				}
			case Answer: // does not contain the number of values, which only its reader knows
				if want := s.want.(Answer); len(got.Values) >= len(want.Values) {
					t.Errorf("%s truncated to %d yields %+v", s.name, n, got)
				}
			case Push: // as for Answer
				if want := s.want.(Push); len(got.Values) >= len(want.Values) && len(want.Values) > 0 {
					t.Errorf("%s truncated to %d yields %+v", s.name, n, got)
				}
			case string:
			case bool: // the absence of a block is valid
				if got {
					t.Errorf("%s truncated to %d yields %+v", s.name, n, got)
				}
			case [2]perdure.Clock: // the absence of a block is valid
				if n > 0 {
					t.Errorf("%s truncated to %d yields %+v", s.name, n, got)
				}
			default:
				t.Errorf("%s truncated to %d yields %+v", s.name, n, got)
			}
		}
	}
}

// TestAnnouncedTooMuch: a count beyond the data present is rejected before memory is allocated.
func TestAnnouncedTooMuch(t *testing.T) {
	le := binary.LittleEndian
	rows := func(mode uint32, n uint64) []byte {
		b := le.AppendUint32(le.AppendUint32(nil, 0), mode)
		return le.AppendUint64(le.AppendUint64(b, n), 0)
	}
	var r Rows
	for what, b := range map[string][]byte{
		"a list of many rows": rows(1, 1<<24), "a list of all rows": rows(1, math.MaxUint64),
		"a run of all rows": rows(0, math.MaxUint64),
		"an unknown mode":   rows(2, 0), "just too large a run": rows(0, MaxPayload*8+1),
	} {
		if _, err := ParseRows(b, &r); !errors.Is(err, ErrPayload) {
			t.Errorf("%s: %v", what, err)
		}
	}
	for _, n := range []uint64{1, 1 << 32, 1 << 62, math.MaxUint64} {
		if _, err := readAll(le.AppendUint64(rows(0, 1), n), func(*Block) error { return nil }); !errors.Is(err,
			ErrPayload) {
			t.Errorf("%d missing values: %v", n, err)
		}
		if err := ParseAnswer(&Frame{Payload: append(le.AppendUint64(make([]byte, 8), n), make([]byte, 8)...)},
			&Answer{}); !errors.Is(err, ErrPayload) {
			t.Errorf("a missing applied vector of %d: %v", n, err)
		}
	}
}

// TestWeights: a weight block may accompany a table's rows. An invalid weight is rejected, and so is a weight block
// with rows.
func TestWeights(t *testing.T) {
	rows := Block{Rows: Rows{Table: 3, First: 5, Count: 1}, Values: []float32{1, 2}}
	for _, w := range []float64{1, 0.1, perdure.MaxWeight, math.SmallestNonzeroFloat64} {
		payload := AppendBlock(AppendWeightBlock(AppendBlock(nil, &rows), 3, w), &rows)
		var got []float64
		b := ReadBlocks(payload)
		for b.Next() {
			if got = append(got, b.Weight); b.Table != 3 || (b.Weight == 0) != (b.Count == 1) ||
				b.Weight != 0 && (b.IDs == nil || len(b.IDs) != 0) { // every shard accepts an empty list of rows
				t.Errorf("weight %v was decoded as %+v", w, b.Rows)
			}
		}
		if b.Err() != nil || !slices.Equal(got, []float64{0, w, 0}) {
			t.Errorf("weight %v was decoded as %v, %v", w, got, b.Err())
		}
	}
	for _, w := range []float64{0, -1, math.NaN(), math.Inf(1), math.MaxFloat64, math.Copysign(0, -1)} {
		if _, err := readAll(AppendWeightBlock(nil, 0, w), nil); !errors.Is(err, ErrPayload) {
			t.Errorf("weight %v: %v", w, err)
		}
	}
	with := AppendWeightBlock(nil, 0, 1)
	with[8] = 1
	if _, err := readAll(with, nil); !errors.Is(err, ErrPayload) || !strings.Contains(err.Error(), "with 1 rows") {
		t.Errorf("a weight with rows: %v", err)
	}
	if _, err := ParseRows(AppendWeightBlock(nil, 0, 1), &Rows{}); !errors.Is(err, ErrPayload) {
		t.Errorf("a weight in place of rows: %v", err)
	}
}

// readAll passes the blocks of a payload to f and returns the slot state.
func readAll(payload []byte, f func(*Block) error) (state []byte, err error) {
	b := ReadBlocks(payload)
	for b.Next() {
		if err := f(b.Unpack(nil)); err != nil {
			return nil, err
		}
	}
	if b.Err() != nil {
		return nil, b.Err()
	}
	return b.State, nil
}

// TestBlockInTwoPieces: a block whose values are sent separately after its head is the same block.
func TestBlockInTwoPieces(t *testing.T) {
	for n := range 9 {
		b := Block{Rows: Rows{Table: 3, Count: n, IDs: make([]perdure.RowID, n)}, Values: make([]float32, n)}
		for i := range n {
			b.IDs[i], b.Values[i] = perdure.RowID(10-i), float32(i)
		}
		payload := AppendBlock(nil, &b)
		body, ok := FloatBytes(b.Values)
		if n > 0 && !ok {
			t.Skip("not on this machine")
		}
		whole := append(AppendBlockHead(nil, &b), body...)
		if !bytes.HasPrefix(payload, whole) {
			t.Fatalf("%d values: % x is not the start of % x", n, whole, payload)
		}
		state, err := readAll(whole, func(got *Block) error {
			if !reflect.DeepEqual(got.Rows, b.Rows) || !slices.Equal(got.Values, b.Values) {
				t.Errorf("%+v, want %+v", got, b)
			}
			return nil
		})
		if err != nil || state != nil {
			t.Errorf("%d values: %v, state %v", n, err, state)
		}
	}
}

// TestAnswerInTwoPieces: an answer may be split before its values and nowhere else.
func TestAnswerInTwoPieces(t *testing.T) {
	head := AppendState(nil, &State{Seq: 7, Applied: []perdure.Clock{1, 2}})
	values := []float32{1, 2, 3}
	whole := AppendFloats(slices.Clone(head), values)
	for cut := range len(whole) + 1 {
		a := Answer{State: State{Applied: make([]perdure.Clock, 5)}}
		err := ParseAnswer(&Frame{Payload: whole[:cut], Body: whole[cut:]}, &a)
		switch {
		case cut == len(head) || cut == len(whole):
			if err != nil || a.Seq != 7 || !slices.Equal(a.Applied, []perdure.Clock{1, 2}) ||
				!slices.Equal(a.Values, values) {
				t.Errorf("split at %d: %+v, %v", cut, a, err)
			}
		case !errors.Is(err, ErrPayload):
			t.Errorf("split at %d: %v, want ErrPayload", cut, err)
		}
	}
}

// TestOtherVersions: frames of newer and older versions are rejected, from a connection and from an update log.
func TestOtherVersions(t *testing.T) {
	for _, version := range []byte{Version - 1, Version + 1} {
		b := Append(nil, &Frame{Header: Header{Kind: KindUpdate}})
		b[4] = version
		var got Frame
		_, fromLog := Decode(b, &got)
		_, fromPeer := ParseHeader(b, &got)
		for err, do := range map[error]string{
			fromLog:  "use the version of Perdure that wrote it",
			fromPeer: "install the same version of Perdure on every machine",
		} {
			if !errors.Is(err, ErrVersion) || !strings.Contains(err.Error(), fmt.Sprint("wire version ", version)) ||
				!strings.HasSuffix(err.Error(), do) {
				t.Errorf("version %d: %v", version, err)
			}
		}
	}
}

// TestRoundedBlocksAreBounded: blocks of rounded values are rejected if they are incomplete, do not fit their rows, or
// announce more values than would fit as float32.
func TestRoundedBlocksAreBounded(t *testing.T) {
	head := func(mode byte, table perdure.TableID, rows int, n uint64) []byte {
		b := AppendRows(nil, &Rows{Table: table, Count: rows})
		b[4] |= mode
		return binary.LittleEndian.AppendUint64(b, n)
	}
	for what, payload := range map[string][]byte{
		"too many":               append(head(mode2Bit, 1, 1<<12, maxPackedValues+1<<12), make([]byte, 1<<20)...),
		"no rows":                append(head(modeBF16, 1, 0, 2), make([]byte, 8)...),
		"fewer values than rows": append(head(modeBF16, 1, 4, 2), make([]byte, 8)...),
		"rows of broken size":    append(head(modeInt8, 1, 2, 3), make([]byte, 16)...),
		"too few bytes":          append(head(modeInt8, 1, 1, 8), make([]byte, 11)...),
		"a NaN":                  append(head(modeBF16, 1, 1, 1), 0xc0, 0x7f, 0, 0, 0, 0, 0, 0),
		"saved state":            append(head(modeBF16, stateBlock, 1, 1), make([]byte, 8)...),
		"a weight":               append(head(modeBF16|modeWeight, 1, 1, 1), make([]byte, 8)...),
		"an unknown mode":        append(head(20, 1, 1, 1), make([]byte, 8)...),
	} {
		b := ReadBlocks(payload)
		for b.Next() {
		}
		if !errors.Is(b.Err(), ErrPayload) {
			t.Errorf("%s: %v", what, b.Err())
		}
	}
}

// TestPackedBlocksAreBounded: a payload that announces more packed values than would fit unpacked is rejected before
// any is unpacked, even if only several blocks together exceed the limit. Incomplete packed values and those without a
// table are also rejected.
func TestPackedBlocksAreBounded(t *testing.T) {
	head := func(table perdure.TableID, n uint64) []byte {
		b := AppendRows(nil, &Rows{Table: table, Count: 1})
		b[4] |= modePacked
		return binary.LittleEndian.AppendUint64(b, n)
	}
	zeros := func(n int) []byte { return append(head(1, uint64(n)), make([]byte, n/8)...) }
	for what, payload := range map[string][]byte{
		"one value too many":     zeros(maxPackedValues + 64),
		"too many in two blocks": append(zeros(maxPackedValues), zeros(64)...),
		"a number beyond all":    append(head(1, math.MaxUint64), 0, 0, 0, 0, 0, 0, 0, 0),
		"no marks":               head(1, 64),
		"marks without values":   append(head(1, 64), 1, 0, 0, 0, 0, 0, 0, 0),
		"no number of values":    head(1, 64)[:rowsBytes],
		"saved state":            append(head(stateBlock, 64), make([]byte, 8)...),
		"a basis":                append(head(basisBlock, 64), make([]byte, 8)...),
	} {
		b := ReadBlocks(payload)
		for b.Next() {
		}
		if !errors.Is(b.Err(), ErrPayload) {
			t.Errorf("%s: %v", what, b.Err())
		}
	}
	b := ReadBlocks(append(zeros(maxPackedValues-64), zeros(64)...))
	n := 0
	for b.Next() {
		n += len(b.Unpack(nil).Values)
	}
	if b.Err() != nil || n != maxPackedValues {
		t.Errorf("%d values, %v", n, b.Err())
	}
	var r Rows
	if _, err := ParseRows(head(1, 64), &r); !errors.Is(err, ErrPayload) {
		t.Errorf("packed rows in a read: %v", err)
	}
}

// TestAppendBlockHeadGrowsOnce checks that the ids of a large block do not make the memory grow step by step.
func TestAppendBlockHeadGrowsOnce(t *testing.T) {
	b := Block{Rows: Rows{Count: 4000, IDs: make([]perdure.RowID, 4000)}}
	if n := testing.AllocsPerRun(10, func() { AppendBlockHead(nil, &b) }); n > 2 {
		t.Errorf("%v allocations, want 1, or 2 with the race detector", n)
	}
}
