package worker

import "github.com/perdure/perdure"

// CacheLeft returns how many bytes the client may still cache, and how many its
// cached rows take as they are counted.
func (c *Client) CacheLeft() (left, taken int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.reads.Cached()
}

// Cached reports whether a row has a place in the cache, and whether it is taken
// for one that is pushed.
func (t *Table) Cached(row perdure.RowID) (cached, pushed bool) {
	t.c.mu.Lock()
	defer t.c.mu.Unlock()
	return t.rows.Has(row)
}

// Counters returns what the client's next status would say.
func (c *Client) Counters() perdure.WorkerCounters {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.status().Counters
}

// Held returns the bytes that the client counts of updates that are not acknowledged, of
// those that are and are retained, and of those that are in the log and shown; and what
// they are by what it keeps.
func (c *Client) Held() (counted, kept [3]int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	counted = [3]int64{c.keptBytes, c.retained}
	for _, sh := range c.shards {
		counted[2] += sh.shownBytes
		counted[0] -= sh.keptBytes // each shard's are compared with its own
		own := int64(0)
		for i, u := range sh.kept {
			switch {
			case i < sh.acked:
				kept[1] += u.bytes
			case u.logged:
				kept[2] += u.bytes
			case !u.open:
				own += u.bytes
			}
		}
		kept[0] += max(own-sh.keptBytes, sh.keptBytes-own)
	}
	return counted, kept
}

// Keeps returns how many updates the client keeps.
func (c *Client) Keeps() (n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, sh := range c.shards {
		n += len(sh.kept)
	}
	return n
}

// Named returns the cut that was named last, 0 if none was.
func (c *Client) Named() perdure.Clock {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.view.Named
}
