package dataset

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// TestAnyBytes: any file is either read completely or rejected in one line.
func TestAnyBytes(t *testing.T) {
	path := filepath.Join(t.TempDir(), "any")
	rapid.Check(t, func(r *rapid.T) {
		parts := rapid.SliceOfN(rapid.SampledFrom([]string{
			"1", "-1", "spam", " ", "\n", "\r\n", ":", "3:0.5", "word:2", "#", "\t", "1e39", "NaN", "\x00", "\xff",
			"7:", "::1",
		}), 0, 200).Draw(r, "parts")
		if err := os.WriteFile(path, []byte(strings.Join(parts, "")), 0o644); err != nil {
			r.Fatal(err)
		}
		s, err := OpenSparse(path)
		if err != nil {
			if strings.Contains(err.Error(), "\n") {
				r.Fatalf("%q", err)
			}
			return
		}
		for _, p := range []*SparseSplit{&s.Train, &s.Test} {
			if len(p.Starts) != p.Len()+1 || int(p.Starts[p.Len()]) != len(p.Feature) ||
				len(p.Feature) != len(p.Value) {
				r.Fatalf("%+v", p)
			}
			for _, f := range p.Feature {
				if int(f) >= s.Features {
					r.Fatalf("feature %d of %d", f, s.Features)
				}
			}
			for _, l := range p.Label {
				if int(l) >= len(s.Classes) {
					r.Fatalf("class %d of %d", l, len(s.Classes))
				}
			}
		}
	})
}
