package updatelog

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"strings"

	"github.com/perdure/perdure/internal/data/disk"
)

// Version is the version of the record format that this package writes.
const Version = 1

// The layout of a record. See docs/formats/log.md.
const (
	recordMagic  = "pulr"
	headerSize   = 48 // without the job ID that follows it
	sumOffset    = 12 // the checksum covers all bytes except its own four
	lengthPrefix = 8  // precedes each entry of a group
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Header is the header of a record.
type Header struct {
	Job      string
	Shard    int
	Producer uint64 // random ID of the Log value that wrote the record
	// Number of the group, counting the producer's groups for this shard from 1; a resent group has a new number.
	Group uint64
	Index uint32 // of the record within its group, from 0
	Count uint32 // number of records in the group
}

// appendHeader appends a record's header, without its checksum, to b.
func appendHeader(b []byte, h Header, payload int) []byte {
	b = append(b, recordMagic...)
	b = binary.LittleEndian.AppendUint16(b, Version)
	b = binary.LittleEndian.AppendUint16(b, uint16(len(h.Job)))
	b = binary.LittleEndian.AppendUint32(b, uint32(payload))
	b = binary.LittleEndian.AppendUint32(b, 0) // the checksum
	b = binary.LittleEndian.AppendUint64(b, h.Producer)
	b = binary.LittleEndian.AppendUint64(b, h.Group)
	b = binary.LittleEndian.AppendUint32(b, h.Index)
	b = binary.LittleEndian.AppendUint32(b, h.Count)
	b = binary.LittleEndian.AppendUint32(b, uint32(h.Shard))
	b = binary.LittleEndian.AppendUint32(b, 0) // reserved
	return append(b, h.Job...)
}

// seal writes the checksum into a complete record.
func seal(record []byte) { binary.LittleEndian.PutUint32(record[sumOffset:], sum(record)) }

func sum(record []byte) uint32 {
	return crc32.Update(crc32.Checksum(record[:sumOffset], castagnoli), castagnoli, record[sumOffset+4:])
}

// decode validates a record and splits it; payload is a subslice of b. The error describes the damage, or wraps
// ErrRefused if the record has another version.
func decode(b []byte) (h Header, payload []byte, err error) {
	if len(b) < headerSize || string(b[:4]) != recordMagic {
		return h, nil, fmt.Errorf("it does not start with a record header")
	}
	if err := disk.CheckVersion(uint64(binary.LittleEndian.Uint16(b[4:])), Version); err != nil {
		if sum(b) == binary.LittleEndian.Uint32(b[sumOffset:]) {
			return h, nil, fmt.Errorf("%w: the record was %w", ErrRefused, err)
		}
		return h, nil, fmt.Errorf("its checksum is wrong")
	}
	job, n := int(binary.LittleEndian.Uint16(b[6:])), uint64(binary.LittleEndian.Uint32(b[8:]))
	if uint64(headerSize+job)+n != uint64(len(b)) {
		return h, nil, fmt.Errorf("it has %d bytes, but its header says %d", len(b), uint64(headerSize+job)+n)
	}
	if sum(b) != binary.LittleEndian.Uint32(b[sumOffset:]) {
		return h, nil, fmt.Errorf("its checksum is wrong")
	}
	h = Header{
		Producer: binary.LittleEndian.Uint64(b[16:]), Group: binary.LittleEndian.Uint64(b[24:]),
		Index: binary.LittleEndian.Uint32(b[32:]), Count: binary.LittleEndian.Uint32(b[36:]),
		Shard: int(int32(binary.LittleEndian.Uint32(b[40:]))), Job: string(b[headerSize : headerSize+job]),
	}
	if h.Index >= h.Count {
		return h, nil, fmt.Errorf("invalid part number %d of %d", h.Index+1, h.Count)
	}
	return h, b[headerSize+job:], nil
}

// checkJob returns an error if the record does not belong to the job's shard.
func (h Header) checkJob(job string, shard int) error {
	if h.Job != job || h.Shard != shard {
		return fmt.Errorf("it belongs to shard %d of job %s", h.Shard, strings.ToValidUTF8(h.Job, "?"))
	}
	return nil
}

// groupSize returns the size of a group of these entries in bytes.
func groupSize(entries [][][]byte) (n int) {
	for _, e := range entries {
		n += lengthPrefix + entrySize(e)
	}
	return n
}

func entrySize(entry [][]byte) (n int) {
	for _, b := range entry {
		n += len(b)
	}
	return n
}

// encode returns the records of a group of entries. The entries are concatenated, each with its length before it, and
// cut into records of at most MaxRecord bytes. encode sets h's Index and Count.
func encode(h Header, entries [][][]byte) (records [][]byte) {
	most := MaxRecord - headerSize - len(h.Job)
	left := groupSize(entries)
	h.Count = uint32((left + most - 1) / most)
	var record []byte
	put := func(b []byte) {
		for len(b) > 0 {
			if record == nil {
				size := min(left, most)
				record = appendHeader(make([]byte, 0, headerSize+len(h.Job)+size), h, size)
				h.Index++
			}
			n := min(len(b), cap(record)-len(record))
			record = append(record, b[:n]...)
			b, left = b[n:], left-n
			if len(record) == cap(record) {
				seal(record)
				records, record = append(records, record), nil
			}
		}
	}
	for _, e := range entries {
		put(binary.LittleEndian.AppendUint64(nil, uint64(entrySize(e))))
		for _, b := range e {
			put(b)
		}
	}
	return records
}

// split extracts the entries from a group's parts, which it consumes. Only entries that span several parts are copied.
func split(parts [][]byte) (payloads [][]byte, err error) {
	left := entrySize(parts)
	for left > 0 {
		if left < lengthPrefix {
			return nil, fmt.Errorf("its group is truncated in the length of an entry")
		}
		n := binary.LittleEndian.Uint64(take(&parts, lengthPrefix))
		if left -= lengthPrefix; n > uint64(left) {
			return nil, fmt.Errorf("its group is truncated in an entry: %d bytes of %d", left, n)
		}
		payloads = append(payloads, take(&parts, int(n)))
		left -= int(n)
	}
	return payloads, nil
}

// take removes the first n bytes from parts, which must have that many.
func take(parts *[][]byte, n int) []byte {
	var run [][]byte
	for n > 0 {
		first := (*parts)[0]
		k := min(n, len(first))
		if run = append(run, first[:k:k]); k < len(first) {
			(*parts)[0] = first[k:]
		} else {
			*parts = (*parts)[1:]
		}
		n -= k
	}
	if len(run) == 1 {
		return run[0]
	}
	return bytes.Join(run, nil)
}
