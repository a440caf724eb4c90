package perdure

import "maps"

// WorkerOutage lists the shards that are unavailable to a worker that continues without them.
type WorkerOutage struct {
	Shards  []ShardID `json:"shards"`
	Seconds float64   `json:"seconds"`      // since the first of them became unavailable
	Bytes   int64     `json:"queued_bytes"` // size of the updates queued for them
}

// WorkerCounters holds counters since the start of the process.
type WorkerCounters struct {
	UpdatesSent int64 `json:"updates_sent"`
	BytesPushed int64 `json:"bytes_pushed"`
	BytesPulled int64 `json:"bytes_pulled"`
	Samples     int64 `json:"samples"`
	// ClockDifferential counts reads of a row, per other slot, by (that slot's
	// clocks contained in the row - 1) - the reader's clock (ESSP paper, fig. 2).
	ClockDifferential map[int64]int64 `json:"clock_differential,omitempty"`
	// ReadLag counts reads of a row by the difference between the newest known MinClock of its shard and the row's.
	ReadLag map[int64]int64 `json:"read_lag,omitempty"`
	// MissingUpdates counts reads of a row by the number of known updates it lacked. A slot's update is known if some
	// shard was known to have applied it.
	MissingUpdates map[int64]int64 `json:"missing_updates,omitempty"`
	// BeyondBound counts the updates that exceeded vap's bound on their own and were therefore sent alone.
	BeyondBound int64 `json:"beyond_bound,omitempty"`
	// Counters for jobs that continue during outages: clocks that ended in an outage, rows that were read beyond their
	// bound, the peak size of queued updates in bytes, and the time in nanoseconds that calls of the client waited
	// during outages.
	OutageClocks int64 `json:"outage_clocks,omitempty"`
	StaleRows    int64 `json:"stale_rows,omitempty"`
	QueuedBytes  int64 `json:"queued_bytes,omitempty"`
	OutageNs     int64 `json:"outage_ns,omitempty"`
	// Saved states that were given to a program although they were older than the last acknowledged one: their number,
	// and by how many clocks at most they were older.
	StatesLost  int64 `json:"states_lost,omitempty"`
	StatesOlder int64 `json:"states_older,omitempty"`
	// The worker's time since its program's first read, in nanoseconds, split into three disjoint parts. StalenessNs is
	// time waiting until MinClock (or, under vap, visibility to other slots) allows progress, including the transit of
	// the push that reports it. CommNs is all other time in calls that waited or ended a clock. ComputeNs is the rest:
	// the program's own time.
	StalenessNs int64 `json:"staleness_ns"`
	CommNs      int64 `json:"comm_ns"`
	ComputeNs   int64 `json:"compute_ns"`
}

// WorkerSnapshot is the state of a worker's client at one moment.
type WorkerSnapshot struct {
	Clock      Clock
	Counters   WorkerCounters
	Kept       int           // updates that it may have to resend
	Bytes      int64         // size of these updates
	Resent     int64         // updates that it has resent
	Outage     *WorkerOutage // shards it continues without; nil: all are available, or the job waits for them
	WaitReason string        // why a save or an append to the update log waits; "": none does
	StateErr   error         // why SaveState is limited to 1 MiB here; nil: the limit is 1 GiB
	Err        error         // why the client has ended; nil: it is running
}

// Equal reports whether all counters are equal.
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
