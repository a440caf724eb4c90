package perdure_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// public imports what else a program of another module may use.
const public = `package main

import (
	_ "github.com/perdure/perdure/store/s3"
	_ "github.com/perdure/perdure/watch"
)
`

// The example compiles as a program of a module outside this repository, with all public packages, and with what its
// go.mod takes from ours.
func TestOutside(t *testing.T) {
	if testing.Short() {
		t.Skip("it links a program; make check-all does")
	}
	root, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	mod, err := os.ReadFile("go.mod")
	if err != nil {
		t.Fatal(err)
	}
	ours := strings.Replace(string(mod), "module github.com/perdure/perdure", "module example.com/outside", 1) +
		"\nrequire github.com/perdure/perdure v0.0.0\n\nreplace github.com/perdure/perdure => " + root + "\n"
	sum, err := os.ReadFile("go.sum")
	if err != nil {
		t.Fatal(err)
	}
	example, err := os.ReadFile("examples/train/main.go")
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"go.mod": ours, "go.sum": string(sum), "main.go": string(example), "public.go": public,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command("go", "build", "-mod=mod", "-o", filepath.Join(dir, "program"), ".")
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
