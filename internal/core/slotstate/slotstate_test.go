package slotstate_test

import (
	"bytes"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/slotstate"
)

func key(
	slot perdure.Slot,
	generation perdure.Generation,
	incarnation perdure.Incarnation,
	number uint64,
) slotstate.Key {
	return slotstate.Key{Slot: slot, Generation: generation, Incarnation: incarnation, Number: number}
}

// TestPack checks that a state and a reference are encoded as the page on file formats says, and are not confused with
// each other.
func TestPack(t *testing.T) {
	ref := slotstate.Ref{Key: key(3, 2, 5, 7), Bytes: 99, CRC: 0xdeadbeef}
	b := ref.Pack(11)
	const mark = "\xb7\x1e\x9c\x5a\x03\xd8\x66\xf1\x4f\xa2\x8d\x70\xc9\x3b\xe4\x95"
	want := mark + "\x02\x01\x00\x00"
	if string(b[:20]) != want || string(b[24:32]) != "\x0b\x00\x00\x00\x00\x00\x00\x00" || len(b) != 80 {
		t.Errorf("a reference is %q, of %d bytes", b, len(b))
	}
	if got, err := slotstate.Unpack(b); err != nil || got.State != nil || *got.Ref != ref || got.Clock != 11 ||
		*slotstate.DecodeRef(b) != ref {
		t.Errorf("read %+v, %v", got, err)
	}
	for _, state := range [][]byte{{}, []byte("a"), []byte(want), b, slotstate.EmptyRef(), []byte(want[:15])} {
		packed := slotstate.Pack(state, 12)
		got, err := slotstate.Unpack(packed)
		if err != nil || got.Ref != nil || got.State == nil || !bytes.Equal(got.State, state) || got.Clock != 12 ||
			slotstate.DecodeRef(packed) != nil || slotstate.IsEmptyRef(packed) ||
			len(packed) != 40+len(state) {
			t.Errorf("%q is decoded as %+v, %v", state, got, err)
		}
	}
	if v := slotstate.EmptyRef(); !slotstate.IsEmptyRef(v) || len(v) != len(b) || slotstate.DecodeRef(v) != nil {
		t.Errorf("an empty reference is %q", v)
	}
	n := slotstate.Note(13)
	if got, err := slotstate.Unpack(n); err != nil || got.State != nil || got.Ref != nil || got.Clock != 13 ||
		slotstate.IsEmptyRef(n) {
		t.Errorf("a note is %q: %+v, %v", n, got, err)
	}
}

// TestUnpackRefuses checks that other versions and invalid bytes are rejected, as are a flipped bit and a missing end.
func TestUnpackRefuses(t *testing.T) {
	good := slotstate.Pack([]byte("state"), 12)
	refused := func(b []byte, want string) {
		t.Helper()
		if s, err := slotstate.Unpack(
			b,
		); !errors.Is(err, slotstate.ErrFraming) ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%q is read as %+v, %v", b, s, err)
		}
	}
	for i := range good {
		bad := bytes.Clone(good)
		bad[i] ^= 1
		refused(bad, "saved state: ")
		refused(good[:i], "saved state: ")
	}
	refused([]byte("state"), "magic number")
	for _, version := range []byte{1, 3} {
		other := bytes.Clone(good)
		other[16] = version
		refused(other, fmt.Sprintf("(format %d, this one reads format 2); use the version that saved it", version))
	}
}

// TestOlder checks, case by case, whether a slot's state is the newest that was acknowledged.
func TestOlder(t *testing.T) {
	at := func(clock, gap perdure.Clock) []byte {
		return slotstate.MarkGap(slotstate.Pack([]byte("s"), clock), gap)
	}
	note := func(clock, gap perdure.Clock) []byte { return slotstate.MarkGap(slotstate.Note(clock), gap) }
	for _, c := range []struct {
		what   string
		home   []byte
		others [][]byte
		older  perdure.Clock
	}{
		{"nothing was ever saved", nil, nil, 0},
		{"nothing is lost", slotstate.Pack([]byte("s"), 5), [][]byte{slotstate.Note(9)}, 0},
		{"a save is lost", at(5, 9), [][]byte{slotstate.Note(7), note(6, 8)}, 2},
		{"all saves are lost", slotstate.MarkGap(nil, 9), [][]byte{slotstate.Note(7)}, 8},
		{"it was saved again since", at(7, 7), nil, 0},
		{"rarely saved, and nothing is lost", at(2, 9), [][]byte{slotstate.Note(2)}, 0},
		{"never saved, and nothing is lost", slotstate.MarkGap(nil, 9), [][]byte{nil}, 0},
		{"the note was overwritten", at(5, 9), [][]byte{slotstate.Note(10)}, 3},
		{"lost saves are redone", at(5, 12), [][]byte{note(5, 12)}, 4},
		{"all shards have gaps", at(5, 9), [][]byte{note(5, 8)}, 3},
		{"there is no other shard", at(5, 9), nil, 3},
	} {
		home, err := slotstate.Unpack(c.home)
		if older := slotstate.MaxAge(home, c.others, 10); err != nil || older != c.older {
			t.Errorf("%s: %+v (%v), older by %d, want %d", c.what, home, err, older, c.older)
		}
	}
}

// TestLose checks that a state with a gap is otherwise unchanged.
func TestLose(t *testing.T) {
	ref := slotstate.Ref{Key: key(3, 2, 5, 7), Bytes: 99, CRC: 1}
	for _, packed := range [][]byte{nil, slotstate.Pack([]byte("s"), 4), ref.Pack(4), slotstate.Note(4)} {
		before := bytes.Clone(packed)
		was, err := slotstate.Unpack(packed)
		got, err2 := slotstate.Unpack(slotstate.MarkGap(packed, 9))
		again, err3 := slotstate.Unpack(slotstate.MarkGap(slotstate.MarkGap(packed, 9), 12))
		if err := errors.Join(err, err2, err3); err != nil || !bytes.Equal(packed, before) {
			t.Fatal(err)
		}
		was.Gap = 9
		if !reflect.DeepEqual(got, was) || again.Gap != 12 {
			t.Errorf("%q: %+v, want %+v; then %+v", packed, got, was, again)
		}
	}
	if bad := slotstate.EmptyRef()[:50]; !bytes.Equal(slotstate.MarkGap(bad, 9), bad) {
		t.Error("invalid bytes were changed")
	}
}

// TestNext checks that an update's state replaces the current one. An empty reference marks a missing save until the
// next state arrives.
func TestNext(t *testing.T) {
	was := slotstate.Pack([]byte("was"), 3)
	if got := slotstate.ApplyUpdate(was, nil, 6); string(got) != string(was) {
		t.Errorf("an update without a state yields %q", got)
	}
	if got := slotstate.ApplyUpdate(was, slotstate.Note(5), 6); string(got) != string(slotstate.Note(5)) {
		t.Errorf("a note yields %q", got)
	}
	got := slotstate.ApplyUpdate(was, slotstate.EmptyRef(), 6)
	if s, err := slotstate.Unpack(got); err != nil || string(s.State) != "was" || s.Clock != 3 || s.Gap != 6 {
		t.Errorf("%+v, %v", s, err)
	}
	if string(slotstate.ApplyUpdate(got, was, 7)) != string(was) {
		t.Error("the next state has the gap")
	}
}

// TestSupersede checks that states older than one of a former checkpoint are garbage although no holder reports an
// object, and that a report, a needed state and an unknown slot take precedence.
func TestSupersede(t *testing.T) {
	name := func(slot perdure.Slot, number uint64) string { return key(slot, 1, 1, number).Name() }
	h := slotstate.NewLiveSet(1)
	h.Retain(name(0, 2))
	h.AddReports([]perdure.Slot{0, 1}, [][]string{{name(1, 3)}})
	h.Supersede(name(0, 4), name(1, 9), name(2, 9))
	all := []string{name(0, 1), name(0, 2), name(0, 4), name(0, 5), name(1, 2), name(1, 4), name(2, 1)}
	if got, want := h.Garbage(all), []string{name(0, 1), name(1, 2)}; !reflect.DeepEqual(got, want) {
		t.Errorf("garbage is %q, want %q", got, want)
	}
}

// TestDraftsStay checks that drafts are never garbage, unlike other states of earlier generations.
func TestDraftsStay(t *testing.T) {
	h := slotstate.NewLiveSet(2)
	now := slotstate.Key{Slot: 3, Generation: 2, Incarnation: 1, Number: 4}
	h.AddReports([]perdure.Slot{3}, [][]string{{now.Name()}})
	old := slotstate.Key{Slot: 3, Generation: 1, Incarnation: 1, Number: 1}
	if got := h.Garbage([]string{slotstate.Draft(3).Name(), old.Name()}); !slices.Equal(got, []string{old.Name()}) {
		t.Errorf("garbage: %v", got)
	}
	if k, ok := slotstate.ParseName(slotstate.Draft(3).Name()); !ok || !k.IsDraft() || old.IsDraft() {
		t.Errorf("%+v, %t", k, ok)
	}
}
