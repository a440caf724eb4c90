package perdure

// Span says in which clocks a slot takes part: From ≤ clock < Until. A slot that
// joins a running job at clock K counts K clocks from the beginning, in every applied
// vector.
type Span struct {
	From  Clock `json:"from,omitempty"`
	Until Clock `json:"until,omitempty"` // 0: no end
}

// Has reports whether the slot takes part in clock c.
func (s Span) Has(c Clock) bool { return c >= s.From && (s.Until == 0 || c < s.Until) }

// Clamp returns the count of clocks that is nearest to c and that the slot can have.
func (s Span) Clamp(c Clock) Clock {
	if s.Until > 0 {
		c = min(c, s.Until)
	}
	return max(c, s.From)
}

// Clocks returns how many clocks < end the slot takes part in.
func (s Span) Clocks(end Clock) Clock {
	if s.Until > 0 {
		end = min(end, s.Until)
	}
	return max(0, end-s.From)
}

// Spans returns when each slot takes part.
func (v *View) Spans() []Span {
	spans := make([]Span, len(v.Slots))
	for i := range v.Slots {
		spans[i] = v.Slots[i].Span
	}
	return spans
}

// Share returns how many slots take part in clock c, and how many of them come before
// the given one: a pure function of the slots' spans. Data that is shared out by it is
// shared out among those who are there.
func (v *View) Share(slot Slot, c Clock) (rank, of int) {
	for i := range v.Slots {
		if !v.Slots[i].Has(c) {
			continue
		}
		if of++; Slot(i) < slot {
			rank++
		}
	}
	return rank, of
}

// Begin returns the clock at which a slot stood when the view's generation began.
func (v *View) Begin(slot Slot) Clock { return v.Slots[slot].Clamp(v.Cut) }

// EndOf returns the clock at which a slot's work ends, with its own span or with the
// job; 0: not known yet.
func (v *View) EndOf(slot Slot) Clock {
	if until := v.Slots[slot].Until; until > 0 && (v.End == 0 || until < v.End) {
		return until
	}
	return v.End
}
