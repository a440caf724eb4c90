package worker

import "github.com/perdure/perdure"

// CacheLeft returns the number of bytes that the client may still cache, and the number that its cached rows use.
func (c *Client) CacheLeft() (left, taken int) {
	l := c.lock()
	defer c.mu.Unlock()
	return l.reads.Cached()
}

// Cached reports whether a row is cached, and whether the client expects pushes of it.
func (t *Table) Cached(row perdure.RowID) (cached, pushed bool) {
	t.c.mu.Lock()
	defer t.c.mu.Unlock()
	l := t.rows.Inspect(row)
	return l.Known, l.Pushed
}

// Counters returns the counters of the client's next report.
func (c *Client) Counters() perdure.WorkerCounters {
	l := c.lock()
	defer c.mu.Unlock()
	return l.status().Counters
}

// Held returns the client's byte counts of updates that are not acknowledged, of acknowledged ones that are retained,
// and of those in the update log that are kept for reads. kept holds the same sums computed from the stored updates.
func (c *Client) Held() (counted, kept [3]int64) {
	l := c.lock()
	defer c.mu.Unlock()
	return l.out.ByteCounts()
}

// Keeps returns the number of updates that the client stores.
func (c *Client) Keeps() (n int) {
	l := c.lock()
	defer c.mu.Unlock()
	n, _ = l.out.Kept()
	return n
}

// Named returns the last named cut, or 0 if there was none.
func (c *Client) Named() perdure.Clock {
	l := c.lock()
	defer c.mu.Unlock()
	return l.view.Named
}
