package states_test

import (
	"bytes"
	"errors"
	"slices"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/states"
)

func key(slot perdure.Slot, generation perdure.Generation, incarnation perdure.Incarnation, number uint64) states.Key {
	return states.Key{Slot: slot, Generation: generation, Incarnation: incarnation, Number: number}
}

// What travels is a state as it is, or a reference, and neither is taken for the other; the bytes are those of
// the formats' page.
func TestPack(t *testing.T) {
	ref := states.Ref{Key: key(3, 2, 5, 7), Bytes: 99, CRC: 0xdeadbeef}
	b := ref.Pack()
	want := "\xb7\x1e\x9c\x5a\x03\xd8\x66\xf1\x4f\xa2\x8d\x70\xc9\x3b\xe4\x95" + "\x01\x01\x00\x00"
	if string(b[:20]) != want || len(b) != 64 {
		t.Errorf("a reference is %q, of %d bytes", b, len(b))
	}
	if state, got, err := states.Unpack(b); err != nil || state != nil || *got != ref || *states.Of(b) != ref {
		t.Errorf("read %v, %v, %v", state, got, err)
	}
	for _, state := range [][]byte{nil, {}, []byte("a"), []byte(want), b, states.Void(), []byte(want[:15])} {
		packed := states.Pack(state)
		got, ref, err := states.Unpack(packed)
		if err != nil || ref != nil || !bytes.Equal(got, state) || states.Of(packed) != nil || states.IsVoid(packed) {
			t.Errorf("%q comes back as %q, %v, %v", state, got, ref, err)
		}
		if plain := len(state) < 16; plain != bytes.Equal(packed, state) {
			t.Errorf("%q travels as %q", state, packed)
		}
	}
	if v := states.Void(); !states.IsVoid(v) || len(v) != len(b) || states.Of(v) != nil {
		t.Errorf("nothing is %q", v)
	}
}

// Whatever is wrong with what begins with the mark is said.
func TestDamage(t *testing.T) {
	b := states.Ref{Key: key(3, 2, 5, 7), Bytes: 99, CRC: 1}.Pack()
	for i := range b[16:] {
		bad := bytes.Clone(b)
		bad[16+i] ^= 4
		if _, _, err := states.Unpack(bad); !errors.Is(err, states.ErrFraming) {
			t.Errorf("byte %d changed: %v", 16+i, err)
		}
	}
	for n := 16; n < len(b); n++ {
		if _, _, err := states.Unpack(b[:n]); !errors.Is(err, states.ErrFraming) {
			t.Errorf("cut to %d bytes: %v", n, err)
		}
	}
}

func TestName(t *testing.T) {
	k := key(3, 2, 5, 7)
	const name = "state-s00003-g000002-i000005-n000000000007"
	if got, ok := states.ParseName(name); k.Name() != name || !ok || got != k {
		t.Errorf("%s is %v, %t", k.Name(), got, ok)
	}
	for _, other := range []string{"", "state-", name + "0", "state-s3-g2-i5-n7", "g000001-c0000000040.manifest"} {
		if k, ok := states.ParseName(other); ok {
			t.Errorf("%q is %v", other, k)
		}
	}
	for _, later := range []states.Key{key(3, 3, 1, 1), key(3, 2, 6, 1), key(3, 2, 5, 8)} {
		if !later.After(k) || k.After(later) || k.After(k) {
			t.Errorf("%v is not after %v", later, k)
		}
	}
	ref := states.Ref{Key: k, Bytes: 9, CRC: 8}
	saved := [][]byte{nil, []byte("x"), ref.Pack()}
	if files := states.Files(saved); len(files) != 1 || files[0] != ref.File() {
		t.Errorf("files %v", files)
	}
	if names := states.Names(saved); !slices.Equal(names, []string{name}) {
		t.Errorf("names %v", names)
	}
}

// The rule by which a state is garbage, case by case.
func TestGarbage(t *testing.T) {
	name := func(generation perdure.Generation, incarnation perdure.Incarnation, number uint64) string {
		return key(1, generation, incarnation, number).Name()
	}
	old, now, next := name(2, 1, 4), name(2, 1, 5), name(2, 1, 6)
	home := []perdure.Slot{1}
	for _, c := range []struct {
		what string
		told func(h *states.Held)
		want []string
	}{
		{"nobody has said anything", func(*states.Held) {}, nil},
		{"another slot's shard has", func(h *states.Held) { h.Heard([]perdure.Slot{2}, [][]string{nil}) }, nil},
		{"all have the newest", func(h *states.Held) { h.Heard(home, [][]string{{now}, {now}}) }, []string{old}},
		{"one is behind", func(h *states.Held) { h.Heard(home, [][]string{{now}, {old}}) }, nil},
		{"one has none in the store", func(h *states.Held) { h.Heard(home, [][]string{{now}, {}}) }, nil},
		{"no holder", func(h *states.Held) { h.Heard(home, nil) }, nil},
		{"a checkpoint names it", func(h *states.Held) { h.Hold(old); h.Heard(home, [][]string{{now}}) }, nil},
		{
			"of its slot's next process", func(h *states.Held) { h.Heard(home, [][]string{{name(2, 2, 1)}}) },
			[]string{old, now, next},
		},
		{"as the generation begins", func(h *states.Held) { h.Heard(home, [][]string{{name(1, 9, 9)}}) }, nil},
	} {
		h := states.NewHeld(2)
		c.told(h)
		if got := h.Garbage([]string{old, now, next, "perdure.job", "state-x"}); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v is garbage, want %v", c.what, got, c.want)
		}
	}
	h := states.NewHeld(3) // all have rolled back
	h.Heard(home, [][]string{{old}})
	if got := h.Garbage([]string{old, now, next}); !slices.Equal(got, []string{now, next}) {
		t.Errorf("of the abandoned generation %v is garbage", got)
	}
	again := states.NewHeld(3)
	if again.Any() || again.Same(h) {
		t.Error("nothing is known, and that is the same")
	}
	if again.Heard(home, [][]string{{old}}); !again.Same(h) || !again.Any() {
		t.Error("the same is known, and it is not said to be")
	}
}
