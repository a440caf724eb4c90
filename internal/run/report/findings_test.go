package report

import (
	"slices"
	"testing"
)

func TestFindings(t *testing.T) {
	f := parseFindings(`{{define "speed"}}
{{if .Fast}}It is fast,
  as it should be: {{.Seconds}} s{{with .Of}} under {{names .}}{{end}}.{{end}}

{{if not .Fast}}It is slow.{{end}}

{{.Share}} of it is {{list .Of}}.
{{end}}`)
	type facts struct {
		Fast           bool
		Seconds, Share string
		Of             []string
	}
	for _, c := range []struct {
		facts facts
		want  []string
	}{
		{
			facts{Fast: true, Seconds: "1.3", Share: "0%", Of: []string{"a", "b", "c"}},
			[]string{"It is fast, as it should be: 1.3 s under a, b and c.", "0% of it is a, b, c."},
		},
		{facts{Share: "12.5%", Of: []string{"a"}}, []string{"It is slow.", "12.5% of it is a."}},
	} {
		if got, err := f.render("speed", c.facts); err != nil || !slices.Equal(got, c.want) {
			t.Errorf("%+v: %q, %v; want %q", c.facts, got, err, c.want)
		}
	}
	if got, err := f.render("price", facts{}); err == nil {
		t.Errorf("undefined template: %q", got)
	}
	if got, err := f.render("speed", nil); err == nil {
		t.Errorf("without facts: %q", got)
	}
}
