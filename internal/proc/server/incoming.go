package server

import (
	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/link"
	"github.com/perdure/perdure/internal/core/replica"
	"github.com/perdure/perdure/internal/data/wire"
)

// incomingCopy is a snapshot that is being received, by the goroutine that receives from its connection:
// what it has belongs to that goroutine, until it is whole.
type incomingCopy struct {
	*replica.Incoming
	Name link.Name // the life that it is of
	Pos  uint64    // of the sender's log
	part uint16    // the next piece's
}

// receiveCopy begins to receive the snapshot that a piece is of.
func receiveCopy(job *perdure.JobSpec, n link.Name, f *wire.Frame) *incomingCopy {
	return &incomingCopy{Incoming: replica.NewIncoming(job, n.Shard), Name: n, Pos: f.Request}
}

// copyFirst reports whether a piece is the first of a snapshot.
func copyFirst(f *wire.Frame) bool { return f.Part == 0 && isHead(f) }

func isHead(f *wire.Frame) bool { return f.Flags&wire.FlagNone != 0 }

// Expects counts a piece that is the next one; not ok: it is not.
func (in *incomingCopy) Expects(f *wire.Frame) (ok bool) {
	if in.part != f.Part || in.Pos != f.Request || isHead(f) == in.Whole() {
		return false
	}
	in.part++
	return true
}

// Land returns where the n bytes of the next frame are to lie; nil: nobody waits for that piece.
func (in *incomingCopy) Land(f *wire.Frame, n int) []byte {
	if in == nil || isHead(f) {
		return nil
	}
	if runs := in.Missing(); len(runs) > 0 && 0 < n && n <= len(runs[0]) {
		return runs[0][:n:n]
	}
	return nil
}

// Take takes the body of the piece that was expected, which may lie where it belongs already: then it
// is not the caller's any more. It reports whether the snapshot is whole.
func (in *incomingCopy) Take(f *wire.Frame, body []byte, b *frameBuffers) (whole bool, err error) {
	last := f.Flags&wire.FlagLast != 0
	if isHead(f) {
		err = in.AddWords(body, last)
		b.Keep(body)
		return false, err
	}
	inPlace, err := in.AddRows(body)
	if err != nil {
		return false, err
	}
	if !inPlace {
		b.Keep(body)
	}
	if !last {
		return false, nil
	}
	return true, in.Finish()
}
