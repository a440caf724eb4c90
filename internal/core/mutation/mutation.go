// Package mutation provides fault injection for negative controls: it names the safety mechanisms that a test can
// disable to prove that it detects their absence. The zero Set disables nothing. Processes look for a Set under [Key]
// in the context that they run with, and only simulations put one there, so no released program can disable anything. A
// Set is a plain value that goroutines may read concurrently.
package mutation

// Set selects the disabled mechanisms. The comment of each field says what happens instead.
type Set struct {
	// On a shard.
	ExactlyOnce    bool // updates that were already applied are applied again
	Staging        bool // updates are applied as soon as they are received, without a tick
	Atomicity      bool // an update is accepted although a part of it is already applied, or must not be
	Fencing        bool // messages of a slot's former processes are accepted
	Joins          bool // clocks do not wait for slots that joined a running job
	Pushes         bool // changed rows are not pushed, although readers are notified that they were
	RestoreBarrier bool // a restored shard answers reads before all updates were resent
	Units          bool // rows of a whole table are saved individually
	Cuts           bool // background saves also contain updates of later clocks, and holds have no effect

	// On a worker.
	Bound       bool // under vap it sends regardless of the updates in transit
	Retention   bool // it discards updates once they are applied
	Resending   bool // updates that were applied before are resent empty to a restored shard
	AckTracking bool // it reports all sent updates as acknowledged
	Merging     bool // it merges updates across cuts, and with those of former processes of its slot

	// On a worker and a server.
	Generations bool // they accept messages of other generations and epochs

	// On the coordinator.
	Counting      bool // lost updates are not counted
	RollBack      bool // the job does not roll back for a lost shard or lost updates
	Holders       bool // reports on a shard are recorded, even if the sender no longer holds it
	BaseVector    bool // a lost shard starts with the applied vector of its rows instead of the acknowledged one
	States        bool // superseded slot states are deleted although a checkpoint refers to them
	Partitions    bool // a server that other processes cannot reach counts as reachable
	FileRetention bool // files of saved rows that the registry names are deleted, except each shard's newest

	Eviction Eviction
	Chain    Chain
	Combine  Combine
}

// Chain selects what is disabled in chains.
type Chain struct {
	Epochs        bool // messages of other epochs are accepted
	Positions     bool // entries are accepted at any position
	Levels        bool // a joiner never becomes a member
	DrainOrder    bool // all replicas of a draining server are copied simultaneously
	DrainDeadline bool // a draining server stays in its chains until its process ends
}

// Eviction selects what is disabled in the eviction of rows.
type Eviction struct {
	Evicting bool // rows are evicted although they were updated recently
	Moves    bool // the selector of rows to save is not notified of evictions
}

// Combine selects what is disabled in tables that combine updates.
type Combine struct {
	Divisor bool // the divisor counts slots whose updates are lost
	Once    bool // the rule runs for each update of a clock
}

// Key is the context key of a Set.
type Key struct{}

// Holder is the part of context.Context that Of needs.
type Holder interface{ Value(key any) any }

// Of returns the Set in ctx, or the zero Set if there is none.
func Of(ctx Holder) Set {
	set, _ := ctx.Value(Key{}).(Set)
	return set
}
