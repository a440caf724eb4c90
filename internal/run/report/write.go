package report

import (
	"bytes"
	_ "embed"
	"errors"
	"fmt"
	"html/template"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/disk"
	"github.com/perdure/perdure/internal/run/plot"
)

var (
	//go:embed page.html.tmpl
	htmlText string
	//go:embed page.css
	css string
)

// mark is in each page, so that a new one may replace it.
const mark = "made by perdure report"

var htmlPage = template.Must(template.New("page").Funcs(template.FuncMap{
	"css":  func() template.CSS { return template.CSS(plot.Styles() + css) },
	"svg":  func(f *plot.Figure) template.HTML { return template.HTML(f.SVG(false)) },
	"long": func(s string) bool { return len(s) > 48 },
	"mark": func() template.HTML {
		return template.HTML("<meta name=\"generator\" content=\"" + mark + "\">")
	},
}).Parse(htmlText))

// HTML writes the page as one file that needs nothing else.
func (p *Page) HTML(w io.Writer) error { return htmlPage.Execute(w, p) }

// Write writes the page into an .html file, and prints what it wrote. It replaces an existing file only if a report has
// made it, or by force.
func (p *Page) Write(out io.Writer, file string, force bool) error {
	if end := filepath.Ext(file); end != ".html" && end != ".htm" {
		return fmt.Errorf("%w: a report is an .html file, and not %s", perdure.ErrUsage, file)
	}
	if err := mayReplace(file, force); err != nil {
		return err
	}
	var page bytes.Buffer
	if err := p.HTML(&page); err != nil {
		return err
	}
	size := page.Len()
	err := disk.WriteFile(disk.OS(), filepath.ToSlash(file), func(w io.Writer) error {
		_, err := page.WriteTo(w)
		return err
	})
	if at := (*os.PathError)(nil); errors.As(err, &at) {
		return fmt.Errorf("%w: cannot write %s: %w", perdure.ErrUsage, file, at.Err)
	}
	if err != nil {
		return err
	}
	runs := 0
	for _, s := range p.Sections {
		runs += len(s.trials)
	}
	fmt.Fprintf(out, "%s: a report of %s, %.1f kB\n", file, plural(float64(runs), "run"), float64(size)/1000)
	return nil
}

// mayReplace refuses to replace what no report has made.
func mayReplace(file string, force bool) error {
	if force {
		return nil
	}
	b, err := disk.ReadRegular(file, 256<<20)
	switch {
	case errors.Is(err, fs.ErrNotExist) || err == nil && bytes.Contains(b, []byte(mark)):
		return nil
	case err != nil:
		return fmt.Errorf("%w: cannot write %s: %w", perdure.ErrUsage, file, err)
	}
	return fmt.Errorf("%w: %s is there already, and is no report; choose another name, or --force", perdure.ErrUsage,
		file)
}
