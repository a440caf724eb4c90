// Package wire encodes and decodes the messages between the processes of a job. It is a codec only: no I/O, no
// state, safe for concurrent use.
//
// A message is one frame: a fixed header of 64 bytes, little-endian, then the
// payload. The generation, the epoch and the incarnation are in every header,
// so that a receiver can refuse what an abandoned course of training or a
// superseded process sends, whatever the payload says.
//
//	 0      4     magic "PRDR"
//	 4      1     version of this format (12)
//	 5      1     kind
//	 6      2     flags
//	 8      4     payload bytes
//	12      4     CRC-32C of header (with these 4 bytes zero) and payload
//	16      8     generation
//	24      8     epoch of the shard
//	32      8     clock
//	40      6     request: echoed in the answer
//	46      2     clocks n that the update is of, from its clock on (0: one)
//	48      4     slot (-1: none)
//	52      4     incarnation of the slot
//	56      4     shard (-1: none)
//	60      2     part i of the update, from 0
//	62      2     parts n of the update (0: not known yet, more follow)
//
// Invariant: for every frame f with Request ≤ MaxRequest, Decode(Encode(f)) gives f, and every single
// flipped bit of the encoding is refused.
package wire

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/perdure/perdure"
)

const (
	// Version of the message format. A peer of another version is refused.
	Version = 12
	// HeaderBytes is the size of a frame's header.
	HeaderBytes = 64
	// MaxPayload bounds a frame's payload, in bytes: a receiver closes the
	// connection of a peer that announces more.
	MaxPayload = 4 << 20
	// PartBytes is the payload size that senders aim to stay below: larger
	// updates are sent in parts, larger reads as several requests.
	PartBytes = 1 << 20
	// PromptBytes is the size of an update, headers left out, from which on servers
	// acknowledge it at once, asked or not: that costs little beside it, and its
	// sender keeps it until then.
	PromptBytes = 16 << 10
	// MaxUpdate bounds one slot's updates to one shard that are not applied yet, in
	// bytes with their headers: what a server keeps for it. A single update, and
	// what a worker has on the way before it, may each have half of that.
	MaxUpdate = 8 << 30
	// MaxRequest bounds a frame's request.
	MaxRequest = 1<<48 - 1
)

const magic = "PRDR"

// Kind says what a frame means.
type Kind uint8

// The kinds of frames. Payloads of control frames are as Control has it; those of
// data frames are described with their codecs.
const (
	KindHello   Kind = 1 // control, first frame of every connection: Hello
	KindWelcome Kind = 2 // control, answer to Hello: Welcome
	KindRefuse  Kind = 3 // control, last frame before the connection is closed: Refusal
	KindView    Kind = 4 // control, coordinator → all, after Welcome: words.View
	KindStatus  Kind = 5 // control, server → coordinator: words.ServerDelta
	// KindTable is control, worker → coordinator: perdure.TableSpec to create or attach; answered
	// in the next view.
	KindTable  Kind = 6
	KindReport Kind = 7  // control, worker → coordinator → supervisor: Report
	KindEvent  Kind = 8  // control, coordinator → supervisor: Event
	KindOrder  Kind = 9  // control, coordinator → supervisor, server or worker: Order
	KindExited Kind = 10 // control, supervisor, worker of itself, or host → coordinator: Exited
	// KindProgress is control, coordinator → supervisor: Progress.
	KindProgress Kind = 11
	// KindViewDelta is control, coordinator → server, worker or observer, after View:
	// words.ViewDelta. Whom it does not fit breaks the connection, and is welcomed anew.
	KindViewDelta Kind = 12
	// KindWorkerStatus is control, worker → coordinator: words.WorkerDelta.
	KindWorkerStatus Kind = 13

	// KindOpen is worker → server: opens a shard at (generation, epoch); clock is how many clocks
	// the slot has ended; no payload.
	KindOpen   Kind = 16
	KindOpened Kind = 17 // server → worker: the shard is ready; Counts payload
	KindGet    Kind = 18 // worker → server: rows wanted; header clock is the MinClock needed
	KindRows   Kind = 19 // server → worker: Rows payload; header clock is the content's MinClock
	// KindUpdate is worker → server: one part of an update, of all clocks < Until from clock on;
	// Blocks payload; FlagTicked on a resend.
	KindUpdate Kind = 20
	KindTick   Kind = 21 // worker → server: the staged update of this clock is to be applied; no payload
	KindAck    Kind = 22 // server → worker: Counts payload
	KindLoad   Kind = 23 // worker → server: the slot's saved state is wanted; header clock is the clock to work on
	KindState  Kind = 24 // server → worker: the slot's saved state, as saved; FlagNone when there is none
	KindMoved  Kind = 25 // server → worker: this process does not hold the shard at that generation and epoch
	// KindSync is worker → server: acknowledge at once, until the slot's updates of clocks < clock
	// are applied; no payload.
	KindSync Kind = 26
	// KindScan is worker → server: ids of stored rows of a sparse table wanted, from the First-th
	// stored row on, at most Count; header clock as for Get.
	KindScan Kind = 27
	KindIDs  Kind = 28 // server → worker: answer to KindScan; IDs payload
	// KindPush is server → worker: rows that changed, of those subscribed to; Push payload; header
	// clock as for Rows.
	KindPush Kind = 29
	KindDrop Kind = 30 // worker → server: these rows are not to be pushed any more; rows payload
	// KindSaw is worker → server, under vap: all rows that it may read from its cache are of the
	// state that a Push ended with, or newer; request is its seq.
	KindSaw Kind = 31

	// Between the members of a shard's chain. A log entry is an Update, a Tick or one
	// of the kinds from KindFence on; its request is its position in the shard's log.

	// KindFollow is predecessor → successor: follow me in this generation and epoch; request is
	// the position at which my log ends. Of a joiner clock, in these five kinds, is its Since.
	KindFollow Kind = 32
	// KindHave is successor → predecessor: I have all entries up to position request; FlagNone: I
	// have nothing, send a snapshot.
	KindHave      Kind = 33
	KindCommitted Kind = 34 // successor → predecessor: the tail has all entries up to position request
	// KindSnapshot is tail → joining replica: the next piece of the shard as of position request,
	// answered with KindHave; FlagNone, FlagLast.
	KindSnapshot Kind = 35
	KindLevel    Kind = 36 // tail → joining replica: up to position request you have been sent what I have
	KindFence    Kind = 37 // entry: incarnations of the slot before incarnation are refused; no payload
	KindDecide   Kind = 38 // entry: what becomes of them: their updates of clocks < clock count; no payload
	KindEnd      Kind = 39 // entry: no update of a clock ≥ clock counts; no payload
	KindAddTable Kind = 40 // entry: the shard has one more table; perdure.TableSpec; clock is its number
	KindBase     Kind = 41 // entry: the applied vector is raised to this; State payload
	KindPassCut  Kind = 42 // entry: the shard is saved at a cut, and goes on; words.Segment
	// KindRoster is entry: the slots take part in these spans from now on; []words.Span; clock
	// is View.Roster.
	KindRoster Kind = 43
	KindCut    Kind = 44 // entry: the shard is to be saved at the cut of clock, too; no payload
	// KindLife is of an update log only: an epoch has begun, and what is of an earlier
	// one's head counts no more; no payload.
	KindLife Kind = 45
	// KindEcho is worker or observer → coordinator or server: are you there? It comes back
	// as it is; no payload. One of a shard comes back if the shard is here in that life, with
	// FlagBehind or without.
	KindEcho Kind = 46
)

// Flags of a frame.
const (
	FlagTicked uint16 = 1 << 0 // Update: its sender has already decided to tick it
	FlagNone   uint16 = 1 << 1 // State: nothing was saved; Snapshot: it is of the head, not of the rows
	// FlagRepeats says that rows are in an Update more than once: the last delta of
	// a row counts, and has the earlier ones in it. The last part has the flag if any
	// needs it.
	FlagRepeats uint16 = 1 << 2
	FlagPrompt  uint16 = 1 << 3 // Update: somebody will wait for its acknowledgement, as if Sync came with it
	// FlagSubscribe asks that the rows of a Get be pushed whenever they change. It
	// holds for the connection.
	FlagSubscribe uint16 = 1 << 4
	// FlagLast says that with this Push all rows that are subscribed to are of its
	// state or newer; of a Snapshot, that it is the last piece of its kind.
	FlagLast uint16 = 1 << 5
	// FlagWrites says, of an Open, that only updates will be sent, and nothing is
	// to be acknowledged here.
	FlagWrites uint16 = 1 << 6
	// FlagBehind says, of an Echo of a shard, that it is known to lack updates that have been
	// made: it was away, and is still applying what came meanwhile.
	FlagBehind uint16 = 1 << 7
	// FlagPacked says that the values of Rows or of a Push are packed.
	FlagPacked uint16 = 1 << 8
)

// Header is a frame's fixed part. See the package comment for its layout.
type Header struct {
	Kind        Kind
	Flags       uint16
	Generation  perdure.Generation
	Epoch       perdure.Epoch
	Clock       perdure.Clock
	Request     uint64 // ≤ MaxRequest
	Clocks      uint16 // of an update: how many it is of; 0: one
	Slot        perdure.Slot
	Incarnation perdure.Incarnation
	Shard       perdure.ShardID
	Part, Parts uint16
}

// Until returns the clock after the last that an update is of: its clocks are Clock and
// those that follow, below Until.
func (h *Header) Until() perdure.Clock { return h.Clock + perdure.Clock(max(1, h.Clocks)) }

// Frame is one message.
type Frame struct {
	Header
	Payload []byte
	// Body is the rest of the payload: a sender may keep a message's bulk apart, so
	// that it is sent from where it lies. On the wire there is no seam.
	Body []byte
	// Release, if not nil, is called once when the transport that the frame was sent
	// on has no more use for Payload and Body: they are on their way, or never
	// will be.
	Release Releaser
	// Lent says that Body is only there until Send returns: of what is not written
	// by then the transport asks Release, a Keeper, for a copy.
	Lent bool
}

// Keeper is a Releaser of frames whose body is lent. Keep returns a copy of a
// part of the body that stays as it is until Release. It is called at most once
// for a frame.
type Keeper interface {
	Releaser
	Keep(body []byte) []byte
}

// Releaser takes back what a frame's bytes lie in. It is called from any
// goroutine and must not wait.
type Releaser interface{ Release() }

// PayloadBytes returns the payload's length, body included.
func (f *Frame) PayloadBytes() int { return len(f.Payload) + len(f.Body) }

// Errors of decoding. Each means that the connection cannot be used any more.
var (
	ErrMagic    = errors.New("wire: not a Perdure frame")
	ErrVersion  = errors.New("wire: other version")
	ErrTooLarge = errors.New("wire: payload too large")
	ErrChecksum = errors.New("wire: checksum mismatch")
	ErrPayload  = errors.New("wire: malformed payload")
)

// PutHeader writes the header of f, with the checksum over it and its payload,
// into dst[:HeaderBytes].
func PutHeader(dst []byte, f *Frame) {
	h := dst[:HeaderBytes]
	le := binary.LittleEndian
	copy(h, magic)
	h[4], h[5] = Version, byte(f.Kind)
	le.PutUint16(h[6:], f.Flags)
	le.PutUint32(h[8:], uint32(f.PayloadBytes()))
	le.PutUint32(h[12:], 0)
	le.PutUint64(h[16:], uint64(f.Generation))
	le.PutUint64(h[24:], uint64(f.Epoch))
	le.PutUint64(h[32:], uint64(f.Clock))
	le.PutUint64(h[40:], f.Request)
	le.PutUint16(h[46:], f.Clocks)
	le.PutUint32(h[48:], uint32(f.Slot))
	le.PutUint32(h[52:], uint32(f.Incarnation))
	le.PutUint32(h[56:], uint32(f.Shard))
	le.PutUint16(h[60:], f.Part)
	le.PutUint16(h[62:], f.Parts)
	le.PutUint32(h[12:], checksum(h, f.Payload, f.Body))
}

// Begins reports whether bytes begin as a frame does, of whatever version.
func Begins(b []byte) bool { return bytes.HasPrefix(b, []byte(magic)) }

func checksum(header, payload, body []byte) uint32 {
	return addCold(addCold(add(0, header), payload), body)
}

// ParseHeader reads the header in src[:HeaderBytes] into f and returns the
// number of payload bytes that follow. It does not verify the checksum, which
// covers the payload too: see Verify.
func ParseHeader(src []byte, f *Frame) (payloadBytes int, err error) {
	h := src[:HeaderBytes]
	le := binary.LittleEndian
	if string(h[:4]) != magic {
		return 0, fmt.Errorf("%w: it begins with % x", ErrMagic, h[:4])
	}
	if h[4] != Version {
		return 0, fmt.Errorf("%w: the peer speaks wire version %d, this process version %d; install the same version "+
			"of Perdure on every machine", ErrVersion, h[4], Version)
	}
	n := le.Uint32(h[8:])
	if n > MaxPayload {
		return 0, fmt.Errorf("%w: %d bytes announced, %d allowed", ErrTooLarge, n, MaxPayload)
	}
	f.Header = Header{
		Kind:        Kind(h[5]),
		Flags:       le.Uint16(h[6:]),
		Generation:  perdure.Generation(le.Uint64(h[16:])),
		Epoch:       perdure.Epoch(le.Uint64(h[24:])),
		Clock:       perdure.Clock(le.Uint64(h[32:])),
		Request:     le.Uint64(h[40:]) & MaxRequest,
		Clocks:      le.Uint16(h[46:]),
		Slot:        perdure.Slot(le.Uint32(h[48:])),
		Incarnation: perdure.Incarnation(le.Uint32(h[52:])),
		Shard:       perdure.ShardID(le.Uint32(h[56:])),
		Part:        le.Uint16(h[60:]),
		Parts:       le.Uint16(h[62:]),
	}
	return int(n), nil
}

// Verify checks the checksum of a header as it was received and its payload,
// which may lie in two pieces. It overwrites the checksum field of header with
// zeros.
func Verify(header, payload, body []byte) error {
	s := BeginSum(header)
	s.Add(payload)
	s.Add(body)
	return s.Verify()
}

// Sum is the checksum of a frame whose payload is received piece by piece: each
// is best added while the processor's cache still holds it.
type Sum struct{ want, have uint32 }

// BeginSum begins with a header as it was received. It overwrites the checksum
// field of header with zeros.
func BeginSum(header []byte) Sum {
	want := binary.LittleEndian.Uint32(header[12:])
	binary.LittleEndian.PutUint32(header[12:], 0)
	return Sum{want: want, have: add(0, header[:HeaderBytes])}
}

// Add adds the next piece of the payload.
func (s *Sum) Add(piece []byte) { s.have = add(s.have, piece) }

// Verify gives ErrChecksum unless what was added is the whole payload, unchanged.
func (s *Sum) Verify() error {
	if s.have != s.want {
		return fmt.Errorf("%w: frame says %08x, its bytes give %08x", ErrChecksum, s.want, s.have)
	}
	return nil
}

// Append appends the whole frame's bytes to dst.
func Append(dst []byte, f *Frame) []byte {
	n := len(dst)
	dst = append(dst, make([]byte, HeaderBytes)...)
	PutHeader(dst[n:], f)
	return append(append(dst, f.Payload...), f.Body...)
}

// Decode reads one whole frame, as an update log has it, from the start of src
// and returns the rest of src. The frame's payload aliases src.
func Decode(src []byte, f *Frame) (rest []byte, err error) {
	if len(src) < HeaderBytes {
		return src, fmt.Errorf("%w: %d bytes, a header has %d", ErrPayload, len(src), HeaderBytes)
	}
	var header [HeaderBytes]byte
	copy(header[:], src)
	n, err := ParseHeader(header[:], f)
	if errors.Is(err, ErrVersion) {
		err = fmt.Errorf("%w: a frame has wire version %d, this process reads version %d; use the version of Perdure "+
			"that wrote it", ErrVersion, header[4], Version)
	}
	if err != nil {
		return src, err
	}
	if len(src)-HeaderBytes < n {
		return src, fmt.Errorf("%w: %d payload bytes announced, %d there", ErrPayload, n, len(src)-HeaderBytes)
	}
	f.Payload = src[HeaderBytes : HeaderBytes+n : HeaderBytes+n]
	if err := Verify(header[:], f.Payload, nil); err != nil {
		return src, err
	}
	return src[HeaderBytes+n:], nil
}
