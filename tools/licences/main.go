// Command licences collects the licences of all third-party components in the program. It writes their texts to a file
// for redistribution, and a table of modules and licences to a documentation page.
//
// go-licenses (2.0.1) is not sufficient: it uses one file per package directory and misses 19 of 68 texts, such as
// those of fonts and those in THIRD_PARTY_LICENSES. It also covers neither Go itself nor data.
//
//	licences TEXTS [PAGE]
package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/google/licensecheck"
)

// released lists the processors that the program is built for, on Linux.
var released = []string{"amd64", "arm64"}

// chosen lists licences that cannot be detected from the texts, with the reason.
var chosen = map[string]string{
	"github.com/golang/freetype": "FTL", // dual-licensed, or under the GPL
}

// taken lists the accepted licences: all permit redistribution with their texts.
var taken = []string{
	"Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "BSL-1.0", "CC-BY-4.0", "FTL", "MIT", "MPL-2.0", "OFL-1.1",
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "licences:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) != 1 && len(args) != 2 {
		return errors.New("write licences TEXTS [PAGE], in the folder of the repository")
	}
	modules, err := list("./cmd/perdure")
	if err != nil {
		return err
	}
	var wrong []error
	for _, m := range modules {
		if m.licence, err = licenceOf(m); err != nil {
			wrong = append(wrong, err)
		}
	}
	if err := errors.Join(wrong...); err != nil {
		return err
	}
	own, err := os.ReadFile("LICENSE")
	if err != nil {
		return err
	}
	if err := os.WriteFile(args[0], texts(own, modules), 0o644); err != nil {
		return err
	}
	if len(args) == 1 {
		return nil
	}
	page, err := os.ReadFile(args[1])
	if err != nil {
		return err
	}
	const head = "| module | version | licence |\n"
	above, _, is := bytes.Cut(page, []byte(head))
	if !is {
		return fmt.Errorf("%s: missing line %q above the table", args[1], strings.TrimSpace(head))
	}
	page = fmt.Appendf(above, "%s|---|---|---|\n", head)
	for _, m := range modules {
		page = fmt.Appendf(page, "| `%s` | %s | %s |\n", m.path, m.version, m.licence)
	}
	return os.WriteFile(args[1], page, 0o644)
}

// module is a third-party module, limited to its packages in the program.
type module struct {
	path, version, dir string
	files              map[string][]byte // of licences, by their path within the module
	licence            string
}

// licenceFile matches the names of files with licences and attributions.
var licenceFile = regexp.MustCompile(`(?i)^(licen[cs]e|copying|notice|patents|third_party_licenses)([-._].*)?$|^licenses$`)

// list returns Go itself, a data set, and each module with a package in the program, sorted by path.
func list(program string) ([]*module, error) {
	all := map[string]*module{}
	for _, processor := range released {
		cmd := exec.Command("go", "list", "-deps", "-json=Dir,Standard,Module", program)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+processor)
		cmd.Stderr = os.Stderr
		out, err := cmd.Output()
		if err != nil {
			return nil, fmt.Errorf("go list: %w", err)
		}
		for d := json.NewDecoder(bytes.NewReader(out)); ; {
			var p struct {
				Dir      string
				Standard bool
				Module   *struct {
					Path, Version, Dir string
					Main               bool
				}
			}
			if err := d.Decode(&p); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				return nil, err
			}
			if p.Standard || p.Module == nil || p.Module.Main {
				continue
			}
			m := all[p.Module.Path]
			if m == nil {
				m = &module{path: p.Module.Path, version: p.Module.Version, dir: p.Module.Dir, files: map[string][]byte{}}
				all[m.path] = m
			}
			for dir := p.Dir; ; dir = filepath.Dir(dir) { // a package may have a licence of its own
				if err := m.read(dir); err != nil {
					return nil, err
				}
				if dir == m.dir || len(dir) < len(m.dir) {
					break
				}
			}
		}
	}
	root, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		return nil, fmt.Errorf("go env: %w", err)
	}
	itself := &module{path: "Go", version: "that builds it", dir: strings.TrimSpace(string(root)), files: map[string][]byte{}}
	if err := itself.read(itself.dir); err != nil {
		return nil, err
	}
	const pictures = "internal/data/dataset/embedded/README.txt"
	text, err := os.ReadFile(pictures)
	if err != nil {
		return nil, err
	}
	all["go"] = itself
	all["data"] = &module{path: "Fashion-MNIST", version: "a part of it", files: map[string][]byte{pictures: text}}
	return slices.SortedFunc(maps.Values(all), func(a, b *module) int { return cmp.Compare(a.path, b.path) }), nil
}

// read reads the licence files of a directory.
func (m *module) read(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if name := e.Name(); !licenceFile.MatchString(name) || slices.Contains([]string{".go", ".sh"}, filepath.Ext(name)) {
			continue
		}
		if err := filepath.WalkDir(filepath.Join(dir, e.Name()), func(path string, e fs.DirEntry, err error) error {
			if err != nil || !e.Type().IsRegular() {
				return err
			}
			within, err := filepath.Rel(m.dir, path)
			if err != nil {
				return err
			}
			m.files[within], err = os.ReadFile(path)
			return err
		}); err != nil {
			return err
		}
	}
	return nil
}

// licenceOf returns the SPDX names of a module's licences, separated by commas.
func licenceOf(m *module) (string, error) {
	if name := chosen[m.path]; name != "" {
		return name, nil
	}
	var names []string
	for _, file := range slices.Sorted(maps.Keys(m.files)) {
		if base := strings.ToLower(filepath.Base(file)); strings.HasPrefix(base, "notice") || strings.HasPrefix(base, "patents") {
			continue
		}
		for _, match := range licensecheck.Scan(m.files[file]).Match {
			if !match.IsURL && !slices.Contains(names, match.ID) {
				names = append(names, match.ID)
			}
		}
	}
	for _, name := range names {
		if !slices.Contains(taken, name) {
			return "", fmt.Errorf("%s has the licence %s, which is not one of %s: check whether it may be distributed",
				m.path, name, strings.Join(taken, ", "))
		}
	}
	if len(names) == 0 {
		return "", fmt.Errorf("%s has no recognized licence in %v: determine it and add it to chosen",
			m.path, slices.Sorted(maps.Keys(m.files)))
	}
	return strings.Join(names, ", "), nil
}

// texts returns all texts, each once, below the names of the modules that use it.
func texts(own []byte, modules []*module) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "Perdure\n\n%s", own)
	var order []string
	whose := map[string][]string{}
	for _, m := range modules {
		for _, file := range slices.Sorted(maps.Keys(m.files)) {
			text := strings.TrimSpace(strings.ReplaceAll(string(m.files[file]), "\r\n", "\n"))
			if whose[text] == nil {
				order = append(order, text)
			}
			whose[text] = append(whose[text], fmt.Sprintf("%s %s: %s", m.path, m.version, file))
		}
	}
	for _, text := range order {
		fmt.Fprintf(&b, "\n%s\n%s\n\n%s\n", strings.Repeat("=", 80), strings.Join(whose[text], "\n"), text)
	}
	return b.Bytes()
}
