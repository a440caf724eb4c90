package membership

import (
	"bytes"
	"encoding/json"
	"errors"
	"slices"

	"github.com/perdure/perdure/internal/core/words"
)

// Document makes the facts' JSON, as the registry has them. It keeps encoded what a large job has many of: shards,
// slots, places, and files that rows are saved in. So a document costs what has changed since the one before it, and
// a copy of the rest. It finds out by itself what has changed, since it knows what it has encoded: nobody has to tell
// it, and so nobody can forget to.
//
// The zero Document has encoded nothing yet.
type Document struct {
	shards         list[words.ShardView]
	spoken         list[words.SlotView]
	servers, slots list[Place]
	files, states  list[[]words.SavedFile]
	told           list[savedCount]
	text           []byte
}

// Encode returns the facts as package encoding/json has them, to the byte. The text is good until the next call.
func (d *Document) Encode(f *Facts) ([]byte, error) {
	v, r := &f.View, &f.Running
	if len(v.Shards) == 0 || len(v.Slots) == 0 || len(f.Servers) == 0 || len(f.Slots) == 0 {
		return json.Marshal(f) // of a mark of one list it could not be told which one it is of
	}
	if err := errors.Join(
		d.shards.encode(v.Shards, sameShard, ownShard),
		d.spoken.encode(v.Slots, same, itself),
		d.servers.encode(f.Servers, samePlace, ownPlace),
		d.slots.encode(f.Slots, samePlace, ownPlace),
		d.files.encode(r.Files, sameFiles, slices.Clone),
		d.states.encode(r.States, sameFiles, slices.Clone),
		d.told.encode(r.Told, same, itself),
	); err != nil {
		return nil, err
	}
	rest := *f // with marks in the place of these lists
	rest.View.Shards, rest.View.Slots = mark(v.Shards, 0), mark(v.Slots, 0)
	rest.Servers, rest.Slots = mark(f.Servers, 0), mark(f.Slots, 0)
	rest.Running.Files, rest.Running.Told = mark(r.Files, 0), mark(r.Told, 0)
	rest.Running.States = mark(r.States, 1) // without an item it would be left out
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
		{`"slots":`, "[]", d.spoken.text},
		{`"servers":`, "[]", d.servers.text},
		{`"slots":`, "[]", d.slots.text},
		{`"files":`, "[]", d.files.text},
		{`"states":`, "[null]", d.states.text},
		{`"told":`, "[]", d.told.text},
	} {
		if len(p.list) == 0 {
			continue // it is empty, and stands in the rest as it is
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

// mark returns what is encoded in the place of a list: one of n zero items. An empty list stays.
func mark[T any](l []T, n int) []T {
	if len(l) == 0 {
		return l
	}
	return make([]T, n)
}

// list is a list of the facts, of which each item is kept encoded.
type list[T any] struct {
	items []T      // as they were encoded last
	texts [][]byte // each of them
	text  []byte   // all of them; empty: they are to be put together anew
}

// encode encodes the items that are others than before. Of each a copy is kept that nobody else changes.
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

// join puts the list together.
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

func sameFiles(a, b *[]words.SavedFile) bool {
	return (*a == nil) == (*b == nil) && slices.Equal(*a, *b)
}

func sameShard(a, b *words.ShardView) bool {
	return a.Holder == b.Holder && a.Epoch == b.Epoch && slices.Equal(a.Followers, b.Followers) &&
		(a.Joining == nil) == (b.Joining == nil) && (a.Joining == nil || *a.Joining == *b.Joining) &&
		slices.Equal(a.Base, b.Base) && a.Lost == b.Lost && a.Restored == b.Restored &&
		slices.Equal(a.Saved, b.Saved) && a.Yields == b.Yields
}

func ownShard(s words.ShardView) words.ShardView {
	s.Followers, s.Base, s.Saved = slices.Clone(s.Followers), slices.Clone(s.Base), slices.Clone(s.Saved)
	if s.Joining != nil {
		joining := *s.Joining
		s.Joining = &joining
	}
	return s
}

func samePlace(a, b *Place) bool {
	return a.Process == b.Process && a.PID == b.PID && a.Addr == b.Addr && a.Incarnation == b.Incarnation &&
		a.Zone == b.Zone && a.Draining == b.Draining && a.Left == b.Left && a.Suspended == b.Suspended &&
		a.Guest == b.Guest && a.AtCuts == b.AtCuts && a.Unkept == b.Unkept && a.Made == b.Made &&
		a.Begun == b.Begun && slices.Equal(a.Short, b.Short) && slices.Equal(a.Former, b.Former) && a.Any == b.Any &&
		a.Drained == b.Drained
}

func ownPlace(p Place) Place {
	p.Short, p.Former = slices.Clone(p.Short), slices.Clone(p.Former)
	return p
}
