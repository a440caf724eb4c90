package perdure

import "maps"

// WorkerOutage says which shards are out for a worker that goes on without them.
type WorkerOutage struct {
	Shards  []ShardID `json:"shards"`
	Seconds float64   `json:"seconds"`      // since some are
	Bytes   int64     `json:"queued_bytes"` // of updates that are queued for them
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
	// What slots' programs had saved and were given, where it was older than the last that was acknowledged:
	// how many states, and by how many clocks at most.
	StatesLost  int64 `json:"states_lost,omitempty"`
	StatesOlder int64 `json:"states_older,omitempty"`
	// Where the worker's time went since its program's first read, in nanoseconds.
	// They do not overlap: waiting until MinClock (or, under vap, what others can
	// see) allows it to go on, with the way of the push that tells; all else in calls
	// of the client that waited or ended a clock; and the rest, the program's own.
	StalenessNs int64 `json:"staleness_ns"`
	CommNs      int64 `json:"comm_ns"`
	ComputeNs   int64 `json:"compute_ns"`
}

// WorkerLook is how a worker's client is at one moment.
type WorkerLook struct {
	Clock    Clock
	Counters WorkerCounters
	Kept     int           // updates that it may have to send again
	Bytes    int64         // of these
	Resent   int64         // updates that it has sent again
	Outage   *WorkerOutage // what it goes on without; nil: nothing is out, or it waits
	Waits    string        // why what it saves, or sends to the update log, waits; "": nothing does
	StateErr error         // why SaveState takes 1 MiB at most here; nil: it takes 1 GiB
	Err      error         // why the client has ended; nil: it has not
}

// Equal reports whether the same was counted.
func (w *WorkerCounters) Equal(o *WorkerCounters) bool {
	return maps.Equal(w.ClockDifferential, o.ClockDifferential) && maps.Equal(w.ReadLag, o.ReadLag) &&
		maps.Equal(w.MissingUpdates, o.MissingUpdates) &&
		w.numbers() == o.numbers()
}

func (w *WorkerCounters) numbers() [14]int64 {
	return [14]int64{
		w.UpdatesSent, w.BytesPushed, w.BytesPulled, w.Samples, w.BeyondBound, w.OutageClocks, w.StaleRows,
		w.QueuedBytes, w.OutageNs, w.StatesLost, w.StatesOlder, w.StalenessNs, w.CommNs, w.ComputeNs,
	}
}
