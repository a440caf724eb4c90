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

// unit is a systemd unit file: the values of each key in order, by section.
type unit map[string]map[string][]string

// readUnit parses a unit and rejects what systemd would not accept.
func readUnit(text string) (unit, error) {
	u, section := unit{}, ""
	for i, line := range strings.Split(text, "\n") {
		line = strings.TrimSpace(line)
		if name := strings.TrimSuffix(strings.TrimPrefix(line, "["), "]"); len(name)+2 == len(line) && line[0] == '[' {
			if section = name; u[section] != nil {
				return nil, fmt.Errorf("line %d: duplicate section %s", i+1, section)
			}
			u[section] = map[string][]string{}
			continue
		}
		if line == "" || line[0] == '#' {
			continue
		}
		key, value, is := strings.Cut(line, "=")
		if !is || section == "" || !regexp.MustCompile(`^[A-Za-z]+$`).MatchString(key) {
			return nil, fmt.Errorf("line %d: %q is not KEY=VALUE in a section", i+1, line)
		}
		u[section][key] = append(u[section][key], value)
	}
	return u, nil
}

var variable = regexp.MustCompile(`\$\{(\w+)\}|\$(\w+)`)

// examples returns the settings for the environment file that a unit's comments suggest. The first element is empty.
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

// execStart returns the command line that a unit runs. Values in the environment file take precedence over the unit's
// own environment.
func (u unit) execStart(file map[string]string) ([]string, error) {
	env := map[string]string{}
	for _, e := range u["Service"]["Environment"] {
		key, value, _ := strings.Cut(strings.Trim(e, `"`), "=")
		env[key] = value
	}
	for key, value := range file {
		if _, is := env[key]; !is {
			return nil, fmt.Errorf("the unit has no default for %s", key)
		}
		env[key] = value
	}
	lines := u["Service"]["ExecStart"]
	if len(lines) != 1 {
		return nil, fmt.Errorf("ExecStart occurs %d times, want once", len(lines))
	}
	var args []string
	var unknown error
	for _, word := range strings.Fields(lines[0]) {
		m := variable.FindStringSubmatch(word)
		value := variable.ReplaceAllStringFunc(word, func(v string) string {
			text, known := env[strings.Trim(v, "${}")]
			if !known {
				unknown = fmt.Errorf("%s is not set", v)
			}
			return text
		})
		if m != nil && m[2] != "" { // without braces the value is split into words
			args = append(args, strings.Fields(value)...)
			continue
		}
		args = append(args, value)
	}
	return args, unknown
}

// TestUnits: the command lines of the systemd units are valid and run services. Each unit restarts its service, ends it
// as the command requires, and restricts its permissions.
func TestUnits(t *testing.T) {
	files, err := filepath.Glob("../../deploy/systemd/*.service")
	must(t, err)
	if len(files) != 2 {
		t.Fatalf("want 2 units, have %v", files)
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
			t.Errorf("%s has the examples %v, want an empty one and one more", file, all)
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
				t.Errorf("%s does not set %s once", file, key)
			}
		}
		if name == "host" && !slices.Equal(u["Service"]["KillMode"], []string{"mixed"}) {
			t.Errorf("%s: KillMode must be mixed, so that servers do not end before workers have left", file)
		}
	}
	if _, err := readUnit("[Service]\nRestart on-failure\n"); err == nil {
		t.Error("a line without a value is accepted")
	}
	wrong := unit{"Service": {"ExecStart": {"/bin/perdure host --jion a:1"}}}
	if args, err := wrong.execStart(nil); err != nil {
		t.Error(err)
	} else if _, err := parseUnit(args); err == nil {
		t.Errorf("%v is accepted", args)
	}
}

// checkUnit checks that the program accepts a unit's command line, and that each flag has the value from the example.
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
