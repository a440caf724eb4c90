package perdure

import (
	"strings"
	"testing"
)

// TestSeal: a hash is over the documented bytes; what is false, 0 or empty does not count,
// and everything else does.
func TestSeal(t *testing.T) {
	values := func(rate float64, more any) map[string]any {
		return map[string]any{
			"job":    map[string]any{"seed": uint64(1<<64 - 1), "name": "a<b", "off": false, "list": []int{3, 0}},
			"params": struct{ Rate, None float64 }{rate, 0}, "tables": map[string]TableSpec{"w": {Name: "w", Dim: 2}},
			"more": more,
		}
	}
	seal := func(rate float64, more any) Seal {
		s, err := NewSeal(values(rate, more))
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	s := seal(0.05, nil)
	// printf 'job.list.0=3\njob.name="a<b"\n…' | sha256sum
	const want = "630302c7c18919a3f3ae12e6fe1916d13f8f1af1acdd1348d659e2a291de29ef"
	if s.SHA256 != want || s.Settings["job.seed"] != "18446744073709551615" || s.Validate() != nil {
		t.Errorf("seal %+v (%v), want %s", s, s.Validate(), want)
	}
	if other := seal(0.05, 0); other.SHA256 != s.SHA256 {
		t.Error("a setting that is 0 counts")
	}
	for name, other := range map[string]Seal{
		"params.Rate 0.05 0.06": seal(0.06, nil),
		`more none "x"`:         seal(0.05, "x"),
	} {
		n, mine, others := s.Differs(&other)
		if got := strings.Join([]string{n, mine, others}, " "); got != name {
			t.Errorf("differs by %s, want %s", got, name)
		}
	}
	broken := seal(0.05, nil)
	broken.Settings["params.Rate"] = "0.1"
	if err := broken.Validate(); err == nil {
		t.Error("a broken seal was taken")
	}
	less := s.Without(func(name string) bool { return name == "params.Rate" })
	if less.SHA256 == s.SHA256 || less.Validate() != nil || s.Validate() != nil {
		t.Errorf("without a setting: %+v, and then %+v", less, s)
	}
	if none := (Seal{}); none.Validate() != nil {
		t.Error("a job without a seal is refused")
	}
}
