// Package recovery defines the recovery strategies: until when an update may still be lost, when a shard is saved, and
// what happens when a server, a worker, or both die. The package is pure. The callers carry out its answers and never
// depend on which strategy a job uses.
//
// Each strategy has its own file, which begins with its promise, its safe point and its cost. The table in
// docs/guide/recovery.md shows the same for users; TestPage compares it with the code.
package recovery

import (
	"fmt"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/protocol"
)

// Strategy answers the questions about a job's recovery strategy. The answers are data; nothing is called back.
type Strategy interface {
	// Traits returns the fixed properties of the strategy.
	Traits() Traits
	// OnLostShards returns the recovery action for shards whose rows no live server has.
	OnLostShards(l Loss) Action
	// OnTornClock returns the recovery action for a clock that the process of a dead slot had staged on some shards
	// only, although another shard shows that the clock counts (two-step clocks).
	OnTornClock() Action
	// OnWorkerDeath returns the recovery action for the death of a worker's process.
	OnWorkerDeath(d Death) Action
	// CheckContinue returns the reason why workers cannot continue while a shard is unavailable; nil: they can.
	CheckContinue() error
	// CheckResume returns the reason why no later run can resume from this strategy's runs, and names strategies that
	// allow it; nil: it can, once a checkpoint exists.
	CheckResume() error
}

// Of returns the strategy that a job has chosen. The zero Recovery, of a process that does not know its job yet, yields
// none.
func Of(r perdure.Recovery) Strategy {
	switch r.Kind {
	case perdure.RecoverCheckpoint:
		return checkpoint{r}
	case perdure.RecoverResend:
		return resend{r}
	case perdure.RecoverChain:
		return chain{r}
	case perdure.RecoverStateless:
		return stateless{r}
	case perdure.RecoverScar:
		return scar{}
	}
	return none{r}
}

// TraitsOf returns the traits of the strategy that a job has chosen, in this job.
func TraitsOf(job *perdure.JobSpec) Traits {
	t := Of(job.Recovery).Traits()
	if t.CutsBySlot = job.AtomicClocks && t.SavesCuts(); t.CutsBySlot {
		t.SaveMode = SaveInBackground
	}
	return t
}

// Check validates a job, including its strategy.
func Check(job *perdure.JobSpec) error {
	if err := job.Validate(); err != nil || !job.OnOutage.Continue {
		return err
	}
	return Of(job.Recovery).CheckContinue()
}

// Traits are the fixed properties of a strategy.
type Traits struct {
	Copies       int            // servers that should hold each shard, at least 1
	Safe         SafePoint      // when a worker may discard an update
	SaveMode     SaveMode       // how a shard is saved
	Timed        bool           // cuts are named at times chosen by a timer, not at an interval in clocks
	RestartsWith RestartContent // initial content of a lost shard; updates that it lacks are counted as lost
	// EarlyAck is set if an update is acknowledged before every replica has it, so that only the head has all. Period
	// is the number of clocks after which the others are brought up to date; 0: they follow continuously.
	EarlyAck bool
	Period   perdure.Clock
	// Partial is set if updates without a copy are only counted, and do not cause a rollback.
	Partial bool
	// CutsBySlot is set if a cut contains the updates of each slot up to another clock. Cuts are then chosen during
	// holds and always written in the background.
	CutsBySlot bool
	// ServesIndependently is set if a server serves again as soon as its own shards do, because no other process has to
	// do anything for them.
	ServesIndependently bool
}

// SavesCuts reports whether checkpoints of one clock are kept. A shard, or the whole job, can roll back to one, and a
// later run can resume from it.
func (t Traits) SavesCuts() bool { return t.SaveMode == SavePaused || t.SaveMode == SaveInBackground }

// SavesAtEnd reports whether a job that ends early saves all its rows once more.
func (t Traits) SavesAtEnd() bool { return t.SavesCuts() || t.SaveMode == SaveRows }

// SavesAny reports whether anything is saved in the checkpoint directory.
func (t Traits) SavesAny() bool { return t.SaveMode != SaveNothing }

// SavesInBackground reports whether training continues while a checkpoint is written.
func (t Traits) SavesInBackground() bool { return t.SaveMode == SaveInBackground }

// UsesLog reports whether updates go to an update log, from which servers read them.
func (t Traits) UsesLog() bool { return t.Safe == Logged }

// RetainsUpdates reports whether workers keep updates until a checkpoint contains them, so that they can resend them to
// a restored shard.
func (t Traits) RetainsUpdates() bool { return t.Safe == Saved }

// MayLoseUpdates reports whether a death may lose updates permanently. Lost updates are counted, and no process waits
// for them.
func (t Traits) MayLoseUpdates() bool { return t.RestartsWith != Everything || t.Partial }

// SafePoint says when a worker may discard its copy of an update.
type SafePoint int

// The safe points.
const (
	// Acknowledged: the shard has reported that the update is applied. The worker will never be asked for it again.
	Acknowledged SafePoint = iota
	// Logged: the update log has the update.
	Logged
	// Saved: a checkpoint that the registry names contains the update.
	Saved
)

// EveryShard stands for all shards of a job in calls of SavedUpTo.
const EveryShard perdure.ShardID = -1

// SavedUpTo returns the clock below which checkpoints contain a slot's updates for a shard. Today it is the same for
// all shards, because every checkpoint is a cut. The parameter leaves room for other strategies.
func SavedUpTo(v *protocol.View, _ perdure.ShardID, slot perdure.Slot) perdure.Clock {
	return v.Saved(slot)
}

// RestartContent is the content that a lost shard starts with again. It may lack updates that the shard had
// acknowledged. Each slot's count on the shard then jumps to the newest clock of the slot that the shard had
// acknowledged, and the lacking updates are lost.
type RestartContent int

// The possible initial contents of a lost shard. Except for Everything, a death may lose acknowledged updates: they are
// counted, and no process waits for them.
const (
	Everything    RestartContent = iota // everything that it had: nothing is lost
	InitialRows                         // its initial rows
	HeadRows                            // the rows of its chain's new head
	LastSavedRows                       // each row as last saved
)

// HasRows reports whether a lost shard starts with rows that exist somewhere, on the new head or in files. Its server
// then reports which updates these rows contain.
func (b RestartContent) HasRows() bool { return b == HeadRows || b == LastSavedRows }

// SaveMode says how a shard is saved.
type SaveMode int

// The forms.
const (
	SaveNothing      SaveMode = iota
	SavePaused                // a cut; the shard pauses while it is written
	SaveInBackground          // a cut, written while training continues
	SaveRows                  // some rows at a time, each at a clock of its own: see Rounds
)

// Loss describes shards whose rows no live server has.
type Loss struct {
	Shards int // number of shards
	// UnretainedSlot is a slot that has updates which are neither in a checkpoint nor kept by any process; -1: none.
	UnretainedSlot int
	Durable        perdure.Clock // clock of the newest checkpoint
	Publishing     bool          // a newer checkpoint is being published
}

// Death describes the death of a worker's process.
type Death struct {
	Slot int
	// Needed is set if a restored shard still lacks updates that only this process had kept.
	Needed bool
	// Repeats is set if a replacement process redoes the same work with the same result.
	Repeats bool
}

// Action is a recovery action for shards or for the whole job.
type Action struct {
	Kind ActionKind
	// Why is the reason for RollBack and Fail, shown to users. It is "" for OnTornClock's RollBack, where the caller
	// knows the reason.
	Why string
}

// ActionKind is the kind of a recovery action.
type ActionKind int

// The recovery actions.
const (
	Continue       ActionKind = iota // nothing has to be done
	Reinitialize                     // the shards start with their initial rows; their updates are counted as lost
	RestoreRows                      // the shards start with each row as last saved; later updates are counted as lost
	Restore                          // the shards start with the newest checkpoint, and workers resend the rest
	Replay                           // the shards are read from the update log again
	RollBack                         // all shards roll back to the newest checkpoint
	RestorePartial                   // as Restore, but updates without a copy are counted as lost, without a rollback
	Wait                             // unknown yet: ask again
	Fail                             // the job ends
)

func rollBack(why string, args ...any) Action { return Action{RollBack, fmt.Sprintf(why, args...)} }

func fail(why string, args ...any) Action { return Action{Fail, fmt.Sprintf(why, args...)} }

// cannotContinue is CheckContinue's error for a strategy under which an outage undoes the workers' progress.
func cannotContinue(r perdure.Recovery, why string) error {
	return perdure.Usagef("on-outage continue does not work with recovery %s: %s; choose --on-outage wait, or "+
		"recovery resend, stateless or chain:N", r, why)
}

// nothingSaved is CheckResume's error for a strategy that keeps no checkpoints.
func nothingSaved(r perdure.Recovery) error {
	return fmt.Errorf("a run with recovery %s keeps no checkpoints and cannot be resumed; to be able to resume, start "+
		"a run with, for example, resend:C or chain:2,checkpoint:C", r)
}
