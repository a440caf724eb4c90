package protocol

import "github.com/perdure/perdure"

// Interval is a membership interval: the clocks From ≤ clock < Until in which a slot participates. In every applied
// vector, a slot that joins a running job at clock K starts with a count of K.
type Interval struct {
	From  perdure.Clock `json:"from,omitempty"`
	Until perdure.Clock `json:"until,omitempty"` // 0: no end
}

// Has reports whether the slot participates in clock c.
func (s Interval) Has(c perdure.Clock) bool { return c >= s.From && (s.Until == 0 || c < s.Until) }

// Clamp returns the count of clocks closest to c that the slot can have.
func (s Interval) Clamp(c perdure.Clock) perdure.Clock {
	if s.Until > 0 {
		c = min(c, s.Until)
	}
	return max(c, s.From)
}

// Clocks returns the number of clocks < end in which the slot participates.
func (s Interval) Clocks(end perdure.Clock) perdure.Clock {
	if s.Until > 0 {
		end = min(end, s.Until)
	}
	return max(0, end-s.From)
}
