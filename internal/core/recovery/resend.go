package recovery

import "github.com/perdure/perdure"

// resend saves all shards every C clocks while training goes on, and workers keep their
// updates until they are saved.
//
// Promise: a server's death takes only its own shards back to the newest checkpoint. Workers
// send them again what came after, and nobody does a clock again. Only if somebody has died
// who had kept what a shard then lacks all roll back; after a worker's death a checkpoint is
// asked for at once, to make that time short.
//
// Safe point: the newest checkpoint.
//
// Cost: the writing of checkpoints, and workers' memory for the updates since.
type resend struct{ r perdure.Recovery }

func (s resend) Traits() Traits { return Traits{Copies: 1, Safe: Saved, Form: Behind, Timed: s.r.Auto} }

func (s resend) Orphaned(l Loss) Fate {
	switch {
	case l.Publishing:
		return Fate{Kind: Wait} // until it is known which checkpoint is the newest
	case l.Unkept >= 0:
		return rollBack("%d shards were lost, and nobody has kept what former processes of worker:%d did since "+
			"clock %d", l.Shards, l.Unkept, l.Durable)
	}
	return Fate{Kind: Restored}
}

func (s resend) Halved() Fate { return Fate{Kind: RollBack} }

func (s resend) Outlived(d Death) Fate {
	if d.Needed && !d.Repeats {
		return rollBack("worker:%d died before it had sent again what a restored shard lacks", d.Slot)
	}
	return Fate{Kind: GoOn}
}

func (s resend) MayContinue() error { return nil }

func (s resend) MayResume() error { return nil }
