// Package wire encodes and decodes the messages between the processes of a job, and defines which role may send which
// message. It is a codec only: no I/O, no state, safe for concurrent use.
//
// A message is one frame: a fixed header of 64 bytes, little-endian, and then the payload. Every header contains the
// generation, the epoch and the incarnation, so that a receiver can reject messages of an earlier generation or of a
// superseded process without decoding the payload.
//
//	 0      4     magic "PRDR"
//	 4      1     version of this format (17)
//	 5      1     kind
//	 6      2     flags
//	 8      4     payload bytes
//	12      4     CRC-32C of header (with these 4 bytes zero) and payload
//	16      8     generation
//	24      8     epoch of the shard
//	32      8     clock
//	40      6     request: echoed in the response
//	46      2     number n of clocks in the update, from its clock on (0: one)
//	48      4     slot (-1: none)
//	52      4     incarnation of the slot
//	56      4     shard (-1: none)
//	60      2     part i of the update, from 0
//	62      2     parts n of the update (0: unknown yet, more follow)
//
// Invariant: for every frame f with Request ≤ MaxRequest, Decode(Append(nil, f)) returns f, and every single flipped
// bit of the encoding is detected.
package wire

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/perdure/perdure"
)

const (
	// Version is the version of the message format. Peers with another version are rejected.
	Version = 17
	// HeaderBytes is the size of a frame's header.
	HeaderBytes = 64
	// MaxPayload is the max size of a frame's payload in bytes. A receiver closes the connection of a peer that
	// announces more.
	MaxPayload = 4 << 20
	// PartBytes is the payload size that senders aim to stay below: larger updates are sent in parts, larger reads as
	// several requests.
	PartBytes = 1 << 20
	// AckNowBytes is the size of an update, without headers, from which on servers acknowledge it immediately, even
	// without a request. For such an update an acknowledgement is cheap, and the sender holds its memory until it
	// arrives.
	AckNowBytes = 16 << 10
	// MaxUpdateBytes is the max size in bytes, including headers, of the unapplied updates of one slot to one shard,
	// which a server holds in memory. A single update may have half of that, and so may the earlier updates that the
	// worker has in flight.
	MaxUpdateBytes = 8 << 30
	// MaxRequest is the max value of a frame's request.
	MaxRequest = 1<<48 - 1
)

const magic = "PRDR"

// Kind is the type of a frame.
type Kind uint8

// The kinds of frames. Control encodes the payloads of control frames; those of data frames are described with their
// codecs.
const (
	KindHello   Kind = 1 // control, first frame of every connection: Hello
	KindWelcome Kind = 2 // control, response to Hello: Welcome
	KindRefuse  Kind = 3 // control, last frame before the connection is closed: Refusal
	KindView    Kind = 4 // control, coordinator → all, after Welcome: words.View
	KindStatus  Kind = 5 // control, server → coordinator: words.ServerDelta
	// KindTable is control, worker → coordinator: perdure.TableSpec to create or attach; the next view contains the
	// result.
	KindTable  Kind = 6
	KindReport Kind = 7  // control, worker → coordinator → supervisor: Report
	KindEvent  Kind = 8  // control, coordinator → supervisor: Event
	KindOrder  Kind = 9  // control, coordinator → supervisor, server or worker: Order
	KindExited Kind = 10 // control, supervisor, worker of itself, or host → coordinator: Exited
	// KindProgress is control, coordinator → supervisor: Progress.
	KindProgress Kind = 11
	// KindViewDelta is control, coordinator → server, worker or observer, after View: words.ViewDelta. A receiver to
	// whose view it does not apply closes the connection and gets a new Welcome.
	KindViewDelta Kind = 12
	// KindWorkerStatus is control, worker → coordinator: words.WorkerDelta.
	KindWorkerStatus Kind = 13

	// KindOpen is worker → server: open a shard at (generation, epoch); clock is the slot's count of finished clocks;
	// no payload.
	KindOpen   Kind = 16
	KindOpened Kind = 17 // server → worker: the shard is ready; Counts payload
	KindGet    Kind = 18 // worker → server: read rows; header clock is the MinClock needed
	KindRows   Kind = 19 // server → worker: Rows payload; header clock is the content's MinClock
	// KindUpdate is worker → server: one part of an update of all clocks from clock up to below Until; Blocks payload;
	// FlagTicked on a resend.
	KindUpdate Kind = 20
	KindTick   Kind = 21 // worker → server: apply the staged updates up to this clock; no payload
	KindAck    Kind = 22 // server → worker: Counts payload
	KindLoad   Kind = 23 // worker → server: read the slot's state; header clock is the clock to work on
	KindState  Kind = 24 // server → worker: the slot's state, as saved; FlagNone if there is none
	KindMoved  Kind = 25 // server → worker: this process does not hold the shard at that generation and epoch
	// KindSync is worker → server: acknowledge immediately, until the slot's updates of clocks < clock are applied; no
	// payload.
	KindSync Kind = 26
	// KindScan is worker → server: read the ids of stored rows of a sparse table, at most Count from the First-th on;
	// header clock as for Get.
	KindScan Kind = 27
	KindIDs  Kind = 28 // server → worker: response to KindScan; IDs payload
	// KindPush is server → worker: changed rows to which the worker subscribes; Push payload; header clock as for Rows.
	KindPush        Kind = 29
	KindUnsubscribe Kind = 30 // worker → server: unsubscribe from these rows; rows payload
	// KindSeen is worker → server, under vap: all rows in the worker's cache that it may read have the state at the end
	// of a Push, or a newer one; request is the seq of that Push.
	KindSeen Kind = 31

	// Between the members of a shard's chain. A log entry is an Update, a Tick or one of the kinds from KindFence on;
	// its request is its position in the shard's log.

	// KindFollow is predecessor → successor: follow me in this generation and epoch; request is the position at which
	// my log ends. For a joiner, clock is its Since, in this kind and the next four.
	KindFollow Kind = 32
	// KindHave is successor → predecessor: I have all entries up to position request; with FlagNone I have none, send a
	// snapshot.
	KindHave      Kind = 33
	KindCommitted Kind = 34 // successor → predecessor: the tail has all entries up to position request
	// KindSnapshot is tail → joiner: the next piece of the shard's state at position request, acknowledged with
	// KindHave; FlagNone, FlagLast.
	KindSnapshot Kind = 35
	KindCaughtUp Kind = 36 // tail → joiner: you have been sent all that I have up to position request
	KindFence    Kind = 37 // entry: earlier incarnations of the slot are rejected; no payload
	KindDecide   Kind = 38 // entry: the decision about them: their updates of clocks < clock count; no payload
	KindEnd      Kind = 39 // entry: no update of a clock ≥ clock counts; no payload
	KindAddTable Kind = 40 // entry: add a table to the shard; perdure.TableSpec; clock is its number
	KindBase     Kind = 41 // entry: raise the applied vector to this one; State payload
	KindPassCut  Kind = 42 // entry: the shard is saved at a cut and continues; words.Segment
	// KindMembership is entry: the slots' membership intervals from now on; []words.Interval; clock is View.Roster.
	KindMembership Kind = 43
	// KindCut is entry: save the shard also at the cut of clock; no payload, or the clocks of a cut by slot, which
	// ends a hold.
	KindCut Kind = 44
	// KindLife occurs only in an update log: an epoch has started, and later entries of an earlier epoch's head do not
	// count; no payload.
	KindLife Kind = 45
	// KindEcho is worker or observer → coordinator or server: a probe that the receiver returns unchanged; no payload.
	// A probe of a shard is returned if this process holds the shard in that incarnation, with or without
	// FlagCatchingUp.
	KindEcho Kind = 46
	KindHold Kind = 47 // entry: apply no update until the cut by slot, or until clock is 0; no payload
)

// Flags of a frame.
const (
	FlagTicked uint16 = 1 << 0 // Update: the sender has already decided to tick it
	FlagNone   uint16 = 1 << 1 // State: nothing was saved; Snapshot: the piece belongs to the head, not to the rows
	// FlagDuplicateRows says that rows occur more than once in an Update: the last delta of a row counts and includes
	// the earlier ones. If any part needs the flag, the last part has it.
	FlagDuplicateRows uint16 = 1 << 2
	FlagAckNow        uint16 = 1 << 3 // Update: the sender will wait for the acknowledgement, as if followed by Sync
	// FlagSubscribe asks for a push of the rows of a Get whenever they change. It holds for the connection.
	FlagSubscribe uint16 = 1 << 4
	// FlagLast says that after this Push all subscribed rows have its state or a newer one; for a Snapshot, that it is
	// the last piece of its kind.
	FlagLast uint16 = 1 << 5
	// FlagWriteOnly says, for an Open, that the connection carries only updates and needs no acknowledgements.
	FlagWriteOnly uint16 = 1 << 6
	// FlagCatchingUp says, for an Echo of a shard, that the shard is known to lack updates: it was unavailable and is
	// still applying those made in the meantime.
	FlagCatchingUp uint16 = 1 << 7
	// FlagPacked says that the values of a Rows or Push frame are packed.
	FlagPacked uint16 = 1 << 8
	// FlagBF16 and FlagInt8 ask, of a Get, for rounded values, and say, of Rows, that they are rounded. An answer may
	// have neither flag, although its request had one: see [EncodingOf].
	FlagBF16 uint16 = 1 << 9
	FlagInt8 uint16 = 1 << 10
)

// Header is a frame's fixed part. See the package comment for its layout.
type Header struct {
	Kind        Kind
	Flags       uint16
	Generation  perdure.Generation
	Epoch       perdure.Epoch
	Clock       perdure.Clock
	Request     uint64 // ≤ MaxRequest
	Clocks      uint16 // of an update: number of clocks; 0: one
	Slot        perdure.Slot
	Incarnation perdure.Incarnation
	Shard       perdure.ShardID
	Part, Parts uint16
}

// Until returns the clock after the last one of an update: the update consists of the clocks from Clock up to below
// Until.
func (h *Header) Until() perdure.Clock { return h.Clock + perdure.Clock(max(1, h.Clocks)) }

// Frame is one message.
type Frame struct {
	Header
	Payload []byte
	// Body is the rest of the payload. A sender may keep a message's bulk separate, so that it is sent without a copy.
	// The encoding does not show the division.
	Body []byte
	// Release, if not nil, is called once when the transport no longer needs Payload and Body, because they were sent
	// or never will be.
	Release Releaser
	// Lent says that Body is valid only until Send returns. The transport then asks Release, a Keeper, for a copy of
	// the unsent rest.
	Lent bool
}

// Keeper is the Releaser of a frame whose body is lent. Keep returns a copy of part of the body that stays unchanged
// until Release. It is called at most once per frame.
type Keeper interface {
	Releaser
	Keep(body []byte) []byte
}

// Releaser takes back the memory of a frame's bytes. It may be called from any goroutine and must not block.
type Releaser interface{ Release() }

// PayloadBytes returns the payload's length, including the body.
func (f *Frame) PayloadBytes() int { return len(f.Payload) + len(f.Body) }

// Errors of decoding. After any of them the connection must be closed.
var (
	ErrMagic    = errors.New("wire: not a Perdure frame")
	ErrVersion  = errors.New("wire: other version")
	ErrTooLarge = errors.New("wire: payload too large")
	ErrChecksum = errors.New("wire: checksum mismatch")
	ErrPayload  = errors.New("wire: malformed payload")
)

// PutHeader writes the header of f, with the checksum of header and payload, into dst[:HeaderBytes].
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

// HasMagic reports whether b starts like a frame, of any version.
func HasMagic(b []byte) bool { return bytes.HasPrefix(b, []byte(magic)) }

func checksum(header, payload, body []byte) uint32 {
	return addCold(addCold(add(0, header), payload), body)
}

// ParseHeader reads the header in src[:HeaderBytes] into f and returns the number of payload bytes that follow. It does
// not verify the checksum, which also covers the payload: see Verify.
func ParseHeader(src []byte, f *Frame) (payloadBytes int, err error) {
	h := src[:HeaderBytes]
	le := binary.LittleEndian
	if string(h[:4]) != magic {
		return 0, fmt.Errorf("%w: it starts with % x", ErrMagic, h[:4])
	}
	if h[4] != Version {
		return 0, fmt.Errorf("%w: the peer speaks wire version %d, but this process speaks version %d; install the "+
			"same version of Perdure on every machine", ErrVersion, h[4], Version)
	}
	n := le.Uint32(h[8:])
	if n > MaxPayload {
		return 0, fmt.Errorf("%w: %d bytes announced, but only %d allowed", ErrTooLarge, n, MaxPayload)
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

// Verify checks the checksum of a received header and its payload, which may be in two pieces. It overwrites the
// checksum field of header with zeros.
func Verify(header, payload, body []byte) error {
	s := NewSum(header)
	s.Add(payload)
	s.Add(body)
	return s.Verify()
}

// Sum computes the checksum of a frame whose payload arrives piece by piece. Each piece is best added while it is in
// the processor's cache.
type Sum struct{ want, have uint32 }

// NewSum returns the Sum of a received header. It overwrites the checksum field of header with zeros.
func NewSum(header []byte) Sum {
	want := binary.LittleEndian.Uint32(header[12:])
	binary.LittleEndian.PutUint32(header[12:], 0)
	return Sum{want: want, have: add(0, header[:HeaderBytes])}
}

// Add adds the next piece of the payload.
func (s *Sum) Add(piece []byte) { s.have = add(s.have, piece) }

// Verify returns ErrChecksum unless the added pieces are the whole payload, unchanged.
func (s *Sum) Verify() error {
	if s.have != s.want {
		return fmt.Errorf("%w: recorded %08x, computed %08x", ErrChecksum, s.want, s.have)
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

// Decode reads one complete frame, as stored in an update log, from the start of src and returns the rest of src. The
// frame's payload aliases src.
func Decode(src []byte, f *Frame) (rest []byte, err error) {
	if len(src) < HeaderBytes {
		return src, fmt.Errorf("%w: %d bytes, but a header has %d", ErrPayload, len(src), HeaderBytes)
	}
	var header [HeaderBytes]byte
	copy(header[:], src)
	n, err := ParseHeader(header[:], f)
	if errors.Is(err, ErrVersion) {
		err = fmt.Errorf("%w: the frame has wire version %d, but this process reads version %d; use the version of "+
			"Perdure that wrote it", ErrVersion, header[4], Version)
	}
	if err != nil {
		return src, err
	}
	if len(src)-HeaderBytes < n {
		return src, fmt.Errorf("%w: %d payload bytes announced, but %d present", ErrPayload, n, len(src)-HeaderBytes)
	}
	f.Payload = src[HeaderBytes : HeaderBytes+n : HeaderBytes+n]
	if err := Verify(header[:], f.Payload, nil); err != nil {
		return src, err
	}
	return src[HeaderBytes+n:], nil
}
