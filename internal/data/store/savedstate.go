package store

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"hash/crc32"
	"io"
	"io/fs"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/protocol"
	"github.com/perdure/perdure/internal/core/slotstate"
	"github.com/perdure/perdure/internal/data/disk"
)

// Large slot states are objects in the job's store: one immutable object per state. Package slotstate defines their
// names and references and determines which are still needed; the coordinator deletes the others.
//
// A state that is read without an error is bit for bit the one that was stored. Objects are read and written as streams
// and need no more memory than the state itself.

// An object:
//
//	 0      8     magic "PRDRSLOT"
//	 8      4     version of this format (1)
//	12      4     slot
//	16      8     bytes n of the state
//	24      n     the state
//	24+n    4     CRC-32C of all before
const (
	stateMagic        = "PRDRSLOT"
	StateVersion      = 1 // of the format of saved states
	stateHeaderBytes  = 24
	stateTrailerBytes = 4
)

// MaxStateBytes is the max size of a slot state: 1 TiB. It only rejects sizes that cannot be right.
const MaxStateBytes = 1 << 40

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func stateHeader(slot perdure.Slot, n int64) []byte {
	b := make([]byte, stateHeaderBytes)
	copy(b, stateMagic)
	binary.LittleEndian.PutUint32(b[8:], StateVersion)
	binary.LittleEndian.PutUint32(b[12:], uint32(slot))
	binary.LittleEndian.PutUint64(b[16:], uint64(n))
	return b
}

// PutState stores a state of n bytes under the key and returns the reference to it. write writes the state. PutState
// fails when a Write begins after ctx has ended, because the state is then no longer needed.
func PutState(ctx context.Context, in Store, k slotstate.Key, n int64, write func(io.Writer) error) (
	r slotstate.Ref, err error,
) {
	r = slotstate.Ref{Key: k, Bytes: stateHeaderBytes + n + stateTrailerBytes}
	err = in.Put(r.Name(), func(to io.Writer) error {
		w := &stateWriter{ctx: ctx, to: to}
		if _, err := w.Write(stateHeader(k.Slot, n)); err != nil {
			return err
		}
		if err := write(w); err != nil {
			return err
		}
		if w.n != stateHeaderBytes+n {
			return fmt.Errorf("%d bytes were written, not %d", w.n-stateHeaderBytes, n)
		}
		r.CRC = w.crc
		_, err := w.Write(binary.LittleEndian.AppendUint32(nil, w.crc))
		return err
	})
	if err != nil {
		return r, fmt.Errorf("store the state of slot %d as %s: %w", r.Slot, r.Name(), err)
	}
	return r, nil
}

// WriteBytes returns a write function for PutState that writes a state in memory.
func WriteBytes(state []byte) func(io.Writer) error {
	return func(w io.Writer) error {
		const most = 1 << 20
		for left := state; len(left) > 0; left = left[min(len(left), most):] {
			if _, err := w.Write(left[:min(len(left), most)]); err != nil {
				return err
			}
		}
		return nil
	}
}

// stateWriter counts bytes and computes their checksum. It fails once ctx has ended.
type stateWriter struct {
	ctx context.Context
	to  io.Writer
	n   int64
	crc uint32
}

func (w *stateWriter) Write(b []byte) (int, error) {
	if err := w.ctx.Err(); err != nil {
		return 0, err
	}
	n, err := w.to.Write(b)
	w.n += int64(n)
	w.crc = crc32.Update(w.crc, castagnoli, b[:n])
	return n, err
}

// GetState returns the state that a reference names. Its error names the object and wraps fs.ErrNotExist if the object
// is missing, or ErrCorrupt if it is damaged or a different one.
func GetState(in Store, r slotstate.Ref) (state []byte, err error) {
	err = ReadState(in, r.File(), func(n int64, from io.Reader) (err error) {
		state = make([]byte, n)
		_, err = io.ReadFull(from, state)
		return err
	})
	if err != nil {
		return nil, err
	}
	return state, nil
}

// UnreferencedStateSize returns the size of a state that no reference names. Its error wraps fs.ErrNotExist if the
// object is missing.
func UnreferencedStateSize(in Store, name string) (int64, error) {
	o, err := in.Open(name)
	if err != nil {
		return 0, fmt.Errorf("slot state %s: %w", name, err)
	}
	return o.Size() - stateHeaderBytes - stateTrailerBytes, o.Close()
}

// GetUnreferencedState reads a state that no reference names into memory of its size. It can verify only the object's
// own checksum.
func GetUnreferencedState(in Store, name string, state []byte) error {
	return ReadState(in, protocol.SavedFile{File: name, Bytes: unknownSize}, func(n int64, from io.Reader) error {
		if n != int64(len(state)) {
			return corrupt("it has %d bytes instead of %d", n, len(state))
		}
		_, err := io.ReadFull(from, state)
		return err
	})
}

// CheckState reads and verifies all of an object that a manifest names.
func CheckState(in Store, f protocol.SavedFile) error { return ReadState(in, f, discard) }

// CheckUnreferencedState reads all of an object that no manifest names. It can verify only the object's own checksum.
func CheckUnreferencedState(in Store, name string) error {
	return ReadState(in, protocol.SavedFile{File: name, Bytes: unknownSize}, discard)
}

// unknownSize is the size of an object of which only the name is known.
const unknownSize = -1

func discard(n int64, from io.Reader) error {
	_, err := io.CopyN(io.Discard, from, n)
	return err
}

// CopyState copies and verifies an object that a manifest names.
func CopyState(from, to Store, f protocol.SavedFile) error {
	return to.Put(f.File, func(w io.Writer) error {
		return ReadState(from, f, func(n int64, in io.Reader) error {
			k, _ := slotstate.ParseName(f.File)
			if _, err := w.Write(stateHeader(k.Slot, n)); err != nil {
				return err
			}
			if _, err := io.CopyN(w, in, n); err != nil {
				return err
			}
			_, err := w.Write(binary.LittleEndian.AppendUint32(nil, f.CRC))
			return err
		})
	})
}

// ReadState opens an object, calls take to read all n bytes of its state, and verifies the object against f. Until
// ReadState has returned without an error, these bytes may be wrong.
func ReadState(in Store, f protocol.SavedFile, take func(n int64, from io.Reader) error) error {
	k, ok := slotstate.ParseName(f.File)
	if !ok {
		return fmt.Errorf("slot state %q: %w: not the name of a slot state", f.File, ErrCorrupt)
	}
	o, err := in.Open(f.File)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("slot state %s of slot %d is missing in %s: %w", f.File, k.Slot, in, fs.ErrNotExist)
	}
	if err != nil {
		return fmt.Errorf("slot state %s: %w", f.File, err)
	}
	err = readObject(o, k, f, take)
	if closeErr := o.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		return fmt.Errorf("slot state %s of slot %d in %s: %w", f.File, k.Slot, in, err)
	}
	return nil
}

func corrupt(format string, a ...any) error {
	return fmt.Errorf("%w: %s", ErrCorrupt, fmt.Sprintf(format, a...))
}

func readObject(o Object, k slotstate.Key, f protocol.SavedFile, take func(int64, io.Reader) error) error {
	alone := f.Bytes == unknownSize
	if alone {
		f.Bytes = o.Size()
	}
	n := f.Bytes - stateHeaderBytes - stateTrailerBytes
	switch {
	case o.Size() != f.Bytes:
		return corrupt("it has %d bytes, not %d", o.Size(), f.Bytes)
	case n < 0 || n > MaxStateBytes:
		return corrupt("it has %d bytes; a slot state has %d to %d", o.Size(), stateHeaderBytes+stateTrailerBytes,
			stateHeaderBytes+MaxStateBytes+stateTrailerBytes)
	}
	b := make([]byte, stateHeaderBytes)
	if err := readFull(o, b); err != nil {
		return err
	}
	le := binary.LittleEndian
	if string(b[:len(stateMagic)]) != stateMagic {
		return corrupt("it is not a slot state")
	}
	if err := disk.CheckVersion(uint64(le.Uint32(b[8:])), StateVersion); err != nil {
		return err
	}
	if string(b) != string(stateHeader(k.Slot, n)) {
		return corrupt("its header belongs to another slot state")
	}
	s := &checksumReader{o: o, sum: crc32.New(castagnoli)}
	_, _ = s.sum.Write(b)
	if err := take(n, s); err != nil {
		return truncatedError(err)
	}
	sum := s.sum.Sum32()
	if err := readFull(o, b[:stateTrailerBytes]); err != nil {
		return err
	}
	if le.Uint32(b) != sum || !alone && sum != f.CRC {
		return corrupt("checksum mismatch")
	}
	return nil
}

// checksumReader is a reader that computes a checksum of the bytes read.
type checksumReader struct {
	o   Object
	sum hash.Hash32
}

func (s *checksumReader) Read(b []byte) (n int, err error) {
	n, err = s.o.Read(b)
	_, _ = s.sum.Write(b[:n])
	return n, err
}

func readFull(from io.Reader, b []byte) error {
	_, err := io.ReadFull(from, b)
	return truncatedError(err)
}

// truncatedError turns an unexpected end of an object into ErrCorrupt.
func truncatedError(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return corrupt("truncated")
	}
	return err
}
