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
	return Traits{Copies: 1, Safe: Acknowledged, RestartsWith: InitialRows, ServesIndependently: true}
}

func (s none) OnLostShards(Loss) Action { return Action{Kind: Reinitialize} }

func (s none) OnTornClock() Action { return Action{Kind: Continue} } // the shard counts its part as lost

func (s none) OnWorkerDeath(Death) Action { return Action{Kind: Continue} }

func (s none) CheckContinue() error {
	return cannotContinue(s.r, "the rows of the shard are lost and start again with their initial values")
}

func (s none) CheckResume() error { return nothingSaved(s.r) }
