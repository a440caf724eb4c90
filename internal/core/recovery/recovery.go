// Package recovery says what each recovery strategy promises: until when an update may
// still be lost, when a shard is saved, and what happens when a server, a worker, or both
// die. It is pure. The shells ask it and obey; they do not ask which strategy a job has.
//
// Each strategy has a file, which begins with its promise, its safe point and its cost. For
// users that is a table in docs/guide/recovery.md; TestPage compares it with the answers.
package recovery

import (
	"fmt"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/words"
)

// Strategy is what a job's recovery strategy answers. The answers are data: nothing is
// called back.
type Strategy interface {
	// Traits are what is always so.
	Traits() Traits
	// Orphaned says what becomes of shards of which nobody has the rows.
	Orphaned(l Loss) Fate
	// Halved says what becomes of a clock that a dead slot's process had staged on some
	// shards only, of which one shows that it was to count (two-step clocks).
	Halved() Fate
	// Outlived says what becomes of the job when a worker's process has died.
	Outlived(d Death) Fate
	// MayContinue returns why workers cannot go on while a shard is out; nil: they can.
	MayContinue() error
	// MayResume returns why no later run can go on from what one has left, and which runs can
	// be resumed; nil: it can, once there is a checkpoint.
	MayResume() error
}

// Of returns the strategy that a job has chosen; none for the zero Recovery, which is of a
// process that has not heard of its job yet.
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

// Check reports what is wrong with a job, its strategy included, if anything is.
func Check(job *perdure.JobSpec) error {
	if err := job.Validate(); err != nil || !job.OnOutage.Continue {
		return err
	}
	return Of(job.Recovery).MayContinue()
}

// Traits are what a strategy is like, whatever happens.
type Traits struct {
	Copies int       // servers that are to hold each shard, at least 1
	Safe   SafePoint // until when a worker keeps an update
	Form   Form      // how a shard is saved
	Timed  bool      // cuts are named when it is time for one, and none is of an interval in clocks
	Begins Begin     // what a shard begins with that nobody has all of, where what it lacks is counted as lost
	// Eager says that an update is acknowledged before every replica has it, so that the
	// head alone knows all. Period is every how many clocks the others are brought up to
	// it; 0: they follow all the time.
	Eager  bool
	Period perdure.Clock
	// Partial says that what nobody has kept only counts, and that nobody goes back for it.
	Partial bool
	// Apart says that a server serves again when its own shards do, since nobody else has
	// to do anything for them.
	Apart bool
}

// Saves reports whether checkpoints of one clock are kept, to which a shard, or all, can go
// back, and from which a later run can go on.
func (t Traits) Saves() bool { return t.Form == Standing || t.Form == Behind }

// Closes reports whether a job that is ended early saves all that it has, once more.
func (t Traits) Closes() bool { return t.Saves() || t.Form == Rows }

// Keeps reports whether anything is kept in the folder of checkpoints.
func (t Traits) Keeps() bool { return t.Form != Nothing }

// Behind reports whether training goes on while a checkpoint is written.
func (t Traits) Behind() bool { return t.Form == Behind }

// Logged reports whether updates go to an update log, from which servers read them.
func (t Traits) Logged() bool { return t.Safe == Logged }

// Retains reports whether workers keep updates until they are in a checkpoint, to send a
// shard again what it lacks.
func (t Traits) Retains() bool { return t.Safe == Saved }

// MayLose reports whether a death may take updates for good. They are counted, and never awaited.
func (t Traits) MayLose() bool { return t.Begins != Whole || t.Partial }

// SafePoint is when a worker need not keep an update any more.
type SafePoint int

// The safe points.
const (
	// Acknowledged: the shard has said that it is applied; whatever then happens, the
	// worker is not asked for it again.
	Acknowledged SafePoint = iota
	// Logged: the update log has it.
	Logged
	// Saved: it is in a checkpoint that the registry names.
	Saved
)

// EveryShard stands for all shards of a job, where SavedUpTo is asked.
const EveryShard perdure.ShardID = -1

// SavedUpTo returns the clock below which a slot's updates for a shard are in a checkpoint.
// Today it is one clock for all: every checkpoint is a cut. It is asked by shard and slot,
// since that need not stay so.
func SavedUpTo(v *words.View, _ perdure.ShardID, _ perdure.Slot) perdure.Clock { return v.Durable }

// Begin is what a shard begins with that nobody has all of. Where it begins with less than it
// had, what it counts jumps to what each slot was acknowledged, and the gap is lost.
type Begin int

// What a shard begins with. Where it is not Whole, a death may take updates that were
// acknowledged: they are counted, and never awaited.
const (
	Whole     Begin = iota // all that it had: nothing is lost
	Initial                // its initial rows
	Head                   // the rows of its chain's new head
	LastSaved              // each row as it was last saved
)

// Some reports whether what a shard begins with has rows of its own, which say what they
// contain.
func (b Begin) Some() bool { return b == Head || b == LastSaved }

// Form is how a shard is saved.
type Form int

// The forms.
const (
	Nothing  Form = iota
	Standing      // a cut, at which the shard stands while it is written
	Behind        // a cut, written while training goes on
	Rows          // some rows at a time, of whatever clock they are: see Rounds
)

// Loss is what is known when nobody has the rows of some shards.
type Loss struct {
	Shards int // how many
	// Unkept is a slot of whose updates that are in no checkpoint some are kept by nobody;
	// -1: there is none.
	Unkept     int
	Durable    perdure.Clock // of the newest checkpoint
	Publishing bool          // a newer one is being published just now
}

// Death is what is known when a worker's process has died.
type Death struct {
	Slot int
	// Needed: a shard that was restored has not been sent all again, and the process had
	// kept what it lacks.
	Needed bool
	// Repeats: the slot's next process does the same again, with the same result.
	Repeats bool
}

// Fate is what becomes of shards, or of the job.
type Fate struct {
	Kind FateKind
	// Why is of RollBack and Fail, in words that a user reads; "" of Halved's RollBack, whose
	// asker knows them.
	Why string
}

// FateKind is a fate's kind.
type FateKind int

// The fates.
const (
	GoOn     FateKind = iota // nothing has to be done
	Anew                     // the shards begin with their initial rows; what they had is counted as lost
	Resaved                  // the shards begin with each row as it was last saved; what that lacks is counted as lost
	Restored                 // the shards begin with the rows of the newest checkpoint, and are sent the rest
	Replay                   // the shards are read from the update log again
	RollBack                 // all go back to the newest checkpoint
	Count                    // nobody goes back: what nobody has kept counts as lost; shards are Restored else
	Wait                     // it is not known yet: ask again
	Fail                     // the job ends
)

func rollBack(why string, args ...any) Fate { return Fate{RollBack, fmt.Sprintf(why, args...)} }

func fail(why string, args ...any) Fate { return Fate{Fail, fmt.Sprintf(why, args...)} }

// cannotContinue is MayContinue's error of a strategy under which an outage undoes what workers do.
func cannotContinue(r perdure.Recovery, why string) error {
	return fmt.Errorf("%w: on-outage continue with recovery %s: %s; choose --on-outage wait, or recovery resend, "+
		"stateless or chain:N", perdure.ErrUsage, r, why)
}

// nothingSaved is MayResume's error of a strategy that keeps no checkpoints.
func nothingSaved(r perdure.Recovery) error {
	return fmt.Errorf("a run under %s keeps no checkpoints, and cannot be resumed; one under resend:C or "+
		"chain:2,checkpoint:C, say, can", r)
}
