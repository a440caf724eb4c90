package membership

import (
	"github.com/perdure/perdure/internal/core/failuredetector"
	"github.com/perdure/perdure/internal/core/protocol"
)

// A healthy server holds the lock of a shard while it applies a clock, makes progress, and sends heartbeats all the
// while. A deadlocked server also sends heartbeats. A server is considered deadlocked if it has held one lock without
// progress for more than holdFactor times the longest such hold that any server of the job has reported. The limit is
// at least minHoldSeconds and at most maxHoldSeconds, both in seconds.
const (
	minHoldSeconds = 10
	maxHoldSeconds = 60
	holdFactor     = 4
)

// deadlocks distinguishes deadlocked servers from busy ones.
type deadlocks struct {
	longest int64 // milliseconds of the longest completed hold of any server
}

// suspects reports whether a server has held a lock for longer than work takes. The limit doubles each time that
// processes of this server index are given up while the job makes no progress.
func (d *deadlocks) suspects(j *jobState, o *observed, h protocol.LockHold) bool {
	ticks := func(seconds float64) int64 { return int64(seconds / j.seconds) }
	most := ticks(min(max(minHoldSeconds, holdFactor*float64(d.longest)/1000), maxHoldSeconds))
	return ticks(float64(h.Ms)/1000) > o.liveness.ExtendTimeout(most, ticks(maxHoldSeconds), j.minClock())
}

// Tick advances the time by one tick: silent processes become suspects.
func (c *Core) Tick() {
	c.job.detector.Tick()
	c.job.tick++
	if c.record.IsOver() {
		return
	}
	c.rec.checkPartitions(&c.partitions)
	all := c.checkSilence()
	for i := range c.job.servers {
		p, o := c.job.member(Server, i)
		if p.Process != "" && !o.gone && o.server != nil && c.deadlocks.suspects(c.job, o, o.server.Hold) &&
			o.liveness.MarkSuspect() {
			c.suspect(Server, i, o.server.Hold.String())
		}
	}
	if !c.job.detector.IsCutOff(all) {
		c.slotMembership.suspendVacant()
		c.chains.giveUp()
	}
	c.afterTick()
}

// checkSilence suspects processes that have been silent for too long, and returns all subjects.
func (c *Core) checkSilence() []failuredetector.Subject {
	all := c.job.subjects()
	suspects, ask := c.job.detector.Suspects(all, c.job.minClock())
	at := func(subject int) (Kind, int) {
		if n := len(c.job.servers); subject >= n {
			return Worker, subject - n
		}
		return Server, subject
	}
	for _, i := range suspects {
		k, index := at(i)
		c.suspect(k, index, "has been silent for too long")
	}
	for _, i := range ask {
		k, index := at(i)
		p, o := c.job.member(k, index)
		c.rec.pending.Inquiries = append(c.rec.pending.Inquiries, Inquiry{k, index, p.PID, o.liveness.AskedAt()})
	}
	return all
}

// LateTick advances the time by a tick during which the caller was not listening, because it was late or had not read
// its input. Such a tick does not count as silence.
func (c *Core) LateTick() {
	c.job.tick++
	if !c.record.IsOver() {
		c.afterTick()
	}
}

func (c *Core) afterTick() {
	if c.cuts.mayNameTimed() && (c.job.traits.CutsBySlot || c.job.isServing()) {
		c.cuts.requestTimed()
	}
	c.reports.watchLog()
	c.chains.markUrgentDrains()
	c.rounds.recordSaves()
	c.reconcile()
}

// DataReceived records that unread data has arrived from a process.
func (c *Core) DataReceived(k Kind, index int, process string) {
	if p, o := c.job.member(k, index); p.Process == process && !o.liveness.IsSuspect() {
		_ = c.job.recordSign(o) // whether it counts does not matter here
	}
}

// suspect gives up a process that is silent or deadlocked; why says which. The process is killed, and a server's
// replicas are dropped if other servers have the rows. If it was alive all the time, it comes back without replicas. A
// server that may hold the last rows of a shard is not killed on suspicion: without a checkpoint, the job waits for it.
func (c *Core) suspect(k Kind, index int, why string) {
	_, o := c.job.member(k, index)
	if k == Server && c.job.irreplaceable() && c.job.isLastHolder(index) {
		c.rec.event("suspected", target(k, index),
			"%s %s; no other server has all its rows, so the job waits for it", target(k, index), why)
	} else {
		c.rec.event("suspected", target(k, index), "%s %s; %s", target(k, index), why,
			silenceConsequence(c.job.unmanaged(k, index), k == Server))
		c.rec.kill(k, index)
	}
	if k == Server {
		if c.job.traits.Copies > 1 {
			c.job.recovering[k].Add(index)
		}
		c.rec.touchServer(index)
	}
	if !o.connected {
		// No supervisor will report its death: it belongs to another one, or died while this coordinator was down.
		c.rec.recordDeath(k, index, o.lockedOut)
		o.deathAssumed = true
		if k == Worker {
			c.vacate(index)
		}
	}
}
