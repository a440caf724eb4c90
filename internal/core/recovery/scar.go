package recovery

// scar saves a part of the rows at a time, and a dead server's shards begin with each row as
// it was last saved (SCAR paper, section 4).
//
// Promise: the job goes on, and nobody goes back. What a lost shard's rows lack of what was
// acknowledged is counted as lost. What is lost is progress, not state: the more a row has
// changed, the sooner it is saved.
//
// Safe point: the acknowledgement; what is acknowledged may be lost all the same.
//
// When the job is ended in order all rows are saved, at one clock.
//
// Cost: the writing of R of the rows every R·C clocks, as many bytes as all of them every C
// clocks; and with the selector priority a copy of the rows' values.
type scar struct{}

func (s scar) Traits() Traits {
	return Traits{Copies: 1, Safe: Acknowledged, Form: Rows, Begins: LastSaved, Apart: true}
}

func (s scar) Orphaned(Loss) Fate { return Fate{Kind: Resaved} }

func (s scar) Halved() Fate { return Fate{Kind: GoOn} } // the shard counts its part as lost

func (s scar) Outlived(Death) Fate { return Fate{Kind: GoOn} }

func (s scar) MayContinue() error { return nil }

func (s scar) MayResume() error { return nil }
