package recovery

import "github.com/perdure/perdure"

// Promise returns the promise of a strategy to users, in one sentence.
func Promise(r perdure.Recovery) string {
	s := Of(r)
	t, lost := s.Traits(), s.OnLostShards(Loss{Shards: 1, UnretainedSlot: -1}).Kind
	switch {
	case t.Copies > 1:
		text := "While one up-to-date replica of each shard lives, nothing is lost and nothing rolls back"
		switch {
		case t.Period > 0:
			text += ", except for the head's updates since the others were last brought up to date"
		case t.EarlyAck:
			text += ", except for updates that only the head had"
		case lost == RollBack:
			text += "; if all replicas of a shard die, clocks after the last checkpoint are redone"
		}
		return text + "."
	case lost == Reinitialize:
		return "Training continues; lost updates are counted."
	case lost == RestoreRows:
		return "Training continues without a rollback, and loses little of its progress."
	case lost == Replay:
		return "No update that the log has is lost, and nothing rolls back."
	case lost == RollBack:
		return "Nothing is lost; clocks after the last checkpoint are redone."
	case t.Partial:
		return "No death makes a worker redo a clock; updates may be lost, and are counted, only if a worker and a " +
			"server die."
	}
	return "A server's death loses nothing, and no clock is redone because of it."
}
