package dataset

import (
	"bufio"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
)

var (
	// ErrCorrupt is wrapped by errors about an existing but invalid file.
	ErrCorrupt = errors.New("not a valid data file")
	// ErrMissing is wrapped by errors about a missing set or file.
	ErrMissing = errors.New("no such data")
)

// A FileError describes in one line which file or directory is faulty, and why.
type FileError struct {
	Path    string
	Problem string
	Kind    error // ErrCorrupt, ErrMissing or an error of the file system
}

// Error implements error.
func (e *FileError) Error() string { return "dataset: " + e.Path + ": " + e.Problem }

// Unwrap returns the kind of the error.
func (e *FileError) Unwrap() error { return e.Kind }

// corrupt returns the error for an invalid file.
func corrupt(path, format string, args ...any) error {
	return &FileError{Path: path, Problem: fmt.Sprintf(format, args...), Kind: ErrCorrupt}
}

// maxIDXBytes is the max size of the data in a file: 40 times the largest set in use. It limits the memory that a wrong
// header can claim.
const maxIDXBytes = 2 << 30

// idxUnsignedByte is the third byte of the magic: elements of one byte.
const idxUnsignedByte = 0x08

// readIDX reads an idx file of unsigned bytes with the given number of
// dimensions, gzip-compressed if its name ends in .gz:
//
//	0   0  0  type  rank     magic; type 0x08 is unsigned byte
//	4   size of dimension 0  big-endian uint32
//	…   size of dimension rank-1
//	…   elements, the last dimension fastest, up to the end of the file
func readIDX(fsys fs.FS, name, shown string, rank int) (dims []int, data []byte, err error) {
	f, err := fsys.Open(name)
	if err != nil {
		return nil, nil, openError(shown, err)
	}
	// Closing a file that was only read cannot lose anything.
	defer func() { _ = f.Close() }()
	var r io.Reader = bufio.NewReaderSize(f, 1<<18)
	if strings.HasSuffix(name, ".gz") {
		z, err := gzip.NewReader(r)
		if err != nil {
			return nil, nil, readError(shown, "the gzip header", err)
		}
		r = z
	}
	dims, err = readIDXHeader(r, shown, rank)
	if err != nil {
		return nil, nil, err
	}
	size := int64(1)
	for _, d := range dims {
		if d == 0 {
			return nil, nil, corrupt(shown, "has no elements: the header specifies dimensions %v", dims)
		}
		if int64(d) > maxIDXBytes/size {
			return nil, nil, corrupt(shown, "the header specifies dimensions %v, which exceed the limit of %d bytes",
				dims, int64(maxIDXBytes))
		}
		size *= int64(d)
	}
	data, err = readExactly(r, shown, size)
	return dims, data, err
}

func readIDXHeader(r io.Reader, shown string, rank int) ([]int, error) {
	header := make([]byte, 4+4*rank)
	if _, err := io.ReadFull(r, header[:4]); err != nil {
		return nil, readError(shown, "the magic", err)
	}
	if header[0] != 0 || header[1] != 0 {
		return nil, corrupt(shown, "is not an idx file: it starts with % x, not 00 00", header[:4])
	}
	if header[2] != idxUnsignedByte {
		return nil, corrupt(shown, "holds idx elements of type 0x%02x; only 0x%02x, unsigned byte, is supported",
			header[2], idxUnsignedByte)
	}
	if int(header[3]) != rank {
		return nil, corrupt(shown, "has %d dimensions where %d are expected", header[3], rank)
	}
	if _, err := io.ReadFull(r, header[4:]); err != nil {
		return nil, readError(shown, "the dimensions", err)
	}
	dims := make([]int, rank)
	for i := range dims {
		dims[i] = int(binary.BigEndian.Uint32(header[4+4*i:]))
	}
	return dims, nil
}

// readExactly reads size bytes and then the end of the file. Memory grows with the data that is actually present, so
// that a wrong header costs at most 64 MiB; the sets in use fit in the first piece.
func readExactly(r io.Reader, shown string, size int64) ([]byte, error) {
	data := make([]byte, min(size, 64<<20))
	read := 0
	for {
		n, err := io.ReadFull(r, data[read:])
		read += n
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return nil, corrupt(shown, "is truncated: the header specifies %d bytes of elements, but only %d are "+
				"present",
				size, read)
		}
		if err != nil {
			return nil, readError(shown, "the elements", err)
		}
		if int64(read) == size {
			break
		}
		grown := make([]byte, min(size, 2*int64(read)))
		copy(grown, data)
		data = grown
	}
	// Reading to the end also makes gzip verify its checksum.
	var one [1]byte
	switch _, err := io.ReadFull(r, one[:]); {
	case err == nil:
		return nil, corrupt(shown, "has extra bytes after the %d elements that the header specifies", size)
	case errors.Is(err, io.ErrUnexpectedEOF):
		return nil, corrupt(shown, "does not end like a gzip file: it is truncated or has other bytes at its end")
	case !errors.Is(err, io.EOF):
		return nil, readError(shown, "the end", err)
	}
	return data, nil
}

// readError returns an error that names the part of a file that could not be read.
func readError(shown, part string, err error) error {
	switch {
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return corrupt(shown, "is truncated: it ends within %s", part)
	case errors.Is(err, gzip.ErrHeader):
		return corrupt(shown, "is not a gzip file, or has other bytes after its end")
	case errors.Is(err, gzip.ErrChecksum):
		return corrupt(shown, "is damaged: its gzip checksum does not match")
	}
	if pathErr, is := errors.AsType[*fs.PathError](err); is {
		return &FileError{Path: shown, Problem: pathErr.Err.Error(), Kind: pathErr.Err}
	}
	return &FileError{Path: shown, Problem: fmt.Sprintf("is damaged: %v", err), Kind: ErrCorrupt}
}

func openError(shown string, err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return &FileError{Path: shown, Problem: "no such file", Kind: ErrMissing}
	}
	if errors.Is(err, os.ErrPermission) {
		return &FileError{Path: shown, Problem: "permission denied", Kind: os.ErrPermission}
	}
	return readError(shown, "the file", err)
}
