package study

import (
	"slices"
	"testing"
)

func TestFindings(t *testing.T) {
	f := ParseFindings(`{{define "speed"}}
{{if .Fast}}It is fast,
  as it should be: {{fixed 1 .Seconds}} s{{with .Of}} under {{names .}}{{end}}.{{end}}

{{if not .Fast}}It is slow.{{end}}

{{percent1 .Share}} of it is {{list .Of}}.
{{end}}`)
	type facts struct {
		Fast           bool
		Seconds, Share float64
		Of             []string
	}
	for _, c := range []struct {
		facts facts
		want  []string
	}{
		{
			facts{Fast: true, Seconds: 1.26, Of: []string{"a", "b", "c"}},
			[]string{"It is fast, as it should be: 1.3 s under a, b and c.", "0.0% of it is a, b, c."},
		},
		{facts{Share: .125, Of: []string{"a"}}, []string{"It is slow.", "12.5% of it is a."}},
	} {
		if got, err := f.Of("speed", c.facts); err != nil || !slices.Equal(got, c.want) {
			t.Errorf("%+v: %q, %v; want %q", c.facts, got, err, c.want)
		}
	}
	if got, err := f.Of("price", facts{}); err == nil {
		t.Errorf("of what is not there: %q", got)
	}
	if got, err := f.Of("speed", nil); err == nil {
		t.Errorf("of no facts: %q", got)
	}
}
