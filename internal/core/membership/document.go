package membership

import (
	"bytes"
	"encoding/json"
	"errors"
	"slices"

	"github.com/perdure/perdure/internal/core/protocol"
)

// Document encodes the job record as JSON for the registry. It caches the encoded form of the long lists of a large
// job: shards, slots, server indices, and files with saved rows. Encoding therefore costs what has changed since the
// last call, plus a copy of the rest. It detects changes by comparison with the items that it encoded last, so callers
// need not report them.
//
// The zero Document has an empty cache.
type Document struct {
	shards         list[protocol.ShardView]
	viewSlots      list[protocol.SlotView]
	servers, slots list[Member]
	files, states  list[[]protocol.SavedFile]
	counted        list[savedCount]
	text           []byte
}

// Encode returns the job record exactly as package encoding/json encodes them. The result is valid until the next call.
func (d *Document) Encode(f *JobRecord) ([]byte, error) {
	v, r := &f.View, &f.Running
	if len(v.Shards) == 0 || len(v.Slots) == 0 || len(f.Servers) == 0 || len(f.Slots) == 0 {
		return json.Marshal(f) // with an empty list, its placeholder could be mistaken for another one
	}
	if err := errors.Join(
		d.shards.encode(v.Shards, sameShard, ownShard),
		d.viewSlots.encode(v.Slots, same, itself),
		d.servers.encode(f.Servers, equalMember, cloneMember),
		d.slots.encode(f.Slots, equalMember, cloneMember),
		d.files.encode(r.Files, sameFiles, slices.Clone),
		d.states.encode(r.States, sameFiles, slices.Clone),
		d.counted.encode(r.Counted, same, itself),
	); err != nil {
		return nil, err
	}
	rest := *f // with placeholders instead of these lists
	rest.View.Shards, rest.View.Slots = mark(v.Shards, 0), mark(v.Slots, 0)
	rest.Servers, rest.Slots = mark(f.Servers, 0), mark(f.Slots, 0)
	rest.Running.Files, rest.Running.Counted = mark(r.Files, 0), mark(r.Counted, 0)
	rest.Running.States = mark(r.States, 1) // without an item it would be omitted
	left, err := json.Marshal(&rest)
	if err != nil {
		return nil, err
	}
	d.text = d.text[:0]
	for _, p := range [...]struct {
		key, mark string
		list      []byte
	}{ // in the order of the document
		{`"shards":`, "[]", d.shards.text},
		{`"slots":`, "[]", d.viewSlots.text},
		{`"servers":`, "[]", d.servers.text},
		{`"slots":`, "[]", d.slots.text},
		{`"files":`, "[]", d.files.text},
		{`"states":`, "[null]", d.states.text},
		{`"told":`, "[]", d.counted.text},
	} {
		if len(p.list) == 0 {
			continue // it is empty and needs no placeholder
		}
		at := bytes.Index(left, []byte(p.key+p.mark))
		if at < 0 {
			return json.Marshal(f)
		}
		d.text = append(append(d.text, left[:at+len(p.key)]...), p.list...)
		left = left[at+len(p.key)+len(p.mark):]
	}
	d.text = append(d.text, left...)
	return d.text, nil
}

// mark returns the placeholder for a list: n zero items. An empty list stays as it is.
func mark[T any](l []T, n int) []T {
	if len(l) == 0 {
		return l
	}
	return make([]T, n)
}

// list caches the encoded items of one list of the job record.
type list[T any] struct {
	items []T      // as last encoded
	texts [][]byte // the encoding of each item
	text  []byte   // the encoding of the list; empty: out of date
}

// encode encodes the items that have changed. It keeps a private copy of each.
func (l *list[T]) encode(now []T, same func(a, b *T) bool, own func(T) T) error {
	if len(now) < len(l.items) || len(now) == 0 {
		*l = list[T]{}
	}
	for i := range now {
		if i < len(l.items) && same(&l.items[i], &now[i]) {
			continue
		}
		text, err := json.Marshal(&now[i])
		if err != nil {
			return err
		}
		if i == len(l.items) {
			var none T
			l.items, l.texts = append(l.items, none), append(l.texts, nil)
		}
		l.items[i], l.texts[i], l.text = own(now[i]), text, l.text[:0]
	}
	if len(l.text) == 0 && len(now) > 0 {
		l.join()
	}
	return nil
}

// join assembles the encoding of the list.
func (l *list[T]) join() {
	l.text = append(l.text, '[')
	for i, text := range l.texts {
		if i > 0 {
			l.text = append(l.text, ',')
		}
		l.text = append(l.text, text...)
	}
	l.text = append(l.text, ']')
}

func same[T comparable](a, b *T) bool { return *a == *b }

func itself[T any](item T) T { return item }

func sameFiles(a, b *[]protocol.SavedFile) bool {
	return (*a == nil) == (*b == nil) && slices.Equal(*a, *b)
}

func sameShard(a, b *protocol.ShardView) bool {
	return a.Holder == b.Holder && a.Epoch == b.Epoch && slices.Equal(a.Followers, b.Followers) &&
		(a.Joining == nil) == (b.Joining == nil) && (a.Joining == nil || *a.Joining == *b.Joining) &&
		slices.Equal(a.Base, b.Base) && a.Lost == b.Lost && a.Restored == b.Restored &&
		slices.Equal(a.Saved, b.Saved) && a.Yields == b.Yields
}

func ownShard(s protocol.ShardView) protocol.ShardView {
	s.Followers, s.Base, s.Saved = slices.Clone(s.Followers), slices.Clone(s.Base), slices.Clone(s.Saved)
	if s.Joining != nil {
		s.Joining = new(*s.Joining)
	}
	return s
}

func equalMember(a, b *Member) bool {
	return a.Process == b.Process && a.PID == b.PID && a.Addr == b.Addr && a.Incarnation == b.Incarnation &&
		a.Zone == b.Zone && a.Draining == b.Draining && a.Left == b.Left && a.Suspended == b.Suspended &&
		a.Unmanaged == b.Unmanaged && a.AtCuts == b.AtCuts && a.SavesOwn == b.SavesOwn &&
		a.UnretainedBelow == b.UnretainedBelow && a.FormerBelow == b.FormerBelow &&
		a.LatestStart == b.LatestStart && slices.Equal(a.UnknownShards, b.UnknownShards) &&
		slices.Equal(a.Former, b.Former) && a.AnyIndex == b.AnyIndex && a.Drained == b.Drained
}

func cloneMember(p Member) Member {
	p.UnknownShards, p.Former = slices.Clone(p.UnknownShards), slices.Clone(p.Former)
	return p
}
