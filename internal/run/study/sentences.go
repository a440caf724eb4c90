package study

import (
	"fmt"
	"strings"
	"text/template"
)

// Findings are the sentences in which a page says what was found. They stand in a template,
// where they can be read and changed as text; facts fill in the numbers, and choose.
//
//	{{define "fast"}}
//	{{if .Fast}}It is fast,
//	as it should be: {{.Seconds}} s.{{end}}
//
//	{{with .Slow}}Slow are {{list .}}.{{end}}
//	{{end}}
//
// A paragraph is one finding, however its lines are broken; an empty one is none.
type Findings struct{ t *template.Template }

// ParseFindings reads a template of findings. It is part of the program, so that a mistake in
// it is the program's.
func ParseFindings(text string) Findings {
	t := template.New("findings").Option("missingkey=error").Funcs(template.FuncMap{
		"list": func(v []string) string { return strings.Join(v, ", ") }, "names": Listed,
		"short": Short, "format": Format, "percent0": Percent0, "percent1": Percent1,
		"fixed": func(digits int, v float64) string { return fmt.Sprintf("%.*f", digits, v) },
	})
	return Findings{template.Must(t.Parse(text))}
}

// Of returns the findings of a kind that facts lead to.
func (f Findings) Of(kind string, facts any) (found []string, err error) {
	var text strings.Builder
	if err := f.t.ExecuteTemplate(&text, kind, facts); err != nil {
		return nil, err
	}
	for paragraph := range strings.SplitSeq(text.String(), "\n\n") {
		if words := strings.Fields(paragraph); len(words) > 0 {
			found = append(found, strings.Join(words, " "))
		}
	}
	return found, nil
}

// Listed joins with commas and an "and".
func Listed(all []string) string {
	if n := len(all); n > 1 {
		return strings.Join(all[:n-1], ", ") + " and " + all[n-1]
	}
	return strings.Join(all, "")
}

// Percent1 is a share in percent, with a digit behind the point.
func Percent1(v float64) string { return fmt.Sprintf("%.1f%%", 100*v) }
