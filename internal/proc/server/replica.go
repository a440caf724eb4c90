package server

import (
	"fmt"
	"slices"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/chain"
	"github.com/perdure/perdure/internal/core/consistency"
	"github.com/perdure/perdure/internal/data/wire"
)

// entry is an entry of a shard's log: a frame as a worker sent it, or as the head
// made it of the view. Its epoch and request are put in when it is sent on.
type entry struct {
	f    wire.Frame
	from *conn // at the head: who is told if something before it is missing
}

func entryBytes(e entry) int { return wire.HeaderBytes + e.f.PayloadBytes() }

// logCost is what a worker's entry counts while it is in the log and not in the intake.
func logCost(f *wire.Frame) int64 { return consistency.PartCost + int64(len(f.Body)) }

// entryWindow is how many bytes of entries a server sends ahead of what a successor
// has acknowledged, over all shards.
const entryWindow = 48 << 20

func window(job *perdure.JobSpec) int {
	return min(max(entryWindow/job.Shards, wire.PartBytes), 16<<20)
}

// place is a server's part in a shard's chain, as a view says.
type place struct {
	config     chain.Config
	since      uint64
	succ, join *peer          // nil: nobody
	next       *peer          // who joins and may be the successor soon: connected to now, since nobody waits for it yet
	pred       perdure.Holder // whom it follows, unless it is the head
}

// read reports whether rows of vap tables are read here: of no other replica is it
// known, then, what slots can see.
func (at *place) read() bool {
	if at.config.Eager {
		return at.config.Head
	}
	return at.config.Tail
}

// proposals are what the head has appended to the log because the view says so.
type proposals struct {
	roster          uint64
	named           perdure.Clock
	tables          int
	end             perdure.Clock
	fenced, decided []perdure.Incarnation // by slot
	base, based     bool                  // what a lost shard begins with: appended; applied, so that all members have it
}

// opening is an Open that is to be answered once all is applied that was received
// before it: who comes from another replica must not find less here.
type opening struct {
	c      *conn
	writes bool
	pos    uint64
}

// renew begins another epoch of a replica that goes on. Those who read open it anew.
// It needs sh.mu.
func (sh *shard) renew(n shardName) {
	sh.name, sh.ready, sh.proposed = n, false, proposals{}
	sh.opening = nil
	sh.stopWaiting(func(*waitingGet) bool { return true })
	clear(sh.acks)
	clear(sh.prompt)
	clear(sh.spoke) // who is new may have rows cached of lives that this server did not hear of
	sh.out = sh.newPushes()
	if sh.renewed = true; sh.intake != nil {
		sh.makeSubs(true)
	}
	sh.pred, sh.untold, sh.mending, sh.arrears = nil, untold{}, mending{}, arrears{}
	sh.incoming = nil
}

// follow brings the shard to what the view says of it.
func (sh *shard) follow(v *perdure.View, at place) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	sh.view, sh.place = v, at
	if n := (shardName{v.Generation, at.config.Epoch}); n != sh.name {
		sh.renew(n)
	}
	sh.mending.restored = v.Shards[sh.id].Restored
	if sh.log == nil {
		return // it is still being restored
	}
	if sh.stream != nil {
		at.config = alone(at.config.Epoch)
	}
	sh.log.Configure(at.config)
	sh.followSlots()
	sh.segments = slices.DeleteFunc(sh.segments, func(g perdure.Segment) bool { return g.Cut <= v.Durable })
	sh.carryOut()
	if sh.ready && sh.out.seen != nil {
		sh.acknowledge() // nobody waits for what a slot sees that has left
	}
	sh.yield()
	sh.mendNow() // who has left is not waited for
}

// followSlots takes over who speaks for which slot. It needs sh.mu.
func (sh *shard) followSlots() {
	for i, sl := range sh.view.Slots[:min(len(sh.view.Slots), len(sh.spoke))] {
		slot := perdure.Slot(i)
		was := sh.spoke[i]
		if sh.out.seen != nil && was > 0 && was < sl.Incarnation {
			sh.out.seen.Opened(slot) // nobody reads what its former process had cached
		}
		if was < sl.Incarnation {
			delete(sh.arrears, slot) // what its former process had queued does not come
		}
		sh.spoke[i] = max(sh.spoke[i], sl.Incarnation)
		if c := sh.acks[i]; c != nil && c.incarnation < sl.Incarnation {
			sh.acks[i] = nil
			sh.stopPushing(slot)
		}
		if sh.out.seen != nil {
			sh.out.seen.SetActive(slot, sh.speaks(slot))
		}
	}
}

// carryOut does what the chain wants done, until it wants nothing more. It needs
// sh.mu.
func (sh *shard) carryOut() {
	applied, large := false, false
	for {
		r := sh.log.Ready()
		for i := range r.Apply {
			sh.untold.note(r.Apply[i].Entry, sh.schedule.End)
			large = sh.take(&r.Apply[i]) || large
		}
		for i := range r.Messages {
			sh.pass(&r.Messages[i])
		}
		for to, p := range []*peer{chain.Successor: sh.place.succ, chain.Joiner: sh.place.join} {
			if r.Snapshot[to] && p != nil {
				sh.copyTo(p)
			}
		}
		applied = applied || len(r.Apply) > 0
		if before := len(r.Apply) + len(r.Messages); !sh.propose() && before == 0 {
			break
		}
	}
	if sh.intake == nil {
		return
	}
	if large && sh.s.parallel && !sh.due && sh.ready && len(sh.opening) == 0 {
		// Another core applies it, while this connection's next frames are received.
		sh.due = true
		sh.s.wg.Go(sh.catchUp)
		return
	}
	if applied || !sh.pumped {
		sh.pumped = true
		sh.pump()
	}
	sh.answerOpens()
}

// take takes an entry that is to be applied, in its turn, and reports whether it
// completes a large update. It needs sh.mu.
func (sh *shard) take(g *chain.Given[entry]) (large bool) {
	f := &g.Entry.f
	if int(f.Slot) >= len(sh.intake.Applied()) {
		sh.s.fail(fmt.Errorf("server: shard %d: %w: an entry of kind %d is of slot %d of %d", sh.id, wire.ErrPayload, f.Kind, f.Slot, len(sh.intake.Applied())))
		return false
	}
	switch f.Kind {
	case wire.KindUpdate:
		sh.keepOrder(f.Slot, f.Clock)
		body := sh.owned(g)
		verdict := sh.intake.Offer(consistency.Part{
			Slot: f.Slot, Clock: f.Clock, Clocks: int(f.Clocks), Incarnation: f.Incarnation,
			Index: int(f.Part), Of: int(f.Parts), Payload: body,
			Ticked: f.Flags&wire.FlagTicked != 0, Repeats: f.Flags&wire.FlagRepeats != 0,
		})
		if verdict != consistency.Kept {
			sh.s.buffers.keep(body)
		}
		if f.Flags&wire.FlagPrompt != 0 {
			sh.prompt[f.Slot] = max(sh.prompt[f.Slot], f.Until())
		}
		sh.logs(f, -1)
		return sh.took(g, verdict) && sh.heavy(f.Slot)
	case wire.KindTick:
		sh.logs(f, -1)
		sh.took(g, sh.intake.Tick(f.Slot, f.Incarnation, f.Clock))
		return false
	}
	sh.applyAll() // so that every replica has applied the same when it hears of the fact
	sh.takeFact(f)
	sh.applyAll()
	sh.s.notify() // somebody waits for it
	return false
}

// keepOrder applies what may be applied before a slot's next update is taken. Where
// clocks are not ticked, what can be applied at the same time is applied in the order
// of slots: replicas take entries in batches of their own, and only the order of the
// log is the same on all. The same goes for what a cut holds back, where no entry of the
// log tells when the shard goes on. It needs sh.mu.
func (sh *shard) keepOrder(slot perdure.Slot, clock perdure.Clock) {
	held := sh.traits.Behind() && sh.intake.Holds(clock)
	if (slot != sh.taken || held) && !sh.intake.TwoStep() {
		sh.applyAll()
	}
	sh.taken = slot
}

// took follows up on what the intake made of an entry, and reports whether it
// changed anything. It needs sh.mu.
func (sh *shard) took(g *chain.Given[entry], verdict consistency.Verdict) bool {
	switch verdict {
	case consistency.Gap:
		if from := g.Entry.from; from != nil {
			sh.send(from, sh.frame(wire.KindMoved)) // it opens the shard anew and resends from what it is told
		}
		return false
	case consistency.Fenced:
		return false // its connection is being closed
	case consistency.Torn:
		sh.refuseTorn(g)
		return false
	}
	if f := &g.Entry.f; f.Kind == wire.KindUpdate {
		sh.dirty[f.Slot] = true
		if last := f.Parts > 0 && f.Part == f.Parts-1; last && sh.intake.TwoStep() {
			sh.staged[f.Slot] = true
		}
	}
	return true
}

// owned returns an update's payload as memory of the shard's alone: a copy where the
// log, or a connection, still has it. It needs sh.mu.
func (sh *shard) owned(g *chain.Given[entry]) []byte {
	body := g.Entry.f.Body
	if !g.Kept || body == nil {
		return body
	}
	alone := sh.s.buffers.payload(len(body))
	copy(alone, body)
	return alone
}

// takeFact takes an entry that the head made of the view. It needs sh.mu.
func (sh *shard) takeFact(f *wire.Frame) {
	switch f.Kind {
	case wire.KindFence:
		sh.intake.Fence(f.Slot, f.Incarnation)
	case wire.KindDecide:
		sh.intake.Decide(f.Slot, f.Incarnation, f.Clock)
	case wire.KindEnd:
		sh.setEnd(f.Clock)
	case wire.KindAddTable:
		var spec perdure.TableSpec
		if !sh.parsed(f, &spec) {
			return
		}
		if err := spec.Validate(sh.job.Shards); err != nil {
			sh.s.fail(fmt.Errorf("server: shard %d: %w", sh.id, err))
			return
		}
		if f.Clock >= perdure.Clock(len(sh.parts)) { // else somebody has said so before
			sh.addTable(spec)
		}
	case wire.KindBase:
		var a wire.Answer
		err := wire.ParseAnswer(f, &a)
		if n := len(sh.intake.Applied()); err == nil && len(a.Applied) > n {
			err = fmt.Errorf("%w: a base of %d slots in a job of %d", wire.ErrPayload, len(a.Applied), n)
		}
		if err != nil {
			sh.s.fail(fmt.Errorf("server: shard %d: %w", sh.id, err))
			return
		}
		sh.raise(func() { sh.intake.Raise(a.Applied) })
		sh.proposed.based = sh.proposed.base
	case wire.KindRoster:
		var spans []perdure.Span
		if sh.parsed(f, &spans) {
			sh.takeRoster(uint64(f.Clock), spans)
		}
	case wire.KindCut:
		sh.setNamed(f.Clock)
	case wire.KindPassCut:
		var seg perdure.Segment
		if sh.parsed(f, &seg) {
			sh.passCut(seg)
		}
	}
}

// raise lets the applied vector be raised: by a base, what the rows lack of which is
// lost, or by the spans of slots that begin later. It needs sh.mu.
func (sh *shard) raise(raise func()) {
	before := slices.Clone(sh.intake.Applied())
	raise()
	for slot, n := range sh.intake.Applied() {
		if slot < len(before) && n > before[slot] && sh.out.seen != nil {
			sh.out.seen.Applied(perdure.Slot(slot), n-1, sh.seq) // nobody can see less of it
		}
	}
}

func (sh *shard) parsed(f *wire.Frame, v any) bool {
	if err := wire.ParseControl(f, v); err != nil {
		sh.s.fail(fmt.Errorf("server: shard %d: %w", sh.id, err))
		return false
	}
	return true
}

// addTable needs sh.mu.
func (sh *shard) addTable(spec perdure.TableSpec) {
	sh.parts = append(sh.parts, newPart(&sh.job, spec, perdure.TableID(len(sh.parts)), sh.id))
	sh.agree()
	sh.makeSubs(sh.fromBefore())
	sh.followSlots() // nobody waits for slots that nobody speaks for
}

// agree brings the shard to what its tables, all together, ask for. It needs sh.mu.
func (sh *shard) agree() {
	var specs []perdure.TableSpec
	for _, p := range sh.parts {
		specs = append(specs, p.Spec)
	}
	sh.intake.SetTwoStep(sh.job.TwoStep(specs))
	sh.tailReads = sh.job.TailReads(specs)
	sh.scales = sh.job.Scales(specs)
}

// fromBefore reports whether slots may have rows cached of a former life of the
// shard in this generation. One that is made of its log never knows that they have not.
func (sh *shard) fromBefore() bool {
	mine := &sh.view.Shards[sh.id]
	return sh.renewed || mine.Lost || mine.Restored || sh.stream != nil
}

// propose appends what the view says, if this is the head, and reports whether the
// chain has something to do because of that. It needs sh.mu.
func (sh *shard) propose() (news bool) {
	if !sh.log.Serving() || sh.intake == nil || sh.stream != nil && !sh.lives() {
		return false
	}
	mine, p := &sh.view.Shards[sh.id], &sh.proposed
	head := sh.place.config.Head
	if roster := sh.view.Roster; head && roster > max(p.roster, sh.intake.Roster()) {
		p.roster = roster
		sh.appendFact(wire.KindRoster, perdure.NoSlot, 0, perdure.Clock(roster), wire.JSON(sh.view.Spans()))
		return true
	}
	if named := sh.view.Named; head && named > max(p.named, sh.schedule.Named) {
		p.named = named
		sh.appendFact(wire.KindCut, perdure.NoSlot, 0, named, nil)
		return true
	}
	if !sh.ready {
		if head && mine.Lost && !p.based {
			if mine.Base == nil || p.base {
				// The live slots have not told yet what they were acknowledged, or a member does
				// not have it yet: once the head is ready, the view no longer tells the next one.
				return false
			}
			p.base = true
			state := wire.State{Applied: mine.Base}
			sh.appendFact(wire.KindBase, perdure.NoSlot, 0, 0, wire.AppendState(nil, &state))
			return true
		}
		sh.begin()
	}
	if !head {
		return false
	}
	for ; p.tables < len(sh.view.Tables); p.tables++ {
		sh.appendFact(wire.KindAddTable, perdure.NoSlot, 0, perdure.Clock(p.tables), wire.JSON(sh.view.Tables[p.tables]))
		news = true
	}
	if end := sh.view.End; end != p.end {
		p.end = end
		sh.appendFact(wire.KindEnd, perdure.NoSlot, 0, end, nil)
		news = true
	}
	for i, sl := range sh.view.Slots {
		if i == len(p.fenced) {
			p.fenced, p.decided = append(p.fenced, 0), append(p.decided, 0)
		}
		if sl.Incarnation > p.fenced[i] {
			p.fenced[i] = sl.Incarnation
			sh.appendFact(wire.KindFence, perdure.Slot(i), sl.Incarnation, 0, nil)
			news = true
		}
		if sl.Decided && sl.Incarnation > p.decided[i] {
			p.decided[i] = sl.Incarnation
			sh.appendFact(wire.KindDecide, perdure.Slot(i), sl.Incarnation, sl.Start, nil)
			news = true
		}
	}
	return news
}

// begin serves those who open the shard, from now on. It needs sh.mu.
func (sh *shard) begin() {
	sh.ready = true
	sh.followSlots()
	p := &sh.proposed
	p.tables, p.end = len(sh.parts), sh.schedule.End
	for slot := range sh.intake.Applied() {
		p.fenced = append(p.fenced, sh.intake.Incarnation(perdure.Slot(slot)))
		p.decided = append(p.decided, 0)
	}
	sh.pumped = false
	sh.s.notify()
}

// appendFact needs sh.mu.
func (sh *shard) appendFact(kind wire.Kind, slot perdure.Slot, inc perdure.Incarnation, clock perdure.Clock, payload []byte) {
	f := wire.Frame{
		Header:  wire.Header{Kind: kind, Generation: sh.name.generation, Shard: sh.id, Slot: slot, Incarnation: inc, Clock: clock},
		Payload: payload,
	}
	if sh.stream != nil {
		sh.enqueue(f)
		return
	}
	sh.log.Append(entry{f: f})
}

// pass sends what the chain wants told. It needs sh.mu.
func (sh *shard) pass(m *chain.Outgoing[entry]) {
	f := sh.frame(wire.KindFollow)
	f.Clock = perdure.Clock(m.Joiner)
	switch m.Kind {
	case chain.Have:
		f.Kind = wire.KindHave
		if m.None {
			f.Flags = wire.FlagNone
		}
	case chain.Committed:
		if sh.holdsBack(m) {
			return
		}
		f.Kind = wire.KindCommitted
	case chain.Level:
		f.Kind = wire.KindLevel
	case chain.Entry:
		f = m.Entry.f
		f.Generation = sh.name.generation
	}
	f.Epoch, f.Request = m.Epoch, m.Pos
	var to *conn
	switch m.To {
	case chain.Predecessor:
		to = sh.pred
	case chain.Successor:
		to = sh.place.succ.conn()
	case chain.Joiner:
		to = sh.place.join.conn()
	}
	switch {
	case to == nil: // it is asked for again when there is a connection
	case m.Kind == chain.Entry && sh.early(&f):
		sh.sendSoon(to, f)
	default:
		sh.send(to, f)
	}
}

// epochOf returns the epoch that another server's message is of: the present one,
// whatever it says, where that is weakened.
func (sh *shard) epochOf(f *wire.Frame) perdure.Epoch {
	if sh.s.cfg.WeakenedGenerations {
		return sh.name.epoch
	}
	return f.Epoch
}

// fromPredecessor takes a message of the shard's predecessor, unless the shard is not
// restored yet. box is nil unless the goroutine is the one that receives from c.
func (sh *shard) fromPredecessor(c *conn, f *wire.Frame, box *outbox) (taken bool) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if sh.log == nil || sh.retired() {
		return false
	}
	if !sh.precededBy(c) {
		sh.strange(c)
		return true
	}
	sh.box = box
	defer func() { sh.box = nil }()
	m := chain.Message[entry]{Epoch: sh.epochOf(f), Pos: f.Request, Joiner: uint64(f.Clock)}
	switch f.Kind {
	case wire.KindFollow:
		m.Kind, sh.pred, sh.untold.followed = chain.Follow, c, m.Pos
	case wire.KindLevel:
		m.Kind = chain.Level
	default:
		m.Kind, m.Entry.f = chain.Entry, wire.Frame{Header: f.Header, Payload: slices.Clone(f.Payload), Body: f.Body}
	}
	end, joined := sh.log.End(), sh.log.Joined()
	sh.log.Step(chain.Predecessor, m)
	if sh.log.End() > end {
		f.Body = nil // the log has it now
		if f.Kind == wire.KindUpdate || f.Kind == wire.KindTick {
			sh.logs(&m.Entry.f, 1)
		}
	}
	sh.carryOut()
	if sh.log.Joined() != joined {
		sh.s.notify()
	}
	return true
}

// fromSuccessor takes what a server to which entries go says.
func (sh *shard) fromSuccessor(p *peer, f *wire.Frame) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if sh.log == nil || sh.retired() {
		return
	}
	sh.box = &p.box
	defer func() { sh.box = nil }()
	m := chain.Message[entry]{
		Kind: chain.Have, Epoch: sh.epochOf(f), Pos: f.Request, Joiner: uint64(f.Clock), None: f.Flags&wire.FlagNone != 0,
	}
	if f.Kind == wire.KindCommitted {
		m.Kind = chain.Committed
	}
	switch p {
	case sh.place.succ:
		sh.log.Step(chain.Successor, m)
	case sh.place.join:
		sh.log.Step(chain.Joiner, m)
	}
	sh.carryOut()
	if sh.yields() && sh.log.Shared() {
		sh.s.notify()
	}
}

// relink begins anew with a peer: what was sent to it may be lost.
func (sh *shard) relink(p *peer) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if sh.log == nil || sh.retired() {
		return
	}
	switch p {
	case sh.place.succ:
		sh.log.Relink(chain.Successor)
	case sh.place.join:
		sh.log.Relink(chain.Joiner)
	default:
		return
	}
	sh.carryOut()
}

// tickChain lets time pass.
func (sh *shard) tickChain() {
	if !sh.mu.TryLock() {
		return // it is at work
	}
	defer sh.mu.Unlock()
	if sh.log != nil && !sh.retired() {
		sh.log.Tick()
		sh.carryOut()
		sh.yield()
	}
}

// send sends frames on a connection: at once, or, while what came together is being
// dealt with, together with others.
func (sh *shard) send(c *conn, frames ...wire.Frame) {
	if sh.box == nil {
		c.send(frames...)
		return
	}
	sh.box.put(c, frames)
}
