// Package weaken names the safety mechanisms that a test can switch off, to show that it would
// notice their absence. The zero Set switches nothing off, and no program can ask for another:
// processes look for one under [Key] in the context that they are run with, which only
// simulations put there.
package weaken

// Set says what is off.
type Set struct {
	// Of a shard.
	ExactlyOnce bool // updates that are counted already are applied again
	Staging     bool // updates count as soon as they are received, without a tick
	Whole       bool // an update is taken of which a part is applied already, or may not be
	Fencing     bool // what a slot's former processes say is taken
	Joins       bool // nobody waits for slots that joined a running job
	Pushes      bool // changed rows are not pushed, though their readers are told so
	Holding     bool // a restored shard answers before it has been sent all again
	Units       bool // rows of a whole table are saved one by one
	Cuts        bool // what is saved in the background has updates of later clocks, too

	// Of a worker.
	Bound     bool // under vap it sends whatever is in transit
	Retention bool // it keeps no update that is applied
	Resending bool // what it sends a restored shard again of what was applied there is empty
	Told      bool // it says that all is acknowledged which it has sent
	Merging   bool // it merges updates across cuts, and with those of earlier processes of its slot

	// Of a worker and a server.
	Generations bool // they take what other generations and epochs say

	// Of the coordinator.
	Counting bool // what is lost for want of somebody who has kept it is not counted
	RollBack bool // nobody rolls back because a shard was lost, or for want of updates that nobody has kept
	Holders  bool // what is said of a shard is recorded, whoever holds it now
	Jumps    bool // a lost shard begins with the applied vector of its rows, and not with what was acknowledged
	States   bool // states of slots are deleted that newer ones supersede, though a checkpoint names them
	Rifts    bool // a server that others cannot reach counts as heard
	Named    bool // files of saved rows are deleted that the registry names, but for each shard's newest

	Ebb     Ebb
	Chain   Chain
	Combine Combine
}

// Chain says what is off in a chain.
type Chain struct {
	Epochs    bool // messages of other epochs are taken
	Positions bool // entries are taken wherever they stand
	Levels    bool // a joiner never counts
	Turns     bool // what a server holds that is to end is copied all at once
	Hurry     bool // it stays in its chains until its process ends
}

// Ebb says what is off of rows that are evicted.
type Ebb struct {
	Evicting bool // they go though they were updated lately
	Moves    bool // who chooses the rows that are saved does not hear which go
}

// Combine is what is off of tables that combine updates.
type Combine struct {
	Divisor bool // slots count in it whose updates are lost
	Once    bool // a rule runs for each update of a clock
}

// Key is what a context has a Set under, if it has one.
type Key struct{}

// Holder is what a context is here.
type Holder interface{ Value(key any) any }

// Of returns a context's Set, the zero one if it has none.
func Of(ctx Holder) Set {
	set, _ := ctx.Value(Key{}).(Set)
	return set
}
