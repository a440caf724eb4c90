package consistency

import (
	"slices"
	"strings"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/protocol"
)

// naive is the obviously correct intake: it keeps everything that was received and not rejected. For every query it
// recomputes from all of it the parts of an update and the next updates to apply.
type naive struct {
	mode     perdure.ClockMode
	parts    int // parts per update
	cut, end perdure.Clock
	log      []entry
	applied  []effect
	counts   []perdure.Clock
}

// entry is an event of one slot.
type entry struct {
	kind  entryKind
	part  UpdatePart    // partEntry; tickEntry and the others use its Slot, Clock and Incarnation
	start perdure.Clock // decideEntry
}

type entryKind int

const (
	partEntry entryKind = iota
	tickEntry
	fenceEntry
	decideEntry
)

// effect is one applied update.
type effect struct {
	slot    perdure.Slot
	clock   perdure.Clock
	clocks  perdure.Clock // number of clocks in the update
	content string
}

// version is everything known about one update.
type version struct {
	incarnation perdure.Incarnation
	clocks      perdure.Clock
	parts       []string // "" if missing
	said        bool     // some part was marked as ticked
	ticked      bool
	lost        bool
}

func (v *version) whole() bool {
	return v != nil && !slices.Contains(v.parts, "")
}

// version reads the whole log for the update that starts at a clock, and returns nil if nothing of it counts.
func (m *naive) version(slot perdure.Slot, clock perdure.Clock) *version {
	var v *version
	for _, e := range m.log {
		if e.part.Slot != slot {
			continue
		}
		mine := e.part.Clock == clock
		switch e.kind {
		case partEntry:
			if !mine {
				continue
			}
			if v == nil || !v.whole() && v.incarnation != e.part.Incarnation {
				v = &version{
					incarnation: e.part.Incarnation, clocks: e.part.until() - clock,
					parts: make([]string, m.parts),
				}
			}
			if !v.whole() {
				v.parts[e.part.Index] = string(e.part.Payload)
			}
			v.said = v.said || e.part.Ticked
			v.ticked = v.whole() && (v.said || v.ticked || !m.mode.Ticks())
		case tickEntry:
			if v.whole() && clock+v.clocks-1 <= e.part.Clock {
				v.ticked = true
			}
		case fenceEntry:
			if !v.whole() || !m.mode.Ticks() {
				v = nil
			}
		case decideEntry:
			if clock >= e.start || !m.mode.Ticks() {
				v = nil
				continue
			}
			if v == nil || clock+v.clocks > e.start {
				v = &version{clocks: 1, lost: true}
			}
			v.ticked = true
		}
	}
	return v
}

// fence returns the incarnation below which a slot's processes are rejected.
func (m *naive) fence(slot perdure.Slot) (least perdure.Incarnation) {
	for _, e := range m.log {
		if e.kind == fenceEntry && e.part.Slot == slot {
			least = max(least, e.part.Incarnation)
		}
	}
	return least
}

func (m *naive) inRounds() bool { return m.mode == perdure.ClockTwoStep }

// judge returns the verdict that the intake must give for a part, and keeps the part if it counts.
func (m *naive) judge(p UpdatePart) Outcome {
	switch {
	case p.Incarnation < m.fence(p.Slot):
		return Fenced
	case m.end > 0 && p.Clock >= m.end, p.until() <= m.counts[p.Slot]:
		return Duplicate
	case p.Clock < m.counts[p.Slot]:
		return Torn
	}
	last := p.until() - 1
	if last > p.Clock && (m.inRounds() || m.end > 0 && last >= m.end || m.cut > p.Clock && m.cut <= last) {
		return Torn
	}
	for c := m.counts[p.Slot]; c < p.Clock; {
		before := m.version(p.Slot, c)
		switch within := before != nil && c+before.clocks > p.Clock; {
		case within && before.whole() && p.until() <= c+before.clocks:
			return Duplicate
		case within:
			return Torn
		case !before.whole() || m.inRounds() && !before.ticked:
			return Gap
		}
		c += before.clocks
	}
	v := m.version(p.Slot, p.Clock)
	if v != nil && (v.whole() || v.incarnation == p.Incarnation) && p.until() != p.Clock+v.clocks {
		if v.whole() && p.until() < p.Clock+v.clocks {
			return Duplicate
		}
		return Torn
	}
	m.log = append(m.log, entry{kind: partEntry, part: p})
	switch {
	case v.whole() && (v.ticked || !p.Ticked):
		return Duplicate
	case !v.whole() && v != nil && v.incarnation == p.Incarnation && v.parts[p.Index] != "":
		return Duplicate
	}
	return Kept
}

// judgeTick is judge for a tick.
func (m *naive) judgeTick(slot perdure.Slot, incarnation perdure.Incarnation, clock perdure.Clock) Outcome {
	switch {
	case incarnation < m.fence(slot):
		return Fenced
	case m.end > 0 && clock >= m.end, clock < m.counts[slot]:
		return Duplicate
	}
	var v *version
	for c := m.counts[slot]; c <= clock; c += v.clocks {
		switch v = m.version(slot, c); {
		case !v.whole():
			return Gap
		case c+v.clocks > clock+1:
			return Torn
		}
	}
	if v.ticked {
		return Duplicate
	}
	m.log = append(m.log, entry{kind: tickEntry, part: UpdatePart{Slot: slot, Clock: clock}})
	return Kept
}

// apply applies everything that may be applied: under two-step clocks a clock's updates in slot order once all slots
// have ticked it, otherwise every complete or, with ticks, ticked update.
func (m *naive) apply() {
	for {
		least, next := slices.Min(m.counts), -1
		for slot, c := range m.counts {
			v := m.version(perdure.Slot(slot), c)
			ready := v.whole() && v.ticked && (m.cut <= 0 || c < m.cut) && (m.end <= 0 || c < m.end)
			if m.inRounds() && c == least && !ready {
				return
			}
			if next < 0 && ready && (!m.inRounds() || c == least) {
				next = slot
			}
		}
		if next < 0 {
			return
		}
		v := m.version(perdure.Slot(next), m.counts[next])
		e := effect{
			slot: perdure.Slot(next), clock: m.counts[next], clocks: v.clocks,
			content: strings.Join(v.parts, "+"),
		}
		if v.lost {
			e.content = "lost"
		}
		m.applied = append(m.applied, e)
		m.counts[next] += v.clocks
	}
}

// howFar returns the expected result of Sequencer.Counts.
func (m *naive) howFar(slot perdure.Slot) protocol.Counts {
	n := protocol.Counts{Applied: m.counts[slot], Ticked: m.counts[slot], Staged: m.counts[slot]}
	for v := m.version(slot, n.Staged); v.whole(); v = m.version(slot, n.Staged) {
		n.Staged += v.clocks
		if v.ticked && n.Ticked == n.Staged-v.clocks {
			n.Ticked = n.Staged
		}
	}
	return n
}
