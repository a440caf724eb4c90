package report

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/disk"
)

// Write writes the page to a file: HTML for .html, or Markdown for .md with pictures next to it. It replaces an
// existing file only if that is a report or force is set. It prints a line about the files.
func (p *Page) Write(out io.Writer, file string, force bool) error {
	var files []File
	switch end := filepath.Ext(file); end {
	case ".html", ".htm":
		var b bytes.Buffer
		if err := p.HTML(&b); err != nil {
			return err
		}
		files = []File{{file, b.Bytes()}}
	case ".md":
		text, pictures, err := p.Markdown(strings.TrimSuffix(filepath.Base(file), end))
		if err != nil {
			return err
		}
		for _, pic := range pictures { // first, so that an existing page always has its pictures
			files = append(files, File{filepath.Join(filepath.Dir(file), pic.Name), pic.Body})
		}
		files = append(files, File{file, text})
	default:
		return perdure.Usagef("a report must be an .html or an .md file: %s", file)
	}
	for _, f := range files {
		if err := mayReplace(f.Name, force); err != nil {
			return err
		}
	}
	size := 0
	for _, f := range files {
		if err := save(f); err != nil {
			return err
		}
		size += len(f.Body)
	}
	beside := ""
	if n := len(files) - 1; n > 0 {
		beside = fmt.Sprintf(" and %s next to it", plural(float64(n), "picture"))
	}
	runs := 0
	for _, s := range p.Sections {
		runs += len(s.trials)
	}
	fmt.Fprintf(out, "%s: a report of %s%s, %.1f kB\n", file, plural(float64(runs), "run"), beside, float64(size)/1000)
	return nil
}

// mayReplace returns an error if the file exists and is not a report.
func mayReplace(file string, force bool) error {
	if force {
		return nil
	}
	b, err := disk.ReadRegular(file, 256<<20)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return perdure.Usagef("cannot write %s: %w", file, err)
	case bytes.Contains(b, []byte(Mark)):
		return nil
	}
	return perdure.Usagef("%s already exists and is not a report; choose another name, or add --force", file)
}

func save(f File) error {
	err := disk.WriteFile(disk.OS(), filepath.ToSlash(f.Name), func(w io.Writer) error {
		_, err := w.Write(f.Body)
		return err
	})
	if errors.Is(err, fs.ErrNotExist) {
		return perdure.Usagef("directory %s does not exist", filepath.Dir(f.Name))
	}
	if at, is := errors.AsType[*os.PathError](err); is {
		return perdure.Usagef("cannot write %s: %w", f.Name, at.Err)
	}
	return err
}
