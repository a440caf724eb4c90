package main

import (
	"maps"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// shipped returns the modules in the released program with their versions.
func shipped(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, processor := range []string{"amd64", "arm64"} {
		cmd := exec.Command("go", "list", "-deps", "-f", "{{with .Module}}{{.Path}} {{.Version}}{{end}}", ".")
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+processor)
		cmd.Stderr = os.Stderr
		out, err := cmd.Output()
		must(t, err)
		for _, line := range strings.Split(string(out), "\n") {
			if path, version, is := strings.Cut(line, " "); is && version != "" {
				all[path] = version
			}
		}
	}
	return all
}

// TestLicences: the licence page lists exactly the third-party modules in the program, with their versions. So a new
// module or version cannot be added without a review of its licence.
func TestLicences(t *testing.T) {
	text, err := os.ReadFile("../../docs/licences.md")
	must(t, err)
	listed := map[string]string{}
	rows := regexp.MustCompile("(?m)^\\| `(\\S+)` \\| (.+) \\| \\S.* \\|$")
	_, table, _ := strings.Cut(string(text), "| module | version | licence |")
	for _, row := range rows.FindAllStringSubmatch(table, -1) {
		if strings.Contains(row[1], ".") { // otherwise it is Go itself or data
			listed[row[1]] = row[2]
		}
	}
	if want := shipped(t); !maps.Equal(listed, want) {
		for _, path := range slices.Sorted(maps.Keys(want)) {
			if listed[path] != want[path] {
				t.Errorf("%s is in the program at version %s, but on the page at %q", path, want[path], listed[path])
			}
			delete(listed, path)
		}
		for path := range listed {
			t.Errorf("%s is on the page, but not in the program", path)
		}
		t.Error("run make licences to regenerate the page")
	}
}
