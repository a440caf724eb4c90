package store

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"hash/crc32"
	"io"
	"io/fs"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/states"
	"github.com/perdure/perdure/internal/core/words"
	"github.com/perdure/perdure/internal/data/disk"
)

// Large states that the programs of slots save are objects of the job's store: one for each state, never changed.
// Package states has their names and the references to them, and says which are still needed; the coordinator
// deletes the others.
//
// What is read without an error is what was put, bit by bit. An object is read and written as a stream, and
// takes no more memory than the state itself.

// An object:
//
//	 0      8     magic "PRDRSLOT"
//	 8      4     version of this format (1)
//	12      4     slot
//	16      8     bytes n of the state
//	24      n     the state
//	24+n    4     CRC-32C of all before
const (
	magic     = "PRDRSLOT"
	version   = 1
	headBytes = 24
	footBytes = 4
)

// MaxStateBytes is how large a state may be: 1 GiB.
const MaxStateBytes = 1 << 30

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func head(slot perdure.Slot, n int) []byte {
	b := make([]byte, headBytes)
	copy(b, magic)
	binary.LittleEndian.PutUint32(b[8:], version)
	binary.LittleEndian.PutUint32(b[12:], uint32(slot))
	binary.LittleEndian.PutUint64(b[16:], uint64(n))
	return b
}

// StateRef returns the reference to a state of a key, before it is put.
func StateRef(k states.Key, state []byte) states.Ref {
	crc := crc32.Update(crc32.Checksum(head(k.Slot, len(state)), castagnoli), castagnoli, state)
	return states.Ref{Key: k, Bytes: int64(headBytes + len(state) + footBytes), CRC: crc}
}

// pieceBytes is how much is put at a time.
const pieceBytes = 1 << 20

// PutState makes the object that a reference names. Before each piece over is asked whether it is still wanted: its
// error ends it.
func PutState(in Store, r states.Ref, state []byte, over func() error) error {
	err := in.Put(r.Name(), func(w io.Writer) error {
		if _, err := w.Write(head(r.Slot, len(state))); err != nil {
			return err
		}
		for left := state; len(left) > 0; {
			n := min(len(left), pieceBytes)
			if err := over(); err != nil {
				return err
			}
			if _, err := w.Write(left[:n]); err != nil {
				return err
			}
			left = left[n:]
		}
		_, err := w.Write(binary.LittleEndian.AppendUint32(nil, r.CRC))
		return err
	})
	if err != nil {
		return fmt.Errorf("save the state of slot %d as %s: %w", r.Slot, r.Name(), err)
	}
	return nil
}

// GetState returns the state that a reference names. Its error names the object: it wraps fs.ErrNotExist where
// there is none, and ErrCorrupt where another one is there.
func GetState(in Store, r states.Ref) (state []byte, err error) {
	err = read(in, r.File(), func(n int64, from io.Reader) (err error) {
		state = make([]byte, n)
		_, err = io.ReadFull(from, state)
		return err
	})
	if err != nil {
		return nil, err
	}
	return state, nil
}

// CheckState reads an object that a manifest names to its last byte.
func CheckState(in Store, f words.SavedFile) error { return read(in, f, discard) }

// CheckStateAlone reads an object that no manifest names to its last byte: only its own checksum can be compared.
func CheckStateAlone(in Store, name string) error {
	return read(in, words.SavedFile{File: name, Bytes: unknown}, discard)
}

// unknown is the length of an object if only its name is known.
const unknown = -1

func discard(n int64, from io.Reader) error {
	_, err := io.CopyN(io.Discard, from, n)
	return err
}

// CopyState copies an object that a manifest names, and checks it.
func CopyState(from, to Store, f words.SavedFile) error {
	return to.Put(f.File, func(w io.Writer) error {
		return read(from, f, func(n int64, in io.Reader) error {
			k, _ := states.ParseName(f.File)
			if _, err := w.Write(head(k.Slot, int(n))); err != nil {
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

// read has take read the n bytes of a state, of which the object of that name is to be, and checks all.
func read(in Store, f words.SavedFile, take func(n int64, from io.Reader) error) error {
	k, ok := states.ParseName(f.File)
	if !ok {
		return fmt.Errorf("saved state %q: %w: nothing of that name is one", f.File, ErrCorrupt)
	}
	o, err := in.Open(f.File)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("saved state %s of slot %d is missing in %s: %w", f.File, k.Slot, in, fs.ErrNotExist)
	}
	if err != nil {
		return fmt.Errorf("saved state %s: %w", f.File, err)
	}
	err = readObject(o, k, f, take)
	if closeErr := o.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		return fmt.Errorf("saved state %s of slot %d in %s: %w", f.File, k.Slot, in, err)
	}
	return nil
}

func corrupt(format string, a ...any) error {
	return fmt.Errorf("%w: %s", ErrCorrupt, fmt.Sprintf(format, a...))
}

func readObject(o Object, k states.Key, f words.SavedFile, take func(int64, io.Reader) error) error {
	alone := f.Bytes == unknown
	if alone {
		f.Bytes = o.Size()
	}
	n := f.Bytes - headBytes - footBytes
	switch {
	case o.Size() != f.Bytes:
		return corrupt("it has %d bytes, not %d", o.Size(), f.Bytes)
	case n < 0 || n > MaxStateBytes:
		return corrupt("it has %d bytes; a saved state has %d to %d", o.Size(), headBytes+footBytes,
			headBytes+MaxStateBytes+footBytes)
	}
	b := make([]byte, headBytes)
	if err := full(o, b); err != nil {
		return err
	}
	le := binary.LittleEndian
	if string(b[:len(magic)]) != magic {
		return corrupt("it is no saved state")
	}
	if err := disk.CheckVersion(uint64(le.Uint32(b[8:])), version); err != nil {
		return err
	}
	if string(b) != string(head(k.Slot, int(n))) {
		return corrupt("its head is another one's")
	}
	s := &summed{o: o, sum: crc32.New(castagnoli)}
	_, _ = s.sum.Write(b)
	if err := take(n, s); err != nil {
		return ended(err)
	}
	sum := s.sum.Sum32()
	if err := full(o, b[:footBytes]); err != nil {
		return err
	}
	if le.Uint32(b) != sum || !alone && sum != f.CRC {
		return corrupt("its checksum is wrong")
	}
	return nil
}

// summed sums what is read.
type summed struct {
	o   Object
	sum hash.Hash32
}

func (s *summed) Read(b []byte) (n int, err error) {
	n, err = s.o.Read(b)
	_, _ = s.sum.Write(b[:n])
	return n, err
}

func full(from io.Reader, b []byte) error {
	_, err := io.ReadFull(from, b)
	return ended(err)
}

// ended says of an object that ended early that it is damaged.
func ended(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return corrupt("it ends early")
	}
	return err
}
