package control

import (
	"errors"
	"slices"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/perdure/perdure"
)

// check returns an error for a change that is invalid for every job.
func (s *Scale) check() error {
	switch {
	case s.Workers == 0 && len(s.Leave) == 0:
		return perdure.Usagef("set either the number of workers (workers) or the slots that leave (leave)")
	case s.Workers != 0 && len(s.Leave) > 0:
		return perdure.Usagef("set either the number of workers or the slots that leave, not both")
	case s.Workers < 0 || s.Workers > perdure.MaxSlots:
		return perdure.Usagef("invalid number of workers %d; choose 1 to %d", s.Workers, perdure.MaxSlots)
	case s.At < 0 || s.At > perdure.MaxClock:
		return perdure.Usagef("invalid clock %d; choose 1 to %d, or 0 for the next clock that no slot has started",
			s.At, perdure.MaxClock)
	}
	sorted := slices.Sorted(slices.Values(s.Leave))
	for i, slot := range sorted {
		switch {
		case slot < 0 || slot >= perdure.MaxSlots:
			return perdure.Usagef("there is no slot %d; slots are numbered from 0", slot)
		case i > 0 && sorted[i-1] == slot:
			return perdure.Usagef("slot %d is listed twice", slot)
		}
	}
	return nil
}

// parseNotice returns a preemption notice given in milliseconds; 0: none.
func parseNotice(ms int64) (time.Duration, error) {
	if ms < 0 || ms > MaxNotice.Milliseconds() {
		return 0, perdure.Usagef("invalid notice of %d ms; choose at most %d, or 0 for no time limit", ms,
			MaxNotice.Milliseconds())
	}
	return time.Duration(ms) * time.Millisecond, nil
}

// strictJSON is a JSON codec that rejects unknown fields. Scripts write this JSON by hand; a misspelled field would be
// ignored, and the call would do something else.
type strictJSON string

// Name implements connect.Codec.
func (c strictJSON) Name() string { return string(c) }

// Marshal implements connect.Codec.
func (strictJSON) Marshal(m any) ([]byte, error) {
	p, is := m.(proto.Message)
	if !is {
		return nil, errNoMessage
	}
	return protojson.Marshal(p)
}

// Unmarshal implements connect.Codec.
func (strictJSON) Unmarshal(text []byte, m any) error {
	p, is := m.(proto.Message)
	if !is {
		return errNoMessage
	}
	return protojson.Unmarshal(text, p)
}

var errNoMessage = errors.New("the message does not match the control API's schema")
