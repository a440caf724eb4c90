package recovery

import "github.com/perdure/perdure"

// chain keeps N replicas of each shard in the memory of N servers.
//
// Promise: as long as one replica of each shard lives, nothing is lost, and nobody goes
// back; the next replica takes over as soon as the death is noticed. When a shard's last replica dies
// the job ends; with ",checkpoint:C" all roll back to the newest checkpoint. With ",async"
// or ",every:K" who sends an update does not wait for all replicas, and a head's death loses
// what the others did not have yet: it is counted.
//
// Safe point: the acknowledgement, which comes when all replicas have the update; with
// ",async" and ",every:K" when the head has.
//
// Cost: N times the memory, and each update travels N times.
type chain struct{ r perdure.Recovery }

// eager reports whether an update is acknowledged before every replica has it.
func (s chain) eager() bool { return (s.r.Async || s.r.Every > 0) && !s.r.Checkpoints }

func (s chain) Traits() Traits {
	t := Traits{Copies: max(1, s.r.Replicas), Safe: Acknowledged, Eager: s.eager()}
	if s.r.Checkpoints {
		t.Form, t.Timed = form(s.r), s.r.Auto
	}
	if t.Eager {
		t.Begins, t.Period = Head, s.r.Every
	}
	return t
}

func (s chain) Orphaned(l Loss) Fate {
	if s.r.Checkpoints {
		return rollBack("%d shards were lost", l.Shards)
	}
	return fail("%s keeps no checkpoint to go back to; start the job again with --recovery chain:%d,checkpoint:100, "+
		"which keeps one every 100 clocks, or with a longer chain", s.r, s.r.Replicas)
}

func (s chain) Halved() Fate {
	switch {
	case s.eager():
		return Fate{Kind: GoOn} // the shard counts its part as lost
	case s.r.Checkpoints:
		return Fate{Kind: RollBack}
	}
	return fail("begin the job again")
}

func (s chain) Outlived(Death) Fate { return Fate{Kind: GoOn} } // its next process goes on where it was

func (s chain) MayContinue() error { return nil }

func (s chain) MayResume() error {
	if s.r.Checkpoints {
		return nil
	}
	return nothingSaved(s.r)
}
