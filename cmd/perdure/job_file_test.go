package main

import (
	"context"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/alecthomas/kong"
)

// jobYAML writes a job file.
func jobYAML(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "job.yaml")
	must(t, os.WriteFile(path, []byte(text), 0o666))
	return path
}

// TestJobFile: a job file and a command line are merged into one command line, on which the flags of the command line
// win.
func TestJobFile(t *testing.T) {
	const text = "workload: mf\nworkers: 3\nrank: 8\nfault: [kill:server:0@clock:9, 'kill:worker:*@2s']\n" +
		"until: 0.9\nwhole-users: true\nout: a b\n"
	path := jobYAML(t, text)
	for args, want := range map[string]string{
		"train -f FILE": "train mf --workers=3 --rank=8 --fault=kill:server:0@clock:9 --fault=kill:worker:*@2s " +
			"--until=0.9 --whole-users=true --out=a b -f FILE",
		"train --file=FILE --workers 5 --fault x": "train mf --rank=8 --until=0.9 --whole-users=true --out=a b " +
			"--file=FILE --workers 5 --fault x",
		"train mf --rank=9 --out mf -fFILE": "train mf --workers=3 --fault=kill:server:0@clock:9 " +
			"--fault=kill:worker:*@2s --until=0.9 --whole-users=true --rank=9 --out mf -fFILE",
	} {
		j, err := openJobFile(parserModel(), strings.Fields(strings.ReplaceAll(args, "FILE", path)))
		must(t, err)
		line, err := j.commandLine("")
		must(t, err)
		if got := strings.ReplaceAll(strings.Join(line, " "), path, "FILE"); got != want {
			t.Errorf("%s:\n%s\nwant\n%s", args, got, want)
		}
	}
	for _, args := range []string{"train", "train --out -", "up --workers 3", "status", ""} {
		if j, err := openJobFile(parserModel(), strings.Fields(args)); j != nil || err != nil {
			t.Errorf("%s: unexpected job file %v (%v)", args, j, err)
		}
	}
}

// TestJobFileRefused: an error in a job file is reported in one line with the file's name and line number.
func TestJobFileRefused(t *testing.T) {
	for _, c := range []struct{ command, text, want string }{
		{"train", "workers: 4\nworkrs: 4\n", `:2: unknown key "workrs"; did you mean workers\?`},
		{"train", "workers: four\n", `:1: workers is the text "four"; write a whole number`},
		{"train", "seed: -1\n", `:1: seed is -1; it must not be negative`},
		{"train", "lr: fast\n", `:1: lr is the text "fast"; write a number`},
		{"train", "sparse: 1\n", `:1: sparse is 1; write true or false`},
		{"train", "fault: {a: b}\n", `:1: fault is a map; write a list`},
		{"train", "data:\n", `:1: data is empty; write a word or a number`},
		{"train", "clocks: 4\ndata: ''\n", `:2: data is empty; set a value or remove the key`},
		{"train", "", ` is empty: it has no key`},
		{"up", "# workers: 4\n", ` is empty: it has no key`},
		{"train", "workload: softmx\n", `:1: unknown workload "softmx"; choose .*; did you mean softmax\?`},
		{"train", "\nrank: 3\n", `:2: rank is only valid in job files for perdure train mf`},
		{"train", "resume: a\n", `:1: resume is not allowed in a job file`},
		{"train", "seed: 3\n\nconsistency: bpp\n", `:3: unknown consistency model "bpp"; choose`},
		{"train", "clocks: 9\nmtbf: 6h\nrecovery: none\n", `:2: --mtbf determines the automatic checkpoint interval`},
		{"train", "servers: 2\nfault: [kill:server:9@clock:3]\n", `:2: fault "kill:server:9@clock:3": there is no`},
		{"train", "- workers\n", `:1: the document is a list; write a map`},
		{"train", "workers: [\n", `:1: invalid YAML`},
		{"up", "workload: mf\n", `:1: unknown key "workload"`},
		{"up", "until: 0.9\n", `:1: unknown key "until"`},
		{"up", "recovery: resnd:5\n", `:1: unknown recovery strategy "resnd:5"`},
	} {
		wantRefused(t, exitUsage, `^perdure: \S*job.yaml`+c.want, c.command, "-f", jobYAML(t, c.text))
	}
	wantRefused(t, exitUsage, "none.yaml cannot be read: no such file", "train", "-f", "none.yaml")
	wantRefused(t, exitUsage, "--file is given 2 times", "train", "-f", "a.yaml", "--file", "b.yaml")
}

// TestInit: the file that init writes runs unchanged and trains the model that a run without the file trains.
func TestInit(t *testing.T) {
	path := filepath.Join(t.TempDir(), "job.yaml")
	wantOut(t, 0, []string{"init", path}, "run it with: perdure train -f "+path)
	wantRefused(t, exitUsage, "job.yaml already exists", "init", path)
	wantRefused(t, exitError, "cannot write .*: no such file", "init", filepath.Join(path+"s", "job.yaml"))
	j, err := openJobFile(parserModel(), []string{"train", "-f", path})
	must(t, err)
	if wrong := j.errorWithout(""); wrong != "" {
		t.Error(wrong)
	}
	_, dir := trained(t, "train", "-f", path, "--clocks", "3", "--batch", "8", "--data", pictures, "--quiet")
	_, plain := trained(t, "train", "--clocks", "3", "--batch", "8", "--data", pictures, "--quiet")
	if a, b := summary(t, dir), summary(t, plain); *a.ModelSHA256 != *b.ModelSHA256 {
		t.Error("the model differs from that of a run without the file")
	}
	// Every commented line is also a key.
	text, err := os.ReadFile(path)
	must(t, err)
	_, names := fileFlags(commandOf(parserModel().Node, "train"))
	found := regexp.MustCompile(`(?m)^#?([a-z0-9-]+): `).FindAllStringSubmatch(string(text), -1)
	for _, m := range found {
		if m[1] != workloadKey && !slices.Contains(names, m[1]) {
			t.Errorf("%s is not a key", m[1])
		}
	}
	if len(found) != len(names)+1 {
		t.Errorf("%d keys; want %d", len(found), len(names)+1)
	}
}

const schemaFile = "../../docs/formats/job.schema.json"

// TestSchema: the schema in the documentation is the program's output.
func TestSchema(t *testing.T) {
	_, out, _ := invoke(t, "init", "--schema")
	if *writeReference {
		must(t, os.WriteFile(schemaFile, []byte(out), 0o666))
	}
	is, err := os.ReadFile(schemaFile)
	must(t, err)
	if string(is) != out {
		t.Errorf("%s differs from perdure init --schema; regenerate it with go test ./cmd/perdure -run TestSchema "+
			"-reference.write", schemaFile)
	}
	wantRefused(t, exitUsage, "--schema prints", "init", "--schema", "a.yaml")
}

func parserModel() *kong.Application { return newParser(context.Background(), &cli{}).Model }
