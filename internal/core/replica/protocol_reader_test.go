package replica

import (
	"fmt"
	"math/bits"
	"slices"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/consistency"
)

// reader is a slot's process: a worker, reduced to what it reads and sends. In each
// clock it reads the rows of its plan one after the other, and ends the clock.
type reader struct {
	dead    bool
	clock   perdure.Clock
	left    rowMask // still to be read in this clock
	sent    bool    // two-step: this clock's update is sent, and not ticked
	asked   []asked
	request int // the number of its next request
	cache   [mostRows]cached
	links   [mostShards]shardLink
	last    [mostRows]updateSet // what it read last
}

// asked is a request that is not answered.
type asked struct {
	request int
	row     int
	need    perdure.Clock
	subs    int  // the connection's, when it was sent
	ahead   bool // nobody waits for it
}

// cached is a row in a reader's cache.
type cached struct {
	known   bool
	value   updateSet // own updates on top
	label   label
	current bool // it is of the last round's state: that is its label
	pushed  bool
	fetched perdure.Clock
}

// shardLink is what a reader knows of a shard.
type shardLink struct {
	connection int
	open       bool
	counts     perdure.Counts
	subs       int     // how often it was said what is not pushed any more
	now        label   // of the last round that has ended
	joining    rowMask // pushed rows that the next round brings to its state
	unwanted   rowMask // that need not be pushed any more
}

func (r *reader) key(k *keyOf, p *plan) {
	k.num(int(r.clock), int(r.left))
	k.flags(r.dead, r.sent)
	for _, a := range r.asked {
		k.num(a.request, a.row, int(a.need))
		k.flags(a.ahead, a.subs == r.links[p.home(a.row)].subs)
	}
	for row := range p.rows {
		c := &r.cache[row]
		k.flags(c.known, c.current, c.pushed)
		k.num(int(c.value), int(c.fetched), int(r.last[row]))
		k.label(&c.label)
	}
	for i := range p.shards {
		l := &r.links[i]
		k.num(l.connection, int(l.joining), int(l.unwanted))
		k.num(int(l.counts.Staged), int(l.counts.Applied), int(l.counts.Seen))
		k.flags(l.open)
		k.label(&l.now)
	}
}

// of returns what a row's label is.
func (r *reader) of(row, shard int) label {
	if c := &r.cache[row]; !c.current {
		return c.label
	}
	return r.links[shard].now
}

// open begins a connection of a slot to a shard: nothing is pushed on it yet.
func (s *system) open(slot, shard int) {
	r := &s.readers[slot]
	l := &r.links[shard]
	for row := range s.rows {
		if s.home(row) == shard {
			c := &r.cache[row]
			c.label, c.current, c.pushed = r.of(row, shard), false, false
		}
	}
	*l = shardLink{connection: l.connection + 1, counts: l.counts, subs: l.subs + 1}
	s.late[slot][shard] = append(s.late[slot][shard], s.ups[slot][shard]...)
	s.ups[slot][shard], s.downs[slot][shard] = nil, nil
	s.up(slot, shard, frame{kind: openFrame})
}

func (s *system) up(slot, shard int, f frame) {
	f.connection = s.readers[slot].links[shard].connection
	s.ups[slot][shard] = append(s.ups[slot][shard], f)
}

// deed is what a reader does next.
type nextDeed int

const (
	waits nextDeed = iota
	reads
	asks
	ends  // the clock; under two-step clocks it sends its update
	ticks // it
)

func (s *system) next(slot int) nextDeed {
	r := &s.readers[slot]
	switch {
	case r.dead || r.clock >= s.ends[slot] || slices.ContainsFunc(r.asked, func(a asked) bool { return !a.ahead }):
		return waits
	case r.left != 0:
		row := bits.TrailingZeros8(uint8(r.left))
		shard := s.home(row)
		switch {
		case s.mayAnswer(slot, row):
			return reads
		case !r.links[shard].open || r.cache[row].pushed:
			return waits
		case slices.ContainsFunc(r.asked, func(a asked) bool { return a.row == row && a.need >= consistency.Needed(s.model, r.clock) }):
			return waits
		}
		return asks
	case r.sent:
		for shard := range s.plan.shards {
			if r.links[shard].counts.Staged <= r.clock {
				return waits
			}
		}
		return ticks
	case !s.maySend(slot):
		return waits
	}
	return ends
}

func (s *system) mayAnswer(slot, row int) bool {
	r, shard := &s.readers[slot], s.home(row)
	c := &r.cache[row]
	return c.known && consistency.MayReuse(s.model, consistency.Cached{
		MinClock: r.of(row, shard).least, FetchedAt: c.fetched, Current: c.pushed && r.links[shard].open,
	}, r.clock)
}

// maySend asks whether vap lets this clock's update go.
func (s *system) maySend(slot int) bool {
	r := &s.readers[slot]
	if s.off.Bound || s.model.Kind != perdure.VAP {
		return true
	}
	alone := true
	var sums [mostRows]float64
	for shard := range s.plan.shards {
		first := r.links[shard].counts.Seen
		alone = alone && first == r.clock
		for clock := first; clock <= r.clock; clock++ {
			for row := range s.writes[slot][clock].each {
				if s.home(row) == shard {
					sums[row]++ // an update adds 1 to a value
				}
			}
		}
	}
	return consistency.MaySend(s.model, r.clock, slices.Max(sums[:]), alone)
}

// goOn lets a reader do what it does next.
func (s *system) goOn(slot int) error {
	r := &s.readers[slot]
	switch s.next(slot) {
	case reads:
		row := bits.TrailingZeros8(uint8(r.left))
		return s.read(slot, row, r.cache[row].value, r.of(row, s.home(row)))
	case asks:
		s.ask(slot, bits.TrailingZeros8(uint8(r.left)), false)
	case ends:
		if s.model.Kind == perdure.VAP {
			if err := s.checkTransit(slot); err != nil {
				return err
			}
		}
		s.say("slot %d sends clock %d", slot, r.clock)
		for shard := range s.plan.shards {
			if r.links[shard].open {
				s.up(slot, shard, frame{kind: updateFrame, clock: r.clock})
			}
		}
		if r.sent = s.model.TwoStep(); !r.sent {
			return s.endClock(slot)
		}
	case ticks:
		s.say("slot %d ticks clock %d", slot, r.clock)
		for shard := range s.plan.shards {
			if r.links[shard].open {
				s.up(slot, shard, frame{kind: tickFrame, clock: r.clock})
			}
		}
		r.sent = false
		return s.endClock(slot)
	}
	return nil
}

// endClock puts the clock's update into the cache, too, and tells shards what they
// need not push any more.
func (s *system) endClock(slot int) error {
	r := &s.readers[slot]
	for row := range s.writes[slot][r.clock].each {
		if c := &r.cache[row]; c.known {
			if c.value&one(slot, r.clock) != 0 {
				return fmt.Errorf("row %d in slot %d's cache contains its clock %d before it is over", row, slot, r.clock)
			}
			c.value |= one(slot, r.clock)
		}
	}
	if r.clock++; r.clock < s.ends[slot] {
		r.left = s.reads[slot][r.clock]
	}
	for shard := range s.plan.shards {
		s.sendDrops(slot, shard)
	}
	return nil
}

func (s *system) sendDrops(slot, shard int) {
	r := &s.readers[slot]
	l := &r.links[shard]
	if !l.open || l.unwanted == 0 {
		return
	}
	rows := l.unwanted
	for row := range rows.each {
		if r.cache[row].pushed && !s.off.again && !s.off.note {
			rows &^= 1 << row // it was subscribed to again meanwhile
		}
	}
	if l.unwanted = 0; rows != 0 {
		l.subs++ // what was asked for before is not taken for pushed
		s.up(slot, shard, frame{kind: dropFrame, rows: rows})
		s.say("slot %d drops %v", slot, rows.ids())
	}
}

// unwant ends a subscription at the end of the clock.
func (s *system) unwant(slot, row int) {
	r, shard := &s.readers[slot], s.home(row)
	c := &r.cache[row]
	if !s.off.note {
		c.label, c.current, c.pushed = r.of(row, shard), false, false
	}
	r.links[shard].unwanted |= 1 << row
}

// ask sends a request for a row.
func (s *system) ask(slot, row int, ahead bool) {
	r, shard := &s.readers[slot], s.home(row)
	r.request++
	a := asked{slot<<8 | r.request, row, consistency.Needed(s.model, r.clock), r.links[shard].subs, ahead}
	r.asked = append(r.asked, a)
	s.say("slot %d at clock %d asks for row %d", slot, r.clock, row)
	s.up(slot, shard, frame{kind: getFrame, request: a.request, row: row, subscribe: s.model.Pushed(), clock: a.need})
}

// toReader brings a reader the next message of a shard.
func (s *system) toReader(slot, shard int) error {
	way := &s.downs[slot][shard]
	f := (*way)[0]
	*way = slices.Delete(*way, 0, 1)
	s.say("slot %d gets from shard %d: %v", slot, shard, &f)
	r := &s.readers[slot]
	l := &r.links[shard]
	switch f.kind {
	case openFrame:
		l.open, l.counts = true, f.counts
		s.resend(slot, shard)
	case ackFrame:
		l.counts = f.counts
	case getFrame:
		return s.takeAnswer(slot, shard, &f)
	case pushFrame:
		return s.takePush(slot, shard, &f)
	}
	return nil
}

// resend sends what a shard has not got, and asks again for what is wanted of it.
func (s *system) resend(slot, shard int) {
	r := &s.readers[slot]
	l := &r.links[shard]
	end := r.clock
	if r.sent {
		end++
	}
	for clock := l.counts.Ticked; clock < end; clock++ {
		if clock >= l.counts.Staged {
			s.up(slot, shard, frame{kind: updateFrame, clock: clock})
		}
		if s.model.TwoStep() && clock < r.clock {
			s.up(slot, shard, frame{kind: tickFrame, clock: clock})
		}
	}
	for i := range r.asked {
		if a := &r.asked[i]; s.home(a.row) == shard {
			a.subs = l.subs
			s.up(slot, shard, frame{kind: getFrame, request: a.request, row: a.row, subscribe: s.model.Pushed(), clock: a.need})
		}
	}
}

// overlay puts own updates that a value does not contain on top of it.
func (s *system) overlay(slot, row int, value updateSet, l label) (updateSet, error) {
	for clock := l.applied[slot]; clock < s.readers[slot].clock; clock++ {
		if mine := one(slot, clock); s.writes[slot][clock].has(row) {
			if value&mine != 0 {
				return 0, fmt.Errorf("row %d of state %d contains clock %d of slot %d, though it says it does not", row, l.seq, clock, slot)
			}
			value |= mine
		}
	}
	return value, nil
}

func (s *system) takeAnswer(slot, shard int, f *frame) error {
	r := &s.readers[slot]
	at := slices.IndexFunc(r.asked, func(a asked) bool { return a.request == f.request })
	if at < 0 {
		return nil
	}
	a := r.asked[at]
	r.asked = slices.Delete(r.asked, at, at+1)
	if f.label.least < a.need {
		return fmt.Errorf("slot %d is answered at MinClock %d, and needs %d", slot, f.label.least, a.need)
	}
	value, err := s.overlay(slot, f.row, f.values[f.row], f.label)
	if err != nil {
		return err
	}
	l, c := &r.links[shard], &r.cache[f.row]
	again := a.ahead || c.known && r.of(f.row, shard).newer(f.label)
	if !c.known || !r.of(f.row, shard).newer(f.label) {
		*c = cached{known: true, value: value, label: f.label, pushed: c.pushed, fetched: r.clock}
		if c.pushed {
			l.joining |= 1 << f.row
		}
	}
	if s.model.Pushed() && (a.subs == l.subs || s.off.subs) {
		c.pushed = true
		l.joining |= 1 << f.row
	}
	if again {
		return nil // whoever wants it looks again
	}
	return s.read(slot, f.row, value, f.label)
}

func (s *system) takePush(slot, shard int, f *frame) error {
	r := &s.readers[slot]
	l := &r.links[shard]
	for row := range f.rows.each {
		c := &r.cache[row]
		if !c.pushed {
			l.unwanted |= 1 << row
		}
		if !c.known || r.of(row, shard).newer(f.label) {
			continue
		}
		value, err := s.overlay(slot, row, f.values[row], f.label)
		if err != nil {
			return err
		}
		*c = cached{known: true, value: value, label: f.label, pushed: c.pushed, fetched: r.clock}
		if c.pushed {
			l.joining |= 1 << row
		}
	}
	if f.last {
		l.now = f.label
		for row := range l.joining.each {
			c := &r.cache[row]
			switch {
			case !c.pushed:
			case !c.current && c.label.newer(l.now):
				continue // with the next round
			default:
				c.current = true
			}
			l.joining &^= 1 << row
		}
	}
	if s.model.Kind == perdure.VAP && (f.last || s.off.saw) {
		s.up(slot, shard, frame{kind: sawFrame, seq: f.label.seq})
	}
	return nil
}
