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

// execStart is the command line that a unit runs, with what its own environment says.
func (u unit) execStart() ([]string, error) {
	env := map[string]string{}
	for _, e := range u["Service"]["Environment"] {
		key, value, _ := strings.Cut(strings.Trim(e, `"`), "=")
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
		args, err := u.execStart()
		if err != nil {
			t.Errorf("%s: %v", file, err)
			continue
		}
		name := strings.TrimPrefix(strings.TrimSuffix(filepath.Base(file), ".service"), "perdure-")
		k, err := parseUnit(args)
		if err != nil || !strings.HasPrefix(k.Command(), name) {
			t.Errorf("%s: %v: %v", file, args, err)
		}
		for key, want := range map[string]string{
			"Restart": "on-failure", "KillSignal": "SIGTERM", "RestartPreventExitStatus": fmt.Sprint(exitUsage),
			"NoNewPrivileges": "yes", "ProtectSystem": "strict", "User": "perdure",
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
	if args, err := wrong.execStart(); err != nil {
		t.Error(err)
	} else if _, err := parseUnit(args); err == nil {
		t.Errorf("%v is taken", args)
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
