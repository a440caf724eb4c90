package recovery

import "github.com/perdure/perdure"

// none keeps nothing.
//
// Promise: the job goes on. A dead server's shards begin again with their initial rows; what
// they had is counted as lost, and nobody waits for it.
//
// Safe point: the acknowledgement; what is acknowledged may be lost all the same.
//
// Cost: nothing while nobody dies.
type none struct{ r perdure.Recovery }

func (s none) Traits() Traits {
	return Traits{Copies: 1, Safe: Acknowledged, Begins: Initial, Apart: true}
}

func (s none) Orphaned(Loss) Fate { return Fate{Kind: Anew} }

func (s none) Halved() Fate { return Fate{Kind: GoOn} } // the shard counts its part as lost

func (s none) Outlived(Death) Fate { return Fate{Kind: GoOn} }

func (s none) MayContinue() error {
	return cannotContinue(s.r, "the rows that workers would go on with are lost, and begin anew")
}

func (s none) MayResume() error { return nothingSaved(s.r) }
