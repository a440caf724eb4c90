package keys

import "time"

// SetClock sets a ring's wall clock. It must be called before the ring is used.
func (r *Ring) SetClock(clock func() time.Time) { r.clock = clock }
