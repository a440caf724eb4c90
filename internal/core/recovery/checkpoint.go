package recovery

import "github.com/perdure/perdure"

// checkpoint saves all shards every C clocks; with ",async" while training goes on.
//
// Promise: a server's death takes all back to the newest checkpoint, and the clocks since
// are done again. Nothing that is in a checkpoint is lost; under bsp the model at the end is
// the same to the last bit.
//
// Safe point: the acknowledgement; what a roll-back undoes, workers compute again.
//
// Cost: the writing of checkpoints, and after a death up to C clocks of everybody's work.
type checkpoint struct{ r perdure.Recovery }

func (s checkpoint) Traits() Traits {
	return Traits{Copies: 1, Safe: Acknowledged, Form: form(s.r), Timed: s.r.Auto}
}

func (s checkpoint) Orphaned(l Loss) Fate { return rollBack("%d shards were lost", l.Shards) }

func (s checkpoint) Halved() Fate { return Fate{Kind: RollBack} }

func (s checkpoint) Outlived(Death) Fate { return Fate{Kind: GoOn} } // its next process goes on where it was

func (s checkpoint) MayContinue() error {
	return cannotContinue(s.r, "after an outage all roll back to the last checkpoint, and what workers did meanwhile "+
		"would be undone")
}

func (s checkpoint) MayResume() error { return nil }

// form is the form of the checkpoints of a strategy that keeps them.
func form(r perdure.Recovery) Form {
	if r.Async {
		return Behind
	}
	return Standing
}
