package table

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/perdure/perdure"
)

var large = flag.Bool("large", false, "run the tests that take GBs of memory")

// TestMemory stores 50,000,000 rows of 8 values in a process with less than 4 GB.
func TestMemory(t *testing.T) {
	if !*large {
		t.Skip("takes 3 GB of memory; run it with -large")
	}
	const rows, dim, each = 50_000_000, 8, 100_000
	p := New(perdure.TableSpec{
		Name: "t", Sparse: true, Dim: dim, Evict: 1000,
		Rule: perdure.Rule{Kind: perdure.RuleAdd},
	}, 0, 1, 0, 0)
	ids, delta := make([]perdure.RowID, each), make([]float32, each*dim)
	for i := 0; i < rows; i += each {
		for j := range ids {
			ids[j] = perdure.RowID(mix(uint64(i + j)))
		}
		if err := p.ApplyRows(0, ids, each, delta, 0); err != nil {
			t.Fatal(err)
		}
		if (i+each)%(rows/5) == 0 {
			t.Logf("%d rows: %.1f bytes a row in addition to the values", p.Stored(),
				float64(p.index.bytes()+4*p.touched.capacity)/float64(p.Stored()))
		}
	}
	peak := residentKiB(t, "VmHWM")
	t.Logf("at most %.2f GB were resident, %.2f GB are now", float64(peak)/1e6*1.024,
		float64(residentKiB(t, "VmRSS"))/1e6*1.024)
	if p.Stored() != rows || peak > 4e9/1024 {
		t.Errorf("%d rows took %d KiB", p.Stored(), peak)
	}
}

// residentKiB reads one of the kernel's memory statistics of this process.
func residentKiB(t *testing.T, what string) (n int64) {
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Skip(err)
	}
	_, rest, _ := strings.Cut(string(b), what+":")
	if _, err := fmt.Sscan(rest, &n); err != nil {
		t.Fatal(err)
	}
	return n
}
