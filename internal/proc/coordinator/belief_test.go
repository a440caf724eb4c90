package coordinator

import (
	"strings"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/words"
)

// TestBelieve: what a worker may say of itself, and what it may not.
func TestBelieve(t *testing.T) {
	const own, other = 2, 3
	for name, c := range map[string]struct {
		says    belief
		end     perdure.Clock // of the job; 0: open
		fixed   bool
		refusal string
	}{
		"its clock":              {says: belief{Slot: own, Generation: 4, Clock: 7}, end: 100},
		"the job's last clock":   {says: belief{Slot: own, Generation: 4, Clock: 100}, end: 100},
		"one beyond":             {says: belief{Slot: own, Generation: 4, Clock: 101}, end: 100, refusal: "0 to 100"},
		"a negative one":         {says: belief{Slot: own, Generation: 4, Clock: -1}, end: 100, refusal: "clock -1"},
		"another's":              {says: belief{Slot: other, Generation: 4, Clock: 7}, end: 100, refusal: "for slot 3"},
		"the end":                {says: belief{Slot: own, Generation: 4, Clock: 7, EndAfter: true}, end: 100},
		"an end that is fixed":   {says: belief{own, 4, 7, true}, end: 100, fixed: true, refusal: "ends at clock 100"},
		"of a course that ended": {says: belief{own, 3, 7, true}, end: 100, fixed: true},
		"a clock without end":    {says: belief{Slot: own, Generation: 4, Clock: 1 << 40}},
		"its clock, end fixed":   {says: belief{Slot: own, Generation: 4, Clock: 7}, end: 100, fixed: true},
		"a clock beyond reason":  {says: belief{Slot: own, Generation: 4, Clock: 1 << 62}, refusal: "reports of clock"},
	} {
		v := &words.View{Generation: 4, End: c.end}
		err := believe(&perdure.JobSpec{FixedEnd: c.fixed}, v, own, c.says)
		if (err == nil) != (c.refusal == "") || err != nil && !strings.Contains(err.Error(), c.refusal) {
			t.Errorf("%s: %v, want %q", name, err, c.refusal)
		}
	}
}

// TestFits: a table has room or it has not, to the byte.
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
	there := []perdure.TableSpec{dense("old", mib/16)} // takes 1 MiB
	for name, c := range map[string]struct {
		spec    perdure.TableSpec
		servers int
		bytes   int64 // of each server
		copies  int   // as the strategy keeps them
		refusal string
	}{
		"all that is left":     {dense("new", mib/16), 2, mib, 1, ""},
		"one row more":         {dense("new", mib/16+1), 2, mib, 1, "takes 1 MiB; there is room for 1"},
		"two copies of it":     {dense("new", mib/16), 2, mib, 2, "there is room for 0"},
		"two copies on more":   {dense("new", mib/16), 4, mib, 2, ""},
		"nothing is left":      {dense("new", 1), 1, mib / 2, 1, "there is room for 0"},
		"it is there":          {dense("old", mib/16), 1, mib, 1, ""},
		"another of that name": {dense("old", 1<<30), 1, mib, 1, ""}, // refused, but not for its size
		"no bound":             {dense("new", 1<<40), 1, 0, 1, ""},
		"a whole one":          {whole(mib / 16), 4, mib, 1, ""},
		"too large for one":    {whole(mib/16 + 1), 4, mib, 1, "takes 1 MiB; there is room for 1"},
		"a sparse one":         {sparse, 1, mib, 1, ""},
		"one that is no table": {perdure.TableSpec{Name: "new", Rows: -1}, 1, mib, 1, ""},
	} {
		job := &perdure.JobSpec{Shards: 1}
		err := fits(job, there, c.servers, c.copies, c.bytes, &c.spec)
		if (err == nil) != (c.refusal == "") || err != nil && !strings.Contains(err.Error(), c.refusal) {
			t.Errorf("%s: %v, want %q", name, err, c.refusal)
		}
	}
}
