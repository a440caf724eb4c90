package runs

import (
	"encoding/binary"
	"hash/crc32"
	"io"
	"math"

	"google.golang.org/protobuf/encoding/protowire"
)

// eventWriter writes an event file for TensorBoard: records of a TFRecord file, each with an Event message
// (tensorflow/core/util/event.proto). It writes only the parts that scalars need.
type eventWriter struct {
	w   io.Writer
	err error // the first error
}

// scalar is a number and its tag in TensorBoard.
type scalar struct {
	tag   string
	value float64
}

// Field numbers of Event, Summary and Summary.Value.
const (
	eventWallTime    = 1 // double
	eventStep        = 2 // int64
	eventFileVersion = 3 // string
	eventSummary     = 5
	summaryValue     = 1
	valueTag         = 1 // string
	valueSimple      = 2 // float
)

func newEventWriter(w io.Writer, seconds float64) *eventWriter {
	b := &eventWriter{w: w}
	e := protowire.AppendTag(event(seconds), eventFileVersion, protowire.BytesType)
	b.record(protowire.AppendString(e, "brain.Event:2"))
	return b
}

// event starts an event at a time in seconds since 1970.
func event(seconds float64) []byte {
	return protowire.AppendFixed64(protowire.AppendTag(nil, eventWallTime, protowire.Fixed64Type),
		math.Float64bits(seconds))
}

// add writes the numbers of one step.
func (b *eventWriter) add(seconds float64, step int64, scalars []scalar) {
	if len(scalars) == 0 {
		return
	}
	var summary []byte
	for _, s := range scalars {
		v := protowire.AppendString(protowire.AppendTag(nil, valueTag, protowire.BytesType), s.tag)
		v = protowire.AppendFixed32(protowire.AppendTag(v, valueSimple, protowire.Fixed32Type),
			math.Float32bits(float32(s.value)))
		summary = protowire.AppendBytes(protowire.AppendTag(summary, summaryValue, protowire.BytesType), v)
	}
	e := protowire.AppendVarint(protowire.AppendTag(event(seconds), eventStep, protowire.VarintType), uint64(step))
	b.record(protowire.AppendBytes(protowire.AppendTag(e, eventSummary, protowire.BytesType), summary))
}

// record writes a record: its length, a checksum of the length, its bytes, and a checksum of these.
func (b *eventWriter) record(data []byte) {
	if b.err != nil {
		return
	}
	head := binary.LittleEndian.AppendUint64(nil, uint64(len(data)))
	all := binary.LittleEndian.AppendUint32(head, masked(head))
	all = append(all, data...)
	all = binary.LittleEndian.AppendUint32(all, masked(data))
	_, b.err = b.w.Write(all)
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// masked returns TFRecord's masked checksum. Rotating and adding a constant avoids problems with the checksum of data
// that contains checksums.
func masked(b []byte) uint32 {
	c := crc32.Checksum(b, castagnoli)
	return (c>>15 | c<<17) + 0xa282ead8
}
