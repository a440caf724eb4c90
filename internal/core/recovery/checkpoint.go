package recovery

import "github.com/perdure/perdure"

// checkpoint saves all shards every C clocks; with ",async" while training continues.
//
// Promise: the death of a server rolls the whole job back to the newest checkpoint, and the later clocks are redone.
// Nothing that a checkpoint contains is lost. Under bsp the final model is identical to the last bit.
//
// Safe point: the acknowledgement; workers recompute everything that a rollback undoes.
//
// Cost: writing checkpoints, and up to C clocks of all workers' work after a death.
type checkpoint struct{ r perdure.Recovery }

func (s checkpoint) Traits() Traits {
	return Traits{Copies: 1, Safe: Acknowledged, SaveMode: saveMode(s.r), Timed: s.r.Auto}
}

func (s checkpoint) OnLostShards(l Loss) Action { return rollBack("%d shards were lost", l.Shards) }

func (s checkpoint) OnTornClock() Action { return Action{Kind: RollBack} }

// its next process continues where it was
func (s checkpoint) OnWorkerDeath(Death) Action { return Action{Kind: Continue} }

func (s checkpoint) CheckContinue() error {
	return cannotContinue(s.r, "after an outage all shards roll back to the last checkpoint, which undoes the work "+
		"done during the outage")
}

func (s checkpoint) CheckResume() error { return nil }

// saveMode returns the form of the checkpoints of a strategy that keeps them.
func saveMode(r perdure.Recovery) SaveMode {
	if r.Async {
		return SaveInBackground
	}
	return SavePaused
}
