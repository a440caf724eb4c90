package recovery

import "github.com/perdure/perdure"

// chain keeps N replicas of each shard in the memory of N servers.
//
// Promise: as long as one replica of each shard is alive, nothing is lost and nothing rolls back; the next replica
// takes over as soon as a death is detected. When a shard's last replica dies, the job ends; with ",checkpoint:C" all
// shards roll back to the newest checkpoint. With ",async" or ",every:K" the sender of an update does not wait for all
// replicas. The death of a head then loses the updates that the others did not have yet, and these are counted.
//
// Safe point: the acknowledgement, which is sent once all replicas have the update; with ",async" and ",every:K", once
// the head has it.
//
// Cost: N times the memory, and each update is sent N times.
type chain struct{ r perdure.Recovery }

// acksEarly reports whether an update is acknowledged before every replica has it.
func (s chain) acksEarly() bool { return (s.r.Async || s.r.Every > 0) && !s.r.Checkpoints }

func (s chain) Traits() Traits {
	t := Traits{Copies: max(1, s.r.Replicas), Safe: Acknowledged, EarlyAck: s.acksEarly()}
	if s.r.Checkpoints {
		t.SaveMode, t.Timed = saveMode(s.r), s.r.Auto
	}
	if t.EarlyAck {
		t.RestartsWith, t.Period = HeadRows, s.r.Every
	}
	return t
}

func (s chain) OnLostShards(l Loss) Action {
	if s.r.Checkpoints {
		return rollBack("%d shards were lost", l.Shards)
	}
	return fail("%s keeps no checkpoint to roll back to; start the job again with --recovery chain:%d,checkpoint:100, "+
		"which keeps one every 100 clocks, or with a longer chain", s.r, s.r.Replicas)
}

func (s chain) OnTornClock() Action {
	switch {
	case s.acksEarly():
		return Action{Kind: Continue} // the shard counts its part as lost
	case s.r.Checkpoints:
		return Action{Kind: RollBack}
	}
	return fail("start the job again")
}

func (s chain) OnWorkerDeath(Death) Action { return Action{Kind: Continue} } // its next process continues where it was

func (s chain) CheckContinue() error { return nil }

func (s chain) CheckResume() error {
	if s.r.Checkpoints {
		return nil
	}
	return nothingSaved(s.r)
}
