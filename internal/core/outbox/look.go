package outbox

// What stands here is how others see what is kept: who watches a worker, and tests, also of the worker.

// Keeps returns how many updates are kept, for whatever reason, and their bytes.
func (b *Box) Keeps() (n int, bytes int64) {
	bytes = b.unacked + b.retained
	for _, s := range b.shards {
		n, bytes = n+len(s.kept), bytes+s.shown
	}
	return n, bytes
}

// Held returns the bytes that are counted of updates that are not acknowledged, of those that
// are and are retained, and of those that are in the log and shown; and what they are by the
// updates that are kept. They are equal at all times.
func (b *Box) Held() (counted, kept [3]int64) {
	counted = [3]int64{b.unacked, b.retained}
	for _, s := range b.shards {
		counted[2] += s.shown
		counted[0] -= s.unacked // each shard's are compared with its own
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
