package recovery

import "github.com/perdure/perdure"

// resend saves all shards every C clocks while training continues, and workers keep their updates until they are saved.
//
// Promise: the death of a server takes only its own shards back to the newest checkpoint. Workers resend the later
// updates, and no clock is redone. All shards roll back only if a process has died that had kept updates that a shard
// then lacks. To keep that window short, the death of a worker triggers a checkpoint immediately. With ",partial"
// nothing rolls back even then: updates of the dead worker without a copy are lost and counted, on the restored shards
// only, and no process waits for them.
//
// Safe point: the newest checkpoint.
//
// Cost: writing checkpoints, and workers' memory for the updates since the last one.
type resend struct{ r perdure.Recovery }

func (s resend) Traits() Traits {
	return Traits{Copies: 1, Safe: Saved, SaveMode: SaveInBackground, Timed: s.r.Auto, Partial: s.r.Partial}
}

func (s resend) OnLostShards(l Loss) Action {
	switch {
	case l.Publishing:
		return Action{Kind: Wait} // until it is known which checkpoint is the newest
	case l.UnretainedSlot >= 0:
		return s.unkept("%d shards were lost, and no process has a copy of the updates that earlier processes of "+
			"worker:%d made since clock %d", l.Shards, l.UnretainedSlot, l.Durable)
	}
	return Action{Kind: Restore}
}

// unkept returns the recovery action for a shard that lacks updates without a copy.
func (s resend) unkept(why string, args ...any) Action {
	if s.r.Partial {
		return Action{Kind: RestorePartial}
	}
	return rollBack(why, args...)
}

func (s resend) OnTornClock() Action {
	if s.r.Partial {
		return Action{Kind: RestorePartial}
	}
	return Action{Kind: RollBack}
}

func (s resend) OnWorkerDeath(d Death) Action {
	if d.Needed && (!d.Repeats || s.r.Partial) {
		return s.unkept("worker:%d died before it had resent the updates that a restored shard lacks", d.Slot)
	}
	return Action{Kind: Continue}
}

func (s resend) CheckContinue() error { return nil }

func (s resend) CheckResume() error { return nil }
