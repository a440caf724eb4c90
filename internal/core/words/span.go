package words

import "github.com/perdure/perdure"

// Span says in which clocks a slot takes part: From ≤ clock < Until. A slot that
// joins a running job at clock K counts K clocks from the beginning, in every applied
// vector.
type Span struct {
	From  perdure.Clock `json:"from,omitempty"`
	Until perdure.Clock `json:"until,omitempty"` // 0: no end
}

// Has reports whether the slot takes part in clock c.
func (s Span) Has(c perdure.Clock) bool { return c >= s.From && (s.Until == 0 || c < s.Until) }

// Clamp returns the count of clocks that is nearest to c and that the slot can have.
func (s Span) Clamp(c perdure.Clock) perdure.Clock {
	if s.Until > 0 {
		c = min(c, s.Until)
	}
	return max(c, s.From)
}

// Clocks returns how many clocks < end the slot takes part in.
func (s Span) Clocks(end perdure.Clock) perdure.Clock {
	if s.Until > 0 {
		end = min(end, s.Until)
	}
	return max(0, end-s.From)
}
