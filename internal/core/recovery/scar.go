package recovery

// scar saves some of the rows at a time, and a dead server's shards start with each row as last saved (SCAR paper,
// section 4).
//
// Promise: the job continues without a rollback. Acknowledged updates that a lost shard's rows lack are counted as
// lost. The loss is progress, not state: the more a row has changed, the sooner it is saved.
//
// Safe point: the acknowledgement, although acknowledged updates may still be lost.
//
// When the job ends gracefully, all rows are saved at one clock.
//
// Cost: writing R of the rows every R·C clocks, as many bytes as all of them every C clocks; with the selector
// priority, also a copy of the rows' values.
type scar struct{}

func (s scar) Traits() Traits {
	return Traits{
		Copies: 1, Safe: Acknowledged, SaveMode: SaveRows, RestartsWith: LastSavedRows,
		ServesIndependently: true,
	}
}

func (s scar) OnLostShards(Loss) Action { return Action{Kind: RestoreRows} }

func (s scar) OnTornClock() Action { return Action{Kind: Continue} } // the shard counts its part as lost

func (s scar) OnWorkerDeath(Death) Action { return Action{Kind: Continue} }

func (s scar) CheckContinue() error { return nil }

func (s scar) CheckResume() error { return nil }
