//go:build linux

package agent

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/run/humanize"
)

// Protocol is the version of the socket protocol. Every change increments it, including a new call. Programs with
// another version are rejected.
const Protocol = 10

// A packet on the socket consists of a header and text, of at most maxPacket bytes together. All numbers are
// little-endian.
const (
	headBytes = 40
	maxPacket = 64 << 10
)

// op is the operation of a call.
type op uint16

// The calls. docs/formats/agent.md specifies their four numbers and their text.
const (
	opHello op = iota + 1
	opChannel
	opCancel
	opMap
	opUnmap
	opTable
	opGetRun
	opGetRows
	opIncRun
	opIncRows
	opPrefetch
	opFlush
	opForget
	opWeigh
	opStored
	opClock
	opNow
	opSettle
	opAwaitSlots
	opSaveState
	opLoadState
	opFetch
	opReport
	opEndJob
	opFinish
	opGoodbye
	opLend
	opDeltas
	opAt
	opStreamState
	opStatePiece
	opCopied
	opRound
)

// The flags of opGetRun.
const (
	untilCopy = 1 << iota // it ends when another process needs a copy of the shared state
	asBF16                // servers round the rows
	asInt8
)

// request is a call.
type request struct {
	op    op
	table uint16
	id    uint32   // also in the reply
	args  [4]int64 // addresses, numbers of rows, and so on
	text  []byte
}

var errPacket = errors.New("invalid packet")

// parse reads a packet. The text refers to the packet's memory.
func parse(packet []byte) (r request, err error) {
	if len(packet) < headBytes {
		return r, errPacket
	}
	r.op, r.table = op(binary.LittleEndian.Uint16(packet)), binary.LittleEndian.Uint16(packet[2:])
	r.id = binary.LittleEndian.Uint32(packet[4:])
	for i := range r.args {
		r.args[i] = int64(binary.LittleEndian.Uint64(packet[8+8*i:]))
	}
	r.text = packet[headBytes:]
	return r, nil
}

// reply is the reply to a call.
type reply struct {
	code code
	args [4]int64
	text []byte // an error message, JSON, or nothing
}

// append appends the reply to a call, with its text truncated if necessary.
func (r *reply) append(to []byte, id uint32) []byte {
	to = binary.LittleEndian.AppendUint16(to, uint16(r.code))
	to = binary.LittleEndian.AppendUint16(to, 0)
	to = binary.LittleEndian.AppendUint32(to, id)
	for _, a := range r.args {
		to = binary.LittleEndian.AppendUint64(to, uint64(a))
	}
	return append(to, r.text[:min(len(r.text), maxPacket-headBytes)]...)
}

// code is the result of a call.
type code uint16

// The result codes. Programs turn them into exceptions.
const (
	codeOK code = iota
	codeUsage
	codeRolledBack
	codeFenced
	codeStopped
	codeDone
	codeLost
	codeRefused
	codeNonFinite
	codeBound
	codeUnkept
	codeCancelled
	codeOther
	codeCopyWanted
)

// codes maps errors to result codes. The first match counts.
var codes = []struct {
	is   error
	code code
}{
	{perdure.ErrRolledBack, codeRolledBack},
	{perdure.ErrFenced, codeFenced},
	{perdure.ErrDone, codeDone},
	{perdure.ErrStopped, codeStopped},
	{perdure.ErrLost, codeLost},
	{perdure.ErrNonFinite, codeNonFinite},
	{perdure.ErrBound, codeBound},
	{perdure.ErrNoCopy, codeUnkept},
	{perdure.ErrUsage, codeUsage},
	{perdure.ErrRefused, codeRefused},
	{errCopyWanted, codeCopyWanted},
	{context.Canceled, codeCancelled},
}

// errCopyWanted ends a read that would wait while another process waits for a copy of the shared state.
var errCopyWanted = errors.New("another process needs a copy of the shared state")

// failed returns the reply to a call that ended with an error.
func failed(err error) reply {
	r := reply{code: codeOther, text: []byte(humanize.ErrorText(err))}
	for _, c := range codes {
		if errors.Is(err, c.is) {
			r.code = c.code
			break
		}
	}
	return r
}

// usageErrorf returns an error that only a bug in the program can cause.
func usageErrorf(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{perdure.ErrUsage}, args...)...)
}
