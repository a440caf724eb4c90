package coordinator

import (
	"strings"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/protocol"
)

// TestBelieve checks which reports of workers are accepted.
func TestBelieve(t *testing.T) {
	const own, other = 2, 3
	for name, c := range map[string]struct {
		says    clockReport
		end     perdure.Clock // of the job; 0: open
		fixed   bool
		refusal string
	}{
		"its clock":      {says: clockReport{Slot: own, Generation: 4, Clock: 7}, end: 100},
		"last clock":     {says: clockReport{Slot: own, Generation: 4, Clock: 100}, end: 100},
		"one over":       {says: clockReport{Slot: own, Generation: 4, Clock: 101}, end: 100, refusal: "0 to 100"},
		"a negative one": {says: clockReport{Slot: own, Generation: 4, Clock: -1}, end: 100, refusal: "clock -1"},
		"other slot":     {says: clockReport{Slot: other, Generation: 4, Clock: 7}, end: 100, refusal: "for slot 3"},
		"the end":        {says: clockReport{Slot: own, Generation: 4, Clock: 7, EndAfter: true}, end: 100},
		"a fixed end":    {says: clockReport{own, 4, 7, true}, end: 100, fixed: true, refusal: "ends at clock 100"},
		"generation":     {says: clockReport{own, 3, 7, true}, end: 100, fixed: true},
		"without end":    {says: clockReport{Slot: own, Generation: 4, Clock: 1 << 40}},
		"end fixed":      {says: clockReport{Slot: own, Generation: 4, Clock: 7}, end: 100, fixed: true},
		"too large":      {says: clockReport{Slot: own, Generation: 4, Clock: 1 << 62}, refusal: "reported clock"},
	} {
		v := &protocol.View{Generation: 4, End: c.end}
		err := validate(&perdure.JobSpec{FixedEnd: c.fixed}, v, own, c.says)
		if (err == nil) != (c.refusal == "") || err != nil && !strings.Contains(err.Error(), c.refusal) {
			t.Errorf("%s: %v, want %q", name, err, c.refusal)
		}
	}
}

// TestFits checks to the byte whether a table fits.
func TestFits(t *testing.T) {
	const mib = 1 << 20
	dense := func(name string, rows int64) perdure.TableSpec {
		return perdure.TableSpec{
			Name: name, Rows: rows, Dim: 4, Rule: perdure.Rule{Kind: perdure.RuleAdd},
			Consistency: perdure.Consistency{Kind: perdure.BSP},
		}
	}
	whole := func(rows int64) perdure.TableSpec {
		t := dense("new", rows)
		t.Whole = true
		return t
	}
	sparse := dense("new", 1<<40)
	sparse.Sparse = true
	there := []perdure.TableSpec{dense("old", mib/16)} // 1 MiB
	for name, c := range map[string]struct {
		spec    perdure.TableSpec
		servers int
		bytes   int64 // per server
		copies  int   // as the recovery strategy keeps them
		refusal string
	}{
		"all that is left":     {dense("new", mib/16), 2, mib, 1, ""},
		"one row more":         {dense("new", mib/16+1), 2, mib, 1, "takes 1 MiB, but only 1"},
		"two copies of it":     {dense("new", mib/16), 2, mib, 2, "only 0 MiB"},
		"two copies on more":   {dense("new", mib/16), 4, mib, 2, ""},
		"nothing is left":      {dense("new", 1), 1, mib / 2, 1, "only 0 MiB"},
		"it exists":            {dense("old", mib/16), 1, mib, 1, ""},
		"another of that name": {dense("old", 1<<30), 1, mib, 1, ""}, // rejected for another reason
		"no bound":             {dense("new", 1<<40), 1, 0, 1, ""},
		"a whole one":          {whole(mib / 16), 4, mib, 1, ""},
		"too large for one":    {whole(mib/16 + 1), 4, mib, 1, "takes 1 MiB, but only 1"},
		"a sparse one":         {sparse, 1, mib, 1, ""},
		"an invalid table":     {perdure.TableSpec{Name: "new", Rows: -1}, 1, mib, 1, ""},
	} {
		job := &perdure.JobSpec{Shards: 1}
		err := checkSize(job, there, c.servers, c.copies, c.bytes, &c.spec)
		if (err == nil) != (c.refusal == "") || err != nil && !strings.Contains(err.Error(), c.refusal) {
			t.Errorf("%s: %v, want %q", name, err, c.refusal)
		}
	}
}
