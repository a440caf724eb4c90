//go:build linux

package agent

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/run/plain"
)

// Protocol is the version of what is said on the socket: one more for each change, a further call too. A program of
// another one is refused.
const Protocol = 3

// Packets on the socket: a head, and then text, of most bytes together. All numbers are little-endian.
const (
	headBytes  = 40
	packetMost = 64 << 10
)

// op says what a program asks for.
type op uint16

// The calls. What their four numbers and their text are, docs/formats/agent.md says.
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
)

// request is a call.
type request struct {
	op    op
	table uint16
	id    uint32   // the reply has it, too
	args  [4]int64 // addresses, numbers of rows, …
	text  []byte
}

var errPacket = errors.New("a packet that is none of this protocol")

// parse reads a packet. The text is the packet's memory.
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

// reply is the answer to a call.
type reply struct {
	code code
	args [4]int64
	text []byte // of an error what it says; else JSON, or nothing
}

// append writes the reply to a call. A text that is too long is cut.
func (r *reply) append(to []byte, id uint32) []byte {
	to = binary.LittleEndian.AppendUint16(to, uint16(r.code))
	to = binary.LittleEndian.AppendUint16(to, 0)
	to = binary.LittleEndian.AppendUint32(to, id)
	for _, a := range r.args {
		to = binary.LittleEndian.AppendUint64(to, uint64(a))
	}
	return append(to, r.text[:min(len(r.text), packetMost-headBytes)]...)
}

// code says how a call has ended.
type code uint16

// The codes of replies. A program makes exceptions of them.
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
)

// codes are those of errors: the first one that an error is.
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
	{perdure.ErrUnkept, codeUnkept},
	{perdure.ErrUsage, codeUsage},
	{perdure.ErrRefused, codeRefused},
	{context.Canceled, codeCancelled},
}

// failed is the reply to a call that ended with an error.
func failed(err error) reply {
	r := reply{code: codeOther, text: []byte(plain.Text(err))}
	for _, c := range codes {
		if errors.Is(err, c.is) {
			r.code = c.code
			break
		}
	}
	return r
}

// mistake is an error that a program can only have made itself.
func mistake(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{perdure.ErrUsage}, args...)...)
}
