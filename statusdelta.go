package perdure

import (
	"fmt"
	"maps"
	"slices"
)

// ServerDelta is what a server tells of its ServerStatus: on each connection all of it
// first, then what has changed since. So a word costs what has changed, not what the
// server holds. It holds whole values, never steps; but whoever has missed one of a
// connection knows less than its sender thinks, and breaks it.
type ServerDelta struct {
	Seq       uint64 // on its connection, from 1: that one tells all
	Revision  uint64
	Draining  bool
	Log       string
	Resources Resources
	Shards    []ShardDelta // that changed, or are new
	Gone      []ShardID    // that it does not hold any more
}

// ShardDelta is a shard that a ServerDelta tells of, as it is then; of its fences, those
// that changed or are new.
type ShardDelta struct {
	ShardStatus
	Unfenced []Slot // of which it has no fence to tell any more
}

// mostFacts is of how many facts a ServerDelta tells, about: what is more than that
// comes with the next.
const mostFacts = 16 << 10

// ServerTeller knows what was told on a connection. The zero one has told nothing.
type ServerTeller struct {
	seq  uint64
	told map[ShardID]*ShardStatus
}

// Delta returns what is to be told of a status, whose shards' fences are in order, and
// notes it as told. What may decide anything is told at once. Counts, which change with
// every clock, are told of a shard with all else, when it comes to the job's end, or if
// counts says so. It keeps the status, which must stay as it is. More says that there is
// more to tell than fits one message.
func (t *ServerTeller) Delta(st *ServerStatus, end Clock, counts bool) (d ServerDelta, more bool) {
	t.seq++
	d = ServerDelta{Seq: t.seq, Revision: st.Revision, Draining: st.Draining, Log: st.Log, Resources: st.Resources}
	if t.told == nil {
		t.told = map[ShardID]*ShardStatus{}
	}
	held, facts := 0, 0
	for i := range st.Shards {
		now := &st.Shards[i]
		before := t.told[now.Shard]
		if before != nil {
			held++
			if !decides(before, now, end) && !(counts && counted(before, now)) {
				continue
			}
		}
		if more = facts > mostFacts; more {
			return d, true
		}
		if before == nil {
			held++
			before = &ShardStatus{}
		}
		t.told[now.Shard] = now
		c := ShardDelta{ShardStatus: *now}
		c.Fences, c.Unfenced = changedFences(before.Fences, now.Fences)
		facts += 1 + len(c.Fences) + len(c.Unfenced) + len(c.Applied) + len(c.Segments)
		d.Shards = append(d.Shards, c)
	}
	if held < len(t.told) {
		d.Gone = t.forget(st)
	}
	return d, false
}

// forget forgets the shards that a status does not tell of any more.
func (t *ServerTeller) forget(st *ServerStatus) (gone []ShardID) {
	is := map[ShardID]struct{}{}
	for i := range st.Shards {
		is[st.Shards[i].Shard] = struct{}{}
	}
	for s := range t.told {
		if _, still := is[s]; !still {
			delete(t.told, s)
			gone = append(gone, s)
		}
	}
	slices.Sort(gone)
	return gone
}

// decides reports whether a shard has something to tell that may decide anything.
func decides(before, now *ShardStatus, end Clock) bool {
	return before.Generation != now.Generation || before.Epoch != now.Epoch || before.Since != now.Since ||
		before.Ready != now.Ready || before.Joined != now.Joined || before.Yielded != now.Yielded ||
		before.Missed != now.Missed || before.Whole != now.Whole ||
		before.Roster != now.Roster || before.Named != now.Named || before.Problem != now.Problem ||
		end > 0 && before.MinClock < end && now.MinClock >= end ||
		!slices.Equal(before.Applied, now.Applied) || !slices.Equal(before.Fences, now.Fences) ||
		!slices.EqualFunc(before.Segments, now.Segments,
			func(a, b Segment) bool { return a.File == b.File && a.CRC == b.CRC })
}

// counted reports whether a shard's counts have changed.
func counted(before, now *ShardStatus) bool {
	return before.MinClock != now.MinClock || before.Seq != now.Seq || before.SaveSeconds != now.SaveSeconds ||
		before.SaveBytes != now.SaveBytes ||
		(before.Unread == nil) != (now.Unread == nil) || now.Unread != nil && *before.Unread != *now.Unread
}

// changedFences returns which fences are other ones than before, or new, and of which
// slots there are none any more. All are in the order of their slots.
func changedFences(before, now []Fence) (changed []Fence, gone []Slot) {
	for len(before) > 0 || len(now) > 0 {
		switch {
		case len(now) == 0 || len(before) > 0 && before[0].Slot < now[0].Slot:
			gone, before = append(gone, before[0].Slot), before[1:]
			continue
		case len(before) > 0 && before[0].Slot == now[0].Slot:
			if before[0] != now[0] {
				changed = append(changed, now[0])
			}
			before = before[1:]
		default:
			changed = append(changed, now[0])
		}
		now = now[1:]
	}
	return changed, gone
}

// ServerWord is what a server has said of itself, put together from its deltas.
type ServerWord struct {
	Revision  uint64
	Draining  bool
	Log       string
	Resources Resources
	Shards    map[ShardID]*ShardWord
	troubled  map[ShardID]struct{} // those with a problem
}

// ShardWord is what a server has said of a shard. Its Fences are in a map.
type ShardWord struct {
	ShardStatus
	fences map[Slot]Fence
}

// Fence returns the shard's word on a slot, if it has one.
func (w *ShardWord) Fence(slot Slot) (f Fence, told bool) {
	f, told = w.fences[slot]
	return f, told
}

// Take takes what a server says next, and calls heard for each shard that it says
// something new of, before that counts: with what was known of the shard, nil if nothing
// was, and with what is told, nil if it is not held any more. The first delta of a
// connection replaces all that was known. What it costs depends on what is told.
func (w *ServerWord) Take(d *ServerDelta, heard func(s ShardID, before *ShardWord, now *ShardDelta)) {
	w.Revision, w.Draining, w.Log, w.Resources = d.Revision, d.Draining, d.Log, d.Resources
	known := w.Shards
	if d.Seq == 1 || known == nil {
		w.Shards, w.troubled = make(map[ShardID]*ShardWord, len(d.Shards)), map[ShardID]struct{}{}
	}
	for i := range d.Shards {
		now := &d.Shards[i]
		before := known[now.Shard]
		heard(now.Shard, before, now)
		sh := w.Shards[now.Shard]
		if sh == nil {
			sh = &ShardWord{}
			w.Shards[now.Shard] = sh
		}
		sh.take(now)
		if delete(w.troubled, now.Shard); now.Problem != "" {
			w.troubled[now.Shard] = struct{}{}
		}
	}
	for _, s := range d.Gone {
		if before := w.Shards[s]; before != nil {
			heard(s, before, nil)
			delete(w.Shards, s)
			delete(w.troubled, s)
		}
	}
	if d.Seq == 1 {
		for s, before := range known {
			if w.Shards[s] == nil {
				heard(s, before, nil)
			}
		}
	}
}

func (w *ShardWord) take(now *ShardDelta) {
	w.ShardStatus = now.ShardStatus
	w.Fences = nil
	if len(now.Fences) > 0 && w.fences == nil {
		w.fences = make(map[Slot]Fence, len(now.Fences))
	}
	for _, f := range now.Fences {
		w.fences[f.Slot] = f
	}
	for _, slot := range now.Unfenced {
		delete(w.fences, slot)
	}
}

// Problem returns what keeps one of the server's shards from going on, "" if nothing
// does.
func (w *ServerWord) Problem() string {
	least := ShardID(-1)
	for s := range w.troubled {
		if least < 0 || s < least {
			least = s
		}
	}
	if least < 0 {
		return ""
	}
	return w.Shards[least].Problem
}

// MinClock returns the least MinClock of the server's shards, -1 if it has none.
func (w *ServerWord) MinClock() Clock {
	least := Clock(-1)
	for _, sh := range w.Shards {
		if least < 0 || sh.MinClock < least {
			least = sh.MinClock
		}
	}
	return least
}

// Unread returns how many records of the update log the rows of its shards lack; nil: that
// is not known of some shard, or there is none.
func (w *ServerWord) Unread() *int64 {
	var n *int64
	for _, sh := range w.Shards {
		if sh.Unread == nil {
			return nil
		}
		if n == nil {
			n = new(int64)
		}
		*n += *sh.Unread
	}
	return n
}

// Status returns all that was said, as a status.
func (w *ServerWord) Status() ServerStatus {
	st := ServerStatus{Revision: w.Revision, Draining: w.Draining, Log: w.Log, Resources: w.Resources}
	for _, s := range slices.Sorted(maps.Keys(w.Shards)) {
		sh := w.Shards[s].ShardStatus
		for _, slot := range slices.Sorted(maps.Keys(w.Shards[s].fences)) {
			sh.Fences = append(sh.Fences, w.Shards[s].fences[slot])
		}
		st.Shards = append(st.Shards, sh)
	}
	return st
}

// WorkerDelta is what a worker tells of its WorkerStatus: on each connection all of it
// first, then of Acked, Outage and Counters only what has changed.
type WorkerDelta struct {
	Seq uint64 // on its connection, from 1
	WorkerStatus
	HasAcked, HasOutage, HasCounters bool // these are told
}

// WorkerTeller knows what was told on a connection. The zero one has told nothing.
type WorkerTeller struct {
	seq  uint64
	told WorkerStatus
}

// Delta returns what is to be told of a status, and notes it as told. Counters, and how
// long an outage has lasted, are told only if counts says so. It keeps the status, which
// must stay as it is.
func (t *WorkerTeller) Delta(st *WorkerStatus, counts bool) WorkerDelta {
	t.seq++
	first := t.seq == 1
	d := WorkerDelta{Seq: t.seq, WorkerStatus: *st}
	d.HasAcked = first || !slices.Equal(t.told.Acked, st.Acked)
	d.HasCounters = first || counts && !t.told.Counters.Equal(&st.Counters)
	d.HasOutage = first || (t.told.Outage == nil) != (st.Outage == nil) ||
		st.Outage != nil && (counts || !slices.Equal(t.told.Outage.Shards, st.Outage.Shards))
	told := *st
	if !d.HasAcked {
		told.Acked = t.told.Acked
	}
	if !d.HasCounters {
		told.Counters = t.told.Counters
	}
	if !d.HasOutage {
		told.Outage = t.told.Outage
	}
	d.WorkerStatus, t.told = told, told
	return d
}

// Take takes what a worker says next of itself.
func (st *WorkerStatus) Take(d *WorkerDelta) {
	before := *st
	*st = d.WorkerStatus
	if !d.HasAcked {
		st.Acked = before.Acked
	}
	if !d.HasOutage {
		st.Outage = before.Outage
	}
	if !d.HasCounters {
		st.Counters = before.Counters
	}
}

// Follows reports, with ErrStatusGap, whether a word of a connection that has the number
// seq is the one after the word that has the number last.
func Follows(last, seq uint64) error {
	if seq != last+1 {
		return fmt.Errorf("%w: word %d comes after word %d", ErrStatusGap, seq, last)
	}
	return nil
}
