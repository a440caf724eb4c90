package dataset

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"os"
	"strings"

	"github.com/perdure/perdure/internal/data/disk"
)

// blockBytes is the size of a read from a file of lines, and so the max length of a line.
const blockBytes = 1 << 18

// readBlocks reads a file of lines and passes it to parse in blocks of complete lines, each ended by '\n'. It
// decompresses the file if it starts like a gzip file or its name ends with .gz. A block is valid until parse returns.
func readBlocks(path string, parse func(block []byte) error) error {
	f, err := disk.OpenRegular(path)
	if err != nil {
		return openError(path, err)
	}
	defer func() { _ = f.Close() }() // only read
	r, err := decompressed(bufio.NewReaderSize(f, 1<<16), path)
	if err != nil {
		return err
	}
	buf := make([]byte, blockBytes+1) // one more for a '\n' after the last line
	for held, last := 0, false; !last; {
		for held < blockBytes && !last {
			n, err := r.Read(buf[held:blockBytes])
			held += n
			last = errors.Is(err, io.EOF)
			if err != nil && !last {
				return readError(path, "its lines", err)
			}
		}
		if last && held > 0 && buf[held-1] != '\n' {
			buf[held] = '\n'
			held++
		}
		end := bytes.LastIndexByte(buf[:held], '\n') + 1
		if end == 0 && held > 0 {
			return corrupt(path, "has a line of more than %d bytes", blockBytes)
		}
		if err := parse(buf[:end]); err != nil {
			return err
		}
		held = copy(buf, buf[end:held])
	}
	return nil
}

// readLines calls each with every line of a file, without its end, and the line's number, from 1. It adds the line
// number to errors of each. A line is valid until each returns.
func readLines(path string, each func(number int, line []byte) error) error {
	number := 0
	return readBlocks(path, func(b []byte) error {
		if number == 0 {
			b = bytes.TrimPrefix(b, byteOrderMark)
		}
		for len(b) > 0 {
			var line []byte
			line, b = cutLine(b)
			number++
			if err := each(number, line); err != nil {
				return corrupt(path, "line %d: %v", number, err)
			}
		}
		return nil
	})
}

// findFile finds a file or its compressed form with .gz appended to the name. If neither exists, it returns the
// path unchanged.
func findFile(path string) (found string, there bool) {
	for _, found := range []string{path, path + ".gz"} {
		if _, err := os.Stat(found); err == nil {
			return found, true
		}
	}
	return path, false
}

// decompressed returns a reader of the file's uncompressed content.
func decompressed(r *bufio.Reader, path string) (io.Reader, error) {
	magic, err := r.Peek(2)
	switch {
	case len(magic) == 0 && errors.Is(err, io.EOF):
		return nil, corrupt(path, "is empty")
	case err != nil && !errors.Is(err, io.EOF):
		return nil, readError(path, "the file", err)
	case !bytes.Equal(magic, []byte{0x1f, 0x8b}) && !strings.HasSuffix(path, ".gz"):
		return r, nil
	}
	z, err := gzip.NewReader(r)
	if err != nil {
		return nil, readError(path, "the gzip header", err)
	}
	return z, nil
}

// isHeading reports whether a file's first line contains column headings: it does not start with a digit, sign, point
// or comma.
func isHeading(line []byte) bool {
	return len(line) > 0 && bytes.IndexByte([]byte("0123456789+-.,"), line[0]) < 0
}

// cutLine returns the line at the start of a block without its end, "\n" or "\r\n", and the rest of the block.
func cutLine(block []byte) (line, rest []byte) {
	n := bytes.IndexByte(block, '\n')
	return bytes.TrimSuffix(block[:n], []byte("\r")), block[n+1:]
}

// byteOrderMark is at the start of files that some programs write.
var byteOrderMark = []byte("\xef\xbb\xbf")
