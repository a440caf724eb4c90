package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/alecthomas/kong"
)

// unit is a file of systemd: the values of each key, by section, in their order.
type unit map[string]map[string][]string

// readUnit parses a unit, and refuses what systemd would not take.
func readUnit(text string) (unit, error) {
	u, section := unit{}, ""
	for i, line := range strings.Split(text, "\n") {
		line = strings.TrimSpace(line)
		if name := strings.TrimSuffix(strings.TrimPrefix(line, "["), "]"); len(name)+2 == len(line) && line[0] == '[' {
			if section = name; u[section] != nil {
				return nil, fmt.Errorf("line %d: section %s is there twice", i+1, section)
			}
			u[section] = map[string][]string{}
			continue
		}
		if line == "" || line[0] == '#' {
			continue
		}
		key, value, is := strings.Cut(line, "=")
		if !is || section == "" || !regexp.MustCompile(`^[A-Za-z]+$`).MatchString(key) {
			return nil, fmt.Errorf("line %d: %q is no KEY=VALUE of a section", i+1, line)
		}
		u[section][key] = append(u[section][key], value)
	}
	return u, nil
}

var variable = regexp.MustCompile(`\$\{(\w+)\}|\$(\w+)`)

// examples are what the comments of a unit say that one may write into its file of the environment, and nothing, first.
func examples(text string) (all []map[string]string) {
	all = []map[string]string{{}}
	within := false
	for _, line := range strings.Split(text, "\n") {
		key, value, is := strings.Cut(strings.TrimPrefix(line, "#\t"), "=")
		if is = is && strings.HasPrefix(line, "#\t"); is && !within {
			all = append(all, map[string]string{})
		}
		if within = is; is {
			all[len(all)-1][key] = value
		}
	}
	return all
}

// execStart is the command line that a unit runs, with what its own environment says, and its file, which goes first.
func (u unit) execStart(file map[string]string) ([]string, error) {
	env := map[string]string{}
	for _, e := range u["Service"]["Environment"] {
		key, value, _ := strings.Cut(strings.Trim(e, `"`), "=")
		env[key] = value
	}
	for key, value := range file {
		if _, is := env[key]; !is {
			return nil, fmt.Errorf("the unit does not say what %s is without the file", key)
		}
		env[key] = value
	}
	lines := u["Service"]["ExecStart"]
	if len(lines) != 1 {
		return nil, fmt.Errorf("ExecStart is there %d times", len(lines))
	}
	var args []string
	var unknown error
	for _, word := range strings.Fields(lines[0]) {
		m := variable.FindStringSubmatch(word)
		value := variable.ReplaceAllStringFunc(word, func(v string) string {
			text, known := env[strings.Trim(v, "${}")]
			if !known {
				unknown = fmt.Errorf("nothing sets %s", v)
			}
			return text
		})
		if m != nil && m[2] != "" { // without braces it is several words
			args = append(args, strings.Fields(value)...)
			continue
		}
		args = append(args, value)
	}
	return args, unknown
}

// TestUnits: what systemd starts are command lines that the program takes, of commands that are services; each is
// started again, ends as its command wants to, and may do little else.
func TestUnits(t *testing.T) {
	files, err := filepath.Glob("../../deploy/systemd/*.service")
	must(t, err)
	if len(files) != 2 {
		t.Fatalf("units: %v", files)
	}
	for _, file := range files {
		b, err := os.ReadFile(file)
		must(t, err)
		u, err := readUnit(string(b))
		if err != nil {
			t.Errorf("%s: %v", file, err)
			continue
		}
		name := strings.TrimPrefix(strings.TrimSuffix(filepath.Base(file), ".service"), "perdure-")
		if all := examples(string(b)); len(all) != 2 {
			t.Errorf("%s has the examples %v, want one, and none", file, all)
		}
		for _, env := range examples(string(b)) {
			checkUnit(t, u, name, env)
		}
		for key, want := range map[string]string{
			"Restart": "on-failure", "KillSignal": "SIGTERM",
			"RestartPreventExitStatus": fmt.Sprint(exitUsage, " ", exitFailed),
			"NoNewPrivileges":          "yes", "ProtectSystem": "strict", "User": "perdure",
		} {
			if got := u["Service"][key]; !slices.Equal(got, []string{want}) {
				t.Errorf("%s: %s is %v, want %s", file, key, got, want)
			}
		}
		for _, key := range []string{"TimeoutStopSec", "RestartSec"} {
			if len(u["Service"][key]) != 1 {
				t.Errorf("%s says nothing of %s", file, key)
			}
		}
		if name == "host" && !slices.Equal(u["Service"]["KillMode"], []string{"mixed"}) {
			t.Errorf("%s: a signal would end servers before workers have left", file)
		}
	}
	if _, err := readUnit("[Service]\nRestart on-failure\n"); err == nil {
		t.Error("a line without a value is taken")
	}
	wrong := unit{"Service": {"ExecStart": {"/bin/perdure host --jion a:1"}}}
	if args, err := wrong.execStart(nil); err != nil {
		t.Error(err)
	} else if _, err := parseUnit(args); err == nil {
		t.Errorf("%v is taken", args)
	}
}

// checkUnit asks that the program takes what a unit runs, and each flag of an example as the example says it.
func checkUnit(t *testing.T, u unit, name string, env map[string]string) {
	t.Helper()
	args, err := u.execStart(env)
	if err != nil {
		t.Errorf("%s, %v: %v", name, env, err)
		return
	}
	k, err := parseUnit(args)
	if err != nil || !strings.HasPrefix(k.Command(), name) {
		t.Errorf("%s, %v: %v: %v", name, env, args, err)
		return
	}
	got := map[string]any{}
	for _, f := range k.Flags() {
		got["--"+f.Name] = k.FlagValue(f)
	}
	for _, text := range env {
		words := strings.Fields(text)
		for i := 0; i+1 < len(words); i += 2 {
			if got[words[i]] != words[i+1] {
				t.Errorf("%s, %v: %s is %v", name, env, words[i], got[words[i]])
			}
		}
	}
	if join, has := env["PERDURE_JOIN"]; has && got["--join"] != join {
		t.Errorf("%s, %v: --join is %v", name, env, got["--join"])
	}
}

// parseUnit parses the command line of a unit.
func parseUnit(args []string) (*kong.Context, error) {
	if filepath.Base(args[0]) != "perdure" || !filepath.IsAbs(args[0]) {
		return nil, fmt.Errorf("%s is not the path of perdure", args[0])
	}
	parser := newParser(context.Background(), &cli{})
	parser.Stdout, parser.Stderr = io.Discard, io.Discard
	return parser.Parse(args[1:])
}
