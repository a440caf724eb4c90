package worker

import "github.com/perdure/perdure"

// CacheLeft returns how many bytes the client may still cache, and how many its
// cached rows take as they are counted.
func (c *Client) CacheLeft() (left, taken int) {
	l := c.lock()
	defer c.mu.Unlock()
	return l.reads.Cached()
}

// Cached reports whether a row has a place in the cache, and whether it is taken
// for one that is pushed.
func (t *Table) Cached(row perdure.RowID) (cached, pushed bool) {
	t.c.mu.Lock()
	defer t.c.mu.Unlock()
	l := t.rows.Inspect(row)
	return l.Known, l.Pushed
}

// Counters returns what the client's next status would say.
func (c *Client) Counters() perdure.WorkerCounters {
	l := c.lock()
	defer c.mu.Unlock()
	return l.status().Counters
}

// Held returns the bytes that the client counts of updates that are not acknowledged, of
// those that are and are retained, and of those that are in the log and shown; and what
// they are by what it keeps.
func (c *Client) Held() (counted, kept [3]int64) {
	l := c.lock()
	defer c.mu.Unlock()
	return l.out.ByteCounts()
}

// Keeps returns how many updates the client keeps.
func (c *Client) Keeps() (n int) {
	l := c.lock()
	defer c.mu.Unlock()
	n, _ = l.out.Kept()
	return n
}

// Named returns the cut that was named last, 0 if none was.
func (c *Client) Named() perdure.Clock {
	l := c.lock()
	defer c.mu.Unlock()
	return l.view.Named
}
