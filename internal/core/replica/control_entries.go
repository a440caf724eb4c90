package replica

import (
	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/protocol"
	"github.com/perdure/perdure/internal/data/wire"
)

// ControlEntry is an entry that the head of a shard derives from the view and appends to the log, so that all replicas
// apply it at the same position.
type ControlEntry struct {
	Kind        wire.Kind
	Slot        perdure.Slot
	Incarnation perdure.Incarnation
	Clock       perdure.Clock
	Payload     []byte
}

// proposals records which facts the head has appended to the log because of the view.
type proposals struct {
	membershipVersion uint64
	named             perdure.Clock
	hold              uint64
	heldTicks         int  // for how long the current hold has lasted
	holdExpired       bool // it has lasted too long
	tables            int
	end               perdure.Clock
	fenced, decided   []perdure.Incarnation // by slot
	// The base of a lost shard, which it starts with. base: appended to the log. based: applied, so all members have
	// it.
	base, based bool
	lastView    *protocol.View // the last view that serving has processed
}

// beforeServing proposes the facts that all members must have before the head serves: the membership and the named cut.
// It proposes one at a time, and reports whether it did.
func (p *proposals) beforeServing(v *protocol.View, head bool, st *State, fx *Effects) bool {
	if !head {
		return false
	}
	if v.Roster > max(p.membershipVersion, st.intake.MembershipVersion()) {
		p.membershipVersion = v.Roster
		fx.propose(ControlEntry{
			Kind: wire.KindMembership, Slot: perdure.NoSlot, Clock: perdure.Clock(v.Roster),
			Payload: wire.JSON(v.Intervals()),
		})
		return true
	}
	if v.Named > max(p.named, st.cuts.schedule.Named) && !st.cuts.bySlot {
		p.named = v.Named
		fx.propose(ControlEntry{Kind: wire.KindCut, Slot: perdure.NoSlot, Clock: v.Named})
		return true
	}
	return false
}

// mayServe reports whether nothing prevents serving. If the shard was lost, all its members must first have the base
// that it starts with; the head proposes it.
func (p *proposals) mayServe(mine *protocol.ShardView, head bool, fx *Effects) bool {
	if !head || !mine.Lost || p.based {
		return true
	}
	if mine.Base != nil && !p.base {
		p.base = true
		state := wire.State{Applied: mine.Base}
		fx.propose(ControlEntry{Kind: wire.KindBase, Slot: perdure.NoSlot, Payload: wire.AppendState(nil, &state)})
	}
	// Otherwise the live slots have not all reported their acknowledged clocks, or a member lacks the base. Serving
	// must wait: once the head is ready, the view no longer carries the base for a successor.
	return false
}

// begin records what the log already has, when the head starts to serve.
func (p *proposals) begin(st *State) {
	p.tables, p.end, p.hold = len(st.rows.parts), st.cuts.schedule.End, st.intake.Hold().Number()
	p.named = st.cuts.schedule.Named
	for slot := range st.Applied() {
		p.fenced = append(p.fenced, st.intake.Incarnation(perdure.Slot(slot)))
		p.decided = append(p.decided, 0)
	}
}

// serving proposes the facts that the view requires while the head serves.
func (p *proposals) serving(v *protocol.View, fx *Effects) {
	if p.holdExpired {
		p.holdExpired = false
		fx.propose(ControlEntry{Kind: wire.KindHold, Slot: perdure.NoSlot})
	}
	if v == p.lastView {
		return
	}
	p.lastView = v
	for ; p.tables < len(v.Tables); p.tables++ {
		spec := wire.JSON(v.Tables[p.tables])
		fx.propose(ControlEntry{
			Kind: wire.KindAddTable, Slot: perdure.NoSlot, Clock: perdure.Clock(p.tables), Payload: spec,
		})
	}
	if v.End != p.end && !v.Tentative {
		p.end = v.End
		fx.propose(ControlEntry{Kind: wire.KindEnd, Slot: perdure.NoSlot, Clock: v.End})
	}
	p.cutBySlot(v, fx)
	for i, sl := range v.Slots {
		if i == len(p.fenced) {
			p.fenced, p.decided = append(p.fenced, 0), append(p.decided, 0)
		}
		if sl.Incarnation > p.fenced[i] {
			p.fenced[i] = sl.Incarnation
			fx.propose(ControlEntry{Kind: wire.KindFence, Slot: perdure.Slot(i), Incarnation: sl.Incarnation})
		}
		if sl.Decided && sl.Incarnation > p.decided[i] {
			p.decided[i] = sl.Incarnation
			fx.propose(ControlEntry{
				Kind: wire.KindDecide, Slot: perdure.Slot(i), Incarnation: sl.Incarnation, Clock: sl.Start,
			})
		}
	}
}

// maxHoldTicks is the number of ticks after which a head ends a hold by itself, because the coordinator may be away.
const maxHoldTicks = 50

// tick advances the time. hold is the number of the current hold.
func (p *proposals) tick(hold uint64) {
	if p.heldTicks++; hold == 0 {
		p.heldTicks = 0
	}
	p.holdExpired = p.holdExpired || p.heldTicks == maxHoldTicks
}

// cutBySlot proposes the beginning and the end of a hold: see docs/design/asynchronous.md. A cut ends the hold.
func (p *proposals) cutBySlot(v *protocol.View, fx *Effects) {
	switch {
	case v.Named > p.named && v.NamedClocks != nil:
		p.named, p.hold = v.Named, v.Hold
		fx.propose(ControlEntry{
			Kind: wire.KindCut, Slot: perdure.NoSlot, Clock: v.Named,
			Payload: wire.JSON(v.NamedClocks),
		})
	case v.Hold != p.hold:
		p.hold = v.Hold
		fx.propose(ControlEntry{Kind: wire.KindHold, Slot: perdure.NoSlot, Clock: perdure.Clock(v.Hold)})
	}
}

func (fx *Effects) propose(f ControlEntry) { fx.ControlEntries = append(fx.ControlEntries, f) }
