package server

import (
	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/chain"
	"github.com/perdure/perdure/internal/core/replica"
	"github.com/perdure/perdure/internal/data/wire"
)

// incomingCopy is a snapshot that is being received. It belongs to the goroutine that receives from the connection
// until it is complete.
type incomingCopy struct {
	*replica.IncomingSnapshot
	Name      chain.Fence // the shard's generation and epoch
	Pos       uint64      // position in the sender's log
	nextPiece uint16      // number of the next piece
}

// newIncomingCopy starts receiving the snapshot whose first piece is f.
func newIncomingCopy(job *perdure.JobSpec, n chain.Fence, f *wire.Frame) *incomingCopy {
	return &incomingCopy{IncomingSnapshot: replica.NewIncomingSnapshot(job, n.Shard), Name: n, Pos: f.Request}
}

// isFirstPiece reports whether f is the first piece of a snapshot.
func isFirstPiece(f *wire.Frame) bool { return f.Part == 0 && isHead(f) }

func isHead(f *wire.Frame) bool { return f.Flags&wire.FlagNone != 0 }

// AcceptNext reports whether f is the next piece, and counts it if so.
func (in *incomingCopy) AcceptNext(f *wire.Frame) (ok bool) {
	if in.nextPiece != f.Part || in.Pos != f.Request || isHead(f) == in.HeaderComplete() {
		return false
	}
	in.nextPiece++
	return true
}

// Buffer returns the memory for the n bytes of the next frame, or nil if that piece is not expected.
func (in *incomingCopy) Buffer(f *wire.Frame, n int) []byte {
	if in == nil || isHead(f) {
		return nil
	}
	if runs := in.Missing(); len(runs) > 0 && 0 < n && n <= len(runs[0]) {
		return runs[0][:n:n]
	}
	return nil
}

// AddPiece processes the body of the expected piece. The body may already be in its final place, and then AddPiece owns
// it. AddPiece reports whether the snapshot is complete.
func (in *incomingCopy) AddPiece(f *wire.Frame, body []byte, b *frameBuffers) (whole bool, err error) {
	last := f.Flags&wire.FlagLast != 0
	if isHead(f) {
		err = in.AddHeader(body, last)
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
