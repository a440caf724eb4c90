package outbox

// These methods let others observe the kept updates: the worker's metrics, and tests of this package and of the worker.

// Kept returns the number of updates that are kept for any reason, and their bytes.
func (b *Outbox) Kept() (n int, bytes int64) {
	bytes = b.unacked + b.retained
	for _, s := range b.shards {
		n, bytes = n+len(s.kept), bytes+s.loggedBytes
	}
	return n, bytes
}

// ByteCounts returns the bytes of three kinds of updates: unacknowledged, acknowledged and retained, and logged but not
// yet applied. counted has the values of the counters, and kept the sums over the updates. They are always equal.
func (b *Outbox) ByteCounts() (counted, kept [3]int64) {
	counted = [3]int64{b.unacked, b.retained}
	for _, s := range b.shards {
		counted[2] += s.loggedBytes
		counted[0] -= s.unacked // compare each shard's with its own updates
		own := int64(0)
		for i, u := range s.kept {
			switch {
			case i < s.acked:
				kept[1] += u.bytes
			case u.logged:
				kept[2] += u.bytes
			case u.phase != Open:
				own += u.bytes
			}
		}
		kept[0] += max(own-s.unacked, s.unacked-own)
	}
	return counted, kept
}
