package report

import (
	"strings"
	"text/template"

	"github.com/perdure/perdure/internal/run/humanize"
)

// findings is the text from which the sentences that summarize a page are made. It is a template, so that it can be
// read and edited as text. It chooses sentences by what the page found, and inserts the numbers. For example, with a
// record whose fields are Fast, Seconds and Slow:
//
//	{{define "fast"}}
//	{{if .Fast}}It is fast,
//	as it should be: {{.Seconds}} s.{{end}}
//
//	{{with .Slow}}Slow are {{list .}}.{{end}}
//	{{end}}
//
// Each paragraph of the result is one finding, regardless of its line breaks. Empty paragraphs are skipped.
type findings struct{ t *template.Template }

// parseFindings parses a template of findings. It panics on errors, because the template is part of the program.
func parseFindings(text string) findings {
	t := template.New("findings").Option("missingkey=error").Funcs(template.FuncMap{
		"list": func(v []string) string { return strings.Join(v, ", ") }, "names": humanize.Join,
	})
	return findings{template.Must(t.Parse(text))}
}

// render returns the findings that the template named kind makes of record, one string for each.
func (f findings) render(kind string, record any) (found []string, err error) {
	var text strings.Builder
	if err := f.t.ExecuteTemplate(&text, kind, record); err != nil {
		return nil, err
	}
	for paragraph := range strings.SplitSeq(text.String(), "\n\n") {
		if words := strings.Fields(paragraph); len(words) > 0 {
			found = append(found, strings.Join(words, " "))
		}
	}
	return found, nil
}
