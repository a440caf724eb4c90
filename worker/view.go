package worker

import "github.com/perdure/perdure"

// onDelta brings the client to what changed of the view that it has. An error is
// for the connection: whoever has missed something is told the whole view on the next
// one. It needs c.mu.
func (c *Client) onDelta(d *perdure.ViewDelta) error {
	if d.Revision <= c.view.Revision {
		return nil // heard before
	}
	v, err := d.Apply(&c.view)
	if err == nil {
		c.onView(v)
	}
	return err
}
