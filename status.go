package perdure

import "maps"

// ServerStatus is a server's Status.
type ServerStatus struct {
	Revision uint64        `json:"revision"` // of the view it acts on
	Shards   []ShardStatus `json:"shards"`
	// Draining says that the server is to end, and asks that others take over what
	// it holds.
	Draining bool `json:"draining,omitempty"`
	// Log says why what goes to the update log waits, "" if nothing does.
	Log string `json:"log,omitempty"`
	// Resources are those of the process.
	Resources Resources `json:"resources"`
}

// Resources are what a process has in use, as its Go runtime counts it.
type Resources struct {
	Goroutines int   `json:"goroutines"`
	HeapBytes  int64 `json:"heap_bytes"` // of objects that live, or that no collection has freed yet
}

// ShardStatus is one shard's part of a ServerStatus: of the replica that the
// server holds.
type ShardStatus struct {
	Shard      ShardID    `json:"shard"`
	Generation Generation `json:"generation"`
	Epoch      Epoch      `json:"epoch"`
	Since      uint64     `json:"since,omitempty"` // as in the view's Holder
	// Ready says that it serves: restored and, of a chain's head, that all members
	// have, in this epoch, what it had when the epoch began.
	Ready bool `json:"ready"`
	// Joined says of a replica that is joining that it has come up with the tail.
	Joined bool `json:"joined,omitempty"`
	// Yielded says of a head that yields that its successor has all that it has.
	Yielded  bool   `json:"yielded,omitempty"`
	MinClock Clock  `json:"min_clock"`
	Seq      uint64 `json:"seq"` // updates that its rows contain
	// Applied is the applied vector of a head that was told that updates were lost,
	// and waits for its Base; its rows' own, without what Base is to add.
	Applied []Clock `json:"applied,omitempty"`
	// Fences answers for the slots that the view calls unsettled.
	Fences []Fence `json:"fences,omitempty"`
	// Roster is the newest View.Roster whose spans it goes by.
	Roster uint64 `json:"roster,omitempty"`
	// Named is the newest View.Named that it will stand at, or has passed.
	Named Clock `json:"named,omitempty"`
	// Missed says that it has gone on after a cut that was to be written meanwhile, and that
	// nobody writes any more: there will be no checkpoint of it.
	Missed bool `json:"missed,omitempty"`
	// Whole says of a shard that was restored that it has received all that the workers
	// had sent to its former life.
	Whole bool `json:"whole,omitempty"`
	// Segments are those written in this generation for cuts that the view does
	// not call durable yet.
	Segments []Segment `json:"segments,omitempty"`
	// SaveSeconds and SaveBytes say how long the replica's last segment took to be
	// written, until it was durable, and how large it is; 0: it has written none.
	SaveSeconds float64 `json:"save_seconds,omitempty"`
	SaveBytes   int64   `json:"save_bytes,omitempty"`
	// Unread is how many records of the shard's stream of the update log its rows lack; nil:
	// it has none, or it was not to be found out lately how long it is.
	Unread *int64 `json:"unread,omitempty"`
	// Problem says what keeps the shard from going on, "" if nothing does.
	Problem string `json:"problem,omitempty"`
}

// Saving is how often a checkpoint is made where the strategy leaves that open, and what
// it is chosen by.
type Saving struct {
	Failures int64   `json:"failures"`   // after which rows were taken from a checkpoint
	Ran      float64 `json:"ran_s"`      // how long the job had been going on when it was chosen, in seconds
	Interval float64 `json:"interval_s"` // between two checkpoints, in seconds; 0: not chosen yet
	Why      string  `json:"why"`        // in words
}

// Fence says how far a slot had come on a shard when its older incarnations
// were fenced, and whether the decision about them has been carried out.
type Fence struct {
	Slot        Slot        `json:"slot"`
	Incarnation Incarnation `json:"incarnation"` // older ones are refused
	Counts      Counts      `json:"counts"`
	Carried     bool        `json:"carried"`
}

// Segment names a checkpoint segment that a server has written durably.
type Segment struct {
	Cut   Clock  `json:"cut"`
	File  string `json:"file"`
	Bytes int64  `json:"bytes"`
	CRC   uint32 `json:"crc"`
	Seq   uint64 `json:"seq"`
	// Base are the segments that it follows: see checkpoint.SegmentRef.
	Base []SegmentFile `json:"base,omitempty"`
}

// SegmentFile is a segment's file.
type SegmentFile struct {
	File  string `json:"file"`
	Bytes int64  `json:"bytes"`
	CRC   uint32 `json:"crc"`
}

// WorkerStatus is a worker's Status.
type WorkerStatus struct {
	Revision   uint64     `json:"revision"` // of the view it acts on
	Generation Generation `json:"generation"`
	Clock      Clock      `json:"clock"`
	Finished   bool       `json:"finished"` // every update of clocks < Clock is applied, and it will send no more
	// Acked answers for the shards whose rows were lost and whose base the view
	// does not know yet: what was acknowledged to this slot as applied.
	Acked []Acked `json:"acked,omitempty"`
	// Crowded says that the updates that it keeps for want of a cut take much of the
	// memory that it may use for them: a cut is wanted now.
	Crowded bool `json:"crowded,omitempty"`
	// Log says why what goes to the update log waits, "" if nothing does.
	Log string `json:"log,omitempty"`
	// KeptBytes are of updates that it keeps until they are in a checkpoint.
	KeptBytes int64 `json:"kept_bytes,omitempty"`
	// Outage is what it goes on without; nil: nothing is out, or it waits.
	Outage   *WorkerOutage  `json:"outage,omitempty"`
	Counters WorkerCounters `json:"counters"`
	// Resources are those of the process, of which the client is a part.
	Resources Resources `json:"resources"`
}

// WorkerOutage says which shards are out for a worker that goes on without them.
type WorkerOutage struct {
	Shards  []ShardID `json:"shards"`
	Seconds float64   `json:"seconds"`      // since some are
	Bytes   int64     `json:"queued_bytes"` // of updates that are queued for them
}

// Acked says how many of the worker's clocks a shard has acknowledged as
// applied, before the given epoch.
type Acked struct {
	Shard   ShardID `json:"shard"`
	Epoch   Epoch   `json:"epoch"`
	Applied Clock   `json:"applied"`
}

// WorkerCounters count since the process's start.
type WorkerCounters struct {
	UpdatesSent int64 `json:"updates_sent"`
	BytesPushed int64 `json:"bytes_pushed"`
	BytesPulled int64 `json:"bytes_pulled"`
	Samples     int64 `json:"samples"`
	// ClockDifferential counts reads of a row, per other slot, by (that slot's
	// clocks contained in the row - 1) - the reader's clock (ESSP paper, fig. 2).
	ClockDifferential map[int64]int64 `json:"clock_differential,omitempty"`
	// ReadLag counts reads of a row by the newest MinClock known of its shard less
	// the row's.
	ReadLag map[int64]int64 `json:"read_lag,omitempty"`
	// MissingUpdates counts reads of a row by how many updates it lacked that were
	// known to exist: of each slot, those that some shard was known to have applied.
	MissingUpdates map[int64]int64 `json:"missing_updates,omitempty"`
	// BeyondBound counts the updates that alone exceeded vap's bound: they went
	// alone.
	BeyondBound int64 `json:"beyond_bound,omitempty"`
	// Where the job goes on while a shard is out: clocks that were ended meanwhile, rows
	// that were read beyond their bound, the most bytes of updates that were queued, and
	// the time in calls of the client that waited meanwhile, in nanoseconds.
	OutageClocks int64 `json:"outage_clocks,omitempty"`
	StaleRows    int64 `json:"stale_rows,omitempty"`
	QueuedBytes  int64 `json:"queued_bytes,omitempty"`
	OutageNs     int64 `json:"outage_ns,omitempty"`
	// Where the worker's time went since its program's first read, in nanoseconds.
	// They do not overlap: waiting until MinClock (or, under vap, what others can
	// see) allows it to go on, with the way of the push that tells; all else in calls
	// of the client that waited or ended a clock; and the rest, the program's own.
	StalenessNs int64 `json:"staleness_ns"`
	CommNs      int64 `json:"comm_ns"`
	ComputeNs   int64 `json:"compute_ns"`
}

// Equal reports whether the same was counted.
func (w *WorkerCounters) Equal(o *WorkerCounters) bool {
	return maps.Equal(w.ClockDifferential, o.ClockDifferential) && maps.Equal(w.ReadLag, o.ReadLag) &&
		maps.Equal(w.MissingUpdates, o.MissingUpdates) &&
		w.numbers() == o.numbers()
}

func (w *WorkerCounters) numbers() [12]int64 {
	return [12]int64{
		w.UpdatesSent, w.BytesPushed, w.BytesPulled, w.Samples, w.BeyondBound, w.OutageClocks, w.StaleRows,
		w.QueuedBytes,
		w.OutageNs, w.StalenessNs, w.CommNs, w.ComputeNs,
	}
}
