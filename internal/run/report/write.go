package report

import (
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"strings"
	texttemplate "text/template"

	"github.com/perdure/perdure/internal/run/plot"
)

var (
	//go:embed page.html.tmpl
	htmlText string
	//go:embed page.md.tmpl
	markdownText string
	//go:embed page.css
	css string
)

// Mark appears in every file of a report, so that a new report may replace it.
const Mark = "made by perdure report"

var htmlPage = template.Must(template.New("page").Funcs(template.FuncMap{
	"css":  func() template.CSS { return template.CSS(plot.CSS() + css) },
	"svg":  func(f *plot.Figure) template.HTML { return template.HTML(f.SVG(false)) },
	"long": func(s string) bool { return len(s) > 48 },
	"mark": func() template.HTML {
		return template.HTML("<meta name=\"generator\" content=\"" + Mark + "\">")
	},
}).Parse(htmlText))

// HTML writes the page as one self-contained file.
func (p *Page) HTML(w io.Writer) error { return htmlPage.Execute(w, p) }

var markdownPage = texttemplate.Must(texttemplate.New("page").Funcs(texttemplate.FuncMap{
	"cell": func(s string) string {
		return strings.NewReplacer("|", `\|`, "\n", " ", "<", "&lt;").Replace(s)
	},
	"line": func(cells []string) string { return strings.Repeat("|---", len(cells)) + "|" },
	"mark": func() string { return "<!-- " + Mark + " -->" },
}).Parse(markdownText))

// File is a file next to a Markdown page.
type File struct {
	Name string
	Body []byte
}

// Markdown returns the page as Markdown, and its pictures, whose names begin with name.
func (p *Page) Markdown(name string) (text []byte, pictures []File, err error) {
	type named struct {
		*Page
		Files map[*plot.Figure]string
	}
	n := named{p, map[*plot.Figure]string{}}
	for i, s := range p.Sections {
		for _, pic := range s.Pictures {
			file := fmt.Sprintf("%s-%s.svg", name, pic.Name)
			if len(p.Sections) > 1 {
				file = fmt.Sprintf("%s-%d-%s.svg", name, i+1, pic.Name)
			}
			n.Files[pic.Wide] = file
			body := append(pic.Wide.SVG(true), []byte("<!-- "+Mark+" -->\n")...)
			pictures = append(pictures, File{file, body})
		}
	}
	var b strings.Builder
	if err := markdownPage.Execute(&b, n); err != nil {
		return nil, nil, err
	}
	return []byte(b.String()), pictures, nil
}
