package disk

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"
)

const sealedGolden = "PERDURE NOTE 1 bytes 6 crc32c ef00aae8\nhello\n"

func TestSealGolden(t *testing.T) {
	if got := Seal("NOTE", 1, []byte("hello\n")); string(got) != sealedGolden {
		t.Errorf("got %q", got)
	}
	body, err := Unseal("NOTE", 1, []byte(sealedGolden))
	if err != nil || string(body) != "hello\n" {
		t.Errorf("got %q, %v", body, err)
	}
}

func TestUnsealRefusesEveryChange(t *testing.T) {
	refused := func(b []byte) {
		t.Helper()
		body, err := Unseal("NOTE", 1, b)
		if !errors.Is(err, ErrCorrupt) && !errors.Is(err, ErrOtherVersion) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%q gives %q, %v", b, body, err)
		}
	}
	good := []byte(sealedGolden)
	for i := range good {
		refused(good[:i])
		for bit := range 8 {
			b := bytes.Clone(good)
			b[i] ^= 1 << bit
			refused(b)
		}
	}
	refused(append(bytes.Clone(good), 0))
}

// TestUnsealOtherVersion: newer and older documents are rejected in one line that says what to do.
func TestUnsealOtherVersion(t *testing.T) {
	for version := range 4 {
		_, err := Unseal("NOTE", 2, Seal("NOTE", version, nil))
		want := fmt.Sprintf("written by another version of Perdure (format %d, this one reads format 2); "+
			"use the version that wrote it", version)
		if version == 2 && err != nil || version != 2 && (!errors.Is(err, ErrOtherVersion) || err.Error() != want) {
			t.Errorf("format %d: %v", version, err)
		}
	}
}

func FuzzUnseal(f *testing.F) {
	f.Add([]byte(sealedGolden))
	f.Add([]byte("PERDURE NOTE 1 bytes 0 crc32c 00000000\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		body, err := Unseal("NOTE", 1, b)
		if err == nil && !bytes.Equal(Seal("NOTE", 1, body), b) {
			t.Errorf("two notations of one document: %q", b)
		}
	})
}
