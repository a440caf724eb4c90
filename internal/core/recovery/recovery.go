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
	"github.com/perdure/perdure/internal/core/words"
)

// Strategy answers the questions about a job's recovery strategy. The answers are data; nothing is called back.
type Strategy interface {
	// Traits returns the fixed properties of the strategy.
	Traits() Traits
	// Orphaned returns the recovery action for shards whose rows no live server has.
	Orphaned(l Loss) Fate
	// Halved returns the recovery action for a clock that the process of a dead slot had staged on some shards only,
	// although another shard shows that the clock counts (two-step clocks).
	Halved() Fate
	// Outlived returns the recovery action for the death of a worker's process.
	Outlived(d Death) Fate
	// MayContinue returns the reason why workers cannot continue while a shard is unavailable; nil: they can.
	MayContinue() error
	// MayResume returns the reason why no later run can resume from this strategy's runs, and names strategies that
	// allow it; nil: it can, once a checkpoint exists.
	MayResume() error
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

// Check validates a job, including its strategy.
func Check(job *perdure.JobSpec) error {
	if err := job.Validate(); err != nil || !job.OnOutage.Continue {
		return err
	}
	return Of(job.Recovery).MayContinue()
}

// Traits are the fixed properties of a strategy.
type Traits struct {
	Copies int       // servers that should hold each shard, at least 1
	Safe   SafePoint // when a worker may discard an update
	Form   Form      // how a shard is saved
	Timed  bool      // cuts are named at times chosen by a timer, not at an interval in clocks
	Begins Begin     // initial content of a lost shard; updates that it lacks are counted as lost
	// Eager is set if an update is acknowledged before every replica has it, so that only the head has all. Period is
	// the number of clocks after which the others are brought up to date; 0: they follow continuously.
	Eager  bool
	Period perdure.Clock
	// Partial is set if updates without a copy are only counted, and do not cause a rollback.
	Partial bool
	// Apart is set if a server serves again as soon as its own shards do, because no other process has to do anything
	// for them.
	Apart bool
}

// Saves reports whether checkpoints of one clock are kept. A shard, or the whole job, can roll back to one, and a later
// run can resume from it.
func (t Traits) Saves() bool { return t.Form == Standing || t.Form == Behind }

// Closes reports whether a job that ends early saves all its rows once more.
func (t Traits) Closes() bool { return t.Saves() || t.Form == Rows }

// Keeps reports whether anything is saved in the checkpoint directory.
func (t Traits) Keeps() bool { return t.Form != Nothing }

// Behind reports whether training continues while a checkpoint is written.
func (t Traits) Behind() bool { return t.Form == Behind }

// Logged reports whether updates go to an update log, from which servers read them.
func (t Traits) Logged() bool { return t.Safe == Logged }

// Retains reports whether workers keep updates until a checkpoint contains them, so that they can resend them to a
// restored shard.
func (t Traits) Retains() bool { return t.Safe == Saved }

// MayLose reports whether a death may lose updates permanently. Lost updates are counted, and no process waits for
// them.
func (t Traits) MayLose() bool { return t.Begins != Whole || t.Partial }

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
// all, because every checkpoint is a cut. The parameters leave room for other strategies.
func SavedUpTo(v *words.View, _ perdure.ShardID, _ perdure.Slot) perdure.Clock { return v.Durable }

// Begin is the initial content of a lost shard. If that is less than it had, its counts jump to the clocks that it had
// acknowledged to each slot, and the difference is lost.
type Begin int

// The possible initial contents of a lost shard. Except for Whole, a death may lose acknowledged updates: they are
// counted, and no process waits for them.
const (
	Whole     Begin = iota // everything that it had: nothing is lost
	Initial                // its initial rows
	Head                   // the rows of its chain's new head
	LastSaved              // each row as last saved
)

// Some reports whether a lost shard starts with existing rows, whose updates its server reports.
func (b Begin) Some() bool { return b == Head || b == LastSaved }

// Form says how a shard is saved.
type Form int

// The forms.
const (
	Nothing  Form = iota
	Standing      // a cut; the shard pauses while it is written
	Behind        // a cut, written while training continues
	Rows          // some rows at a time, each at a clock of its own: see Rounds
)

// Loss describes shards whose rows no live server has.
type Loss struct {
	Shards int // number of shards
	// Unkept is a slot that has updates which are neither in a checkpoint nor kept by any process; -1: none.
	Unkept     int
	Durable    perdure.Clock // clock of the newest checkpoint
	Publishing bool          // a newer checkpoint is being published
}

// Death describes the death of a worker's process.
type Death struct {
	Slot int
	// Needed is set if a restored shard still lacks updates that only this process had kept.
	Needed bool
	// Repeats is set if a replacement process redoes the same work with the same result.
	Repeats bool
}

// Fate is a recovery action for shards or for the whole job.
type Fate struct {
	Kind FateKind
	// Why is the reason for RollBack and Fail, shown to users. It is "" for Halved's RollBack, where the caller knows
	// the reason.
	Why string
}

// FateKind is the kind of a recovery action.
type FateKind int

// The recovery actions.
const (
	GoOn     FateKind = iota // nothing has to be done
	Anew                     // the shards start with their initial rows; their updates are counted as lost
	Resaved                  // the shards start with each row as last saved; later updates are counted as lost
	Restored                 // the shards start with the newest checkpoint, and workers resend the rest
	Replay                   // the shards are read from the update log again
	RollBack                 // all shards roll back to the newest checkpoint
	Count                    // as Restored, but updates without a copy are counted as lost, without a rollback
	Wait                     // unknown yet: ask again
	Fail                     // the job ends
)

func rollBack(why string, args ...any) Fate { return Fate{RollBack, fmt.Sprintf(why, args...)} }

func fail(why string, args ...any) Fate { return Fate{Fail, fmt.Sprintf(why, args...)} }

// cannotContinue is MayContinue's error for a strategy under which an outage undoes the workers' progress.
func cannotContinue(r perdure.Recovery, why string) error {
	return fmt.Errorf("%w: on-outage continue with recovery %s: %s; choose --on-outage wait, or recovery resend, "+
		"stateless or chain:N", perdure.ErrUsage, r, why)
}

// nothingSaved is MayResume's error for a strategy that keeps no checkpoints.
func nothingSaved(r perdure.Recovery) error {
	return fmt.Errorf("a run under %s keeps no checkpoints, and cannot be resumed; one under resend:C or "+
		"chain:2,checkpoint:C, say, can", r)
}
