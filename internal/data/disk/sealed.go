package disk

import (
	"bytes"
	"errors"
	"fmt"
	"hash/crc32"
)

// Errors of reading a durable format. The reader's message adds the details.
var (
	// ErrCorrupt is wrapped by every error about bytes that are not as written: truncated, changed, or from another
	// kind of file.
	ErrCorrupt = errors.New("damaged")
	// ErrOtherVersion is wrapped when a newer or older version of Perdure wrote the file's format.
	ErrOtherVersion = errors.New("written by another version of Perdure")
)

// CheckVersion returns ErrOtherVersion unless the file has the one format version that its reader supports.
func CheckVersion(got uint64, known int) error {
	if got == uint64(known) {
		return nil
	}
	return fmt.Errorf("%w (format %d, this one reads format %d); use the version that wrote it", ErrOtherVersion, got,
		known)
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

const crcDigits = 8

// sealPrefix returns the first line of a sealed document up to its checksum.
//
//	PERDURE <KIND> <version> bytes <body bytes> crc32c <8 hexadecimal digits>\n
//	<body>
//
// The checksum covers the line up to and including the space before its digits, and then the body.
func sealPrefix(kind string, version uint64, body int) []byte {
	return fmt.Appendf(nil, "PERDURE %s %d bytes %d crc32c ", kind, version, body)
}

// Seal returns a document of the given kind (one word) and format version. Its first line contains the length and the
// checksum of the body.
func Seal(kind string, version int, body []byte) []byte {
	return append(SealHeader(kind, version, body), body...)
}

// SealHeader returns only the first line of a sealed document, whose body consists of the given parts.
func SealHeader(kind string, version int, body ...[]byte) []byte {
	size := 0
	for _, part := range body {
		size += len(part)
	}
	line := sealPrefix(kind, uint64(version), size)
	sum := crc32.Checksum(line, castagnoli)
	for _, part := range body {
		sum = crc32.Update(sum, castagnoli, part)
	}
	return fmt.Appendf(line, "%0*x\n", crcDigits, sum)
}

// Unseal verifies a document that Seal returned and returns its body, which aliases sealed. Its errors are ErrCorrupt
// and, for any version but known, ErrOtherVersion.
func Unseal(kind string, known int, sealed []byte) (body []byte, err error) {
	line, body, found := bytes.Cut(sealed, []byte("\n"))
	prefix := "PERDURE " + kind + " "
	if !bytes.HasPrefix(sealed, []byte(prefix)) {
		return nil, fmt.Errorf("%w: it does not begin with %q", ErrCorrupt, prefix)
	}
	var version uint64
	if _, err := fmt.Sscanf(string(line[len(prefix):]), "%d ", &version); err != nil {
		return nil, fmt.Errorf("%w: its first line has no version", ErrCorrupt)
	}
	if err := CheckVersion(version, known); err != nil {
		return nil, err
	}
	// The line is compared byte by byte with the one that the body requires, so that no other notation of the same
	// numbers is accepted.
	want := sealPrefix(kind, version, len(body))
	if !found || len(line) != len(want)+crcDigits || !bytes.HasPrefix(line, want) {
		return nil, fmt.Errorf("%w: truncated, or its first line was changed", ErrCorrupt)
	}
	sum := crc32.Update(crc32.Checksum(want, castagnoli), castagnoli, body)
	if got := fmt.Sprintf("%0*x", crcDigits, sum); got != string(line[len(want):]) {
		return nil, fmt.Errorf("%w: checksum mismatch: recorded %s, computed %s", ErrCorrupt, line[len(want):],
			got)
	}
	return body, nil
}
