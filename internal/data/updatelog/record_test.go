package updatelog

import (
	"bytes"
	"encoding/hex"
	"flag"
	"os"
	"path/filepath"
	"testing"
	"time"

	"pgregory.net/rapid"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// TestGolden compares a record with two entries to its golden bytes.
func TestGolden(t *testing.T) {
	records := encode(Header{Job: job, Shard: 3, Producer: 0x0102030405060708, Group: 9}, [][][]byte{
		{[]byte("one "), []byte("entry")}, {}, {[]byte("another")},
	})
	if len(records) != 1 {
		t.Fatalf("%d records", len(records))
	}
	golden := filepath.Join("testdata", "record.golden")
	got := []byte(hex.Dump(records[0]))
	if *update {
		must(t, os.WriteFile(golden, got, 0o666))
	}
	want, err := os.ReadFile(golden)
	must(t, err)
	if !bytes.Equal(got, want) {
		t.Errorf("got the record\n%s\nwant\n%s", got, want)
	}
}

// TestAssemble mixes producers' groups in a stream at random, with records lost and groups resent. Complete groups must
// come out in order, and a reader that resumes must miss nothing.
func TestAssemble(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		stream, times := drawStream(rt)
		all, ends := replay(rt, stream, times, 1)
		for i, e := range all {
			later, _ := replay(rt, stream, times, e.Resume)
			want := all[i+1:]
			if len(later) < len(want) {
				rt.Fatalf("resumed from %d: got %d entries, want %d after the one at %d", e.Resume, len(later),
					len(want),
					e.Position)
			}
			for j, w := range want {
				if got := later[len(later)-len(want)+j]; !bytes.Equal(got.Payload, w.Payload) {
					rt.Fatalf("resumed from %d: entry %d is %q, want %q", e.Resume, j, got.Payload, w.Payload)
				}
			}
		}
		if ends > Position(len(stream)+1) {
			rt.Fatalf("resume position %d after the end of %d records", ends, len(stream))
		}
		for producer := byte('a'); producer < 'd'; producer++ {
			last := byte(0)
			for _, e := range all {
				if e.Payload[0] == producer && e.Payload[1] < last {
					rt.Fatalf("entries of %c are out of order", producer)
				} else if e.Payload[0] == producer {
					last = e.Payload[1]
				}
			}
		}
	})
}

// drawStream generates the records that producers a, b and c may leave. Each producer has groups of one to three
// records, which start with its letter and the group's number. Each attempt may stop anywhere or lose a record, and is
// then repeated.
func drawStream(rt *rapid.T) (stream [][]byte, times []time.Time) {
	type try struct{ records [][]byte }
	left := map[int][]try{}
	for p := range 3 {
		number := uint64(0)
		for entry := range rapid.IntRange(0, 4).Draw(rt, "entries") {
			parts := rapid.IntRange(1, 3).Draw(rt, "parts")
			payload := append([]byte{'a' + byte(p), byte(entry)}, bytes.Repeat([]byte{byte(entry)}, 10*parts)...)
			for whole := false; !whole; {
				number++
				records := cut(Header{Job: job, Shard: 1, Producer: uint64(p), Group: number}, payload, parts)
				if hole := rapid.IntRange(-2, parts-1).Draw(rt, "hole"); hole >= 0 {
					records = append(records[:hole:hole],
						records[hole+rapid.IntRange(1, parts-hole).Draw(rt, "lost"):]...)
				} else {
					whole = true
				}
				left[p] = append(left[p], try{records})
			}
		}
	}
	now := time.Unix(0, 0)
	for len(left[0])+len(left[1])+len(left[2]) > 0 {
		p := rapid.IntRange(0, 2).Draw(rt, "next")
		if len(left[p]) == 0 {
			continue
		}
		if r := &left[p][0]; len(r.records) > 0 {
			now = now.Add(time.Second)
			stream, times = append(stream, r.records[0]), append(times, now)
			r.records = r.records[1:]
		} else {
			left[p] = left[p][1:]
		}
	}
	return stream, times
}

// cut is encode with records of any size.
func cut(h Header, payload []byte, parts int) (records [][]byte) {
	all := encode(h, [][][]byte{{payload}})[0][headerSize+len(h.Job):]
	h.Count = uint32(parts)
	for i := range parts {
		part := all[len(all)*i/parts : len(all)*(i+1)/parts]
		h.Index = uint32(i)
		r := append(appendHeader(nil, h, len(part)), part...)
		seal(r)
		records = append(records, r)
	}
	return records
}

func replay(rt *rapid.T, stream [][]byte, times []time.Time, from Position) (all []Entry, resume Position) {
	a := newAssembler(job, 1, from)
	for at := from; int(at) <= len(stream); at++ {
		entries, err := a.add(at, times[at-1], stream[at-1])
		if err != nil {
			rt.Fatal(err)
		}
		all = append(all, entries...)
	}
	return all, a.resume()
}

// FuzzDecode checks that no input makes the reader panic or allocate too much.
func FuzzDecode(f *testing.F) {
	f.Add(group(1, 1, "x")[0])
	f.Fuzz(func(_ *testing.T, b []byte) {
		if _, payload, err := decode(b); err == nil {
			_, _ = split([][]byte{payload})
		}
		_, _ = split([][]byte{b})
		_, _ = split([][]byte{b[: len(b)/2 : len(b)/2], b[len(b)/2:]})
	})
}
