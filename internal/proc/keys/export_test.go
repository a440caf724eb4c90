package keys

import "time"

// SetClock gives a ring another wall clock, before it is used.
func (r *Ring) SetClock(clock func() time.Time) { r.clock = clock }
