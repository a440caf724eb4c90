package recovery

import "github.com/perdure/perdure"

// resend saves all shards every C clocks while training goes on, and workers keep their
// updates until they are saved.
//
// Promise: a server's death takes only its own shards back to the newest checkpoint. Workers
// send them again what came after, and nobody does a clock again. Only if somebody has died
// who had kept what a shard then lacks all roll back; after a worker's death a checkpoint is
// asked for at once, to make that time short. With ",partial" nobody rolls back then either:
// what nobody has kept of the dead worker's updates since that checkpoint is lost and counted,
// on the shards that were restored and on no other, and nobody waits for it.
//
// Safe point: the newest checkpoint.
//
// Cost: the writing of checkpoints, and workers' memory for the updates since.
type resend struct{ r perdure.Recovery }

func (s resend) Traits() Traits {
	return Traits{Copies: 1, Safe: Saved, Form: Behind, Timed: s.r.Auto, Partial: s.r.Partial}
}

func (s resend) Orphaned(l Loss) Fate {
	switch {
	case l.Publishing:
		return Fate{Kind: Wait} // until it is known which checkpoint is the newest
	case l.Unkept >= 0:
		return s.unkept("%d shards were lost, and nobody has kept what former processes of worker:%d did since "+
			"clock %d", l.Shards, l.Unkept, l.Durable)
	}
	return Fate{Kind: Restored}
}

// unkept is what becomes of a shard that lacks what nobody has kept.
func (s resend) unkept(why string, args ...any) Fate {
	if s.r.Partial {
		return Fate{Kind: Count}
	}
	return rollBack(why, args...)
}

func (s resend) Halved() Fate {
	if s.r.Partial {
		return Fate{Kind: Count}
	}
	return Fate{Kind: RollBack}
}

func (s resend) Outlived(d Death) Fate {
	if d.Needed && (!d.Repeats || s.r.Partial) {
		return s.unkept("worker:%d died before it had sent again what a restored shard lacks", d.Slot)
	}
	return Fate{Kind: GoOn}
}

func (s resend) MayContinue() error { return nil }

func (s resend) MayResume() error { return nil }
