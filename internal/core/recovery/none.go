package recovery

import "github.com/perdure/perdure"

// none keeps nothing.
//
// Promise: the job continues. A dead server's shards start again with their initial rows. Their updates are counted as
// lost, and no process waits for them.
//
// Safe point: the acknowledgement, although acknowledged updates may still be lost.
//
// Cost: nothing as long as no process dies.
type none struct{ r perdure.Recovery }

func (s none) Traits() Traits {
	return Traits{Copies: 1, Safe: Acknowledged, Begins: Initial, Apart: true}
}

func (s none) Orphaned(Loss) Fate { return Fate{Kind: Anew} }

func (s none) Halved() Fate { return Fate{Kind: GoOn} } // the shard counts its part as lost

func (s none) Outlived(Death) Fate { return Fate{Kind: GoOn} }

func (s none) MayContinue() error {
	return cannotContinue(s.r, "the rows of the shard are lost, and start again with their initial values")
}

func (s none) MayResume() error { return nothingSaved(s.r) }
