package main

import (
	"strings"
	"testing"
	"unicode/utf8"
)

// helpOfCommand returns the help text of a command. what is the value of its --help flag.
func helpOfCommand(t *testing.T, what string, args ...string) string {
	t.Helper()
	node := commandTree()
	for _, name := range args {
		if node = commandOf(node, name); node == nil {
			t.Fatalf("there is no command %s", args)
		}
	}
	text := strings.Builder{}
	u := usage{out: &text, node: node, width: 80}
	if what == "all" {
		u.all()
	} else {
		must(t, u.print(what))
	}
	return text.String()
}

// TestHelpFits: the help of every command is at most 80 columns wide, and that of commands with dozens of flags fits a
// screen.
func TestHelpFits(t *testing.T) {
	const screen = 30
	for _, n := range commandTree().Leaves(true) {
		text := helpOfCommand(t, "-", strings.Fields(n.Path())...)
		for _, line := range strings.Split(text, "\n") {
			if utf8.RuneCountInString(line) > 80 {
				t.Errorf("perdure %s --help: %q is wider than 80 columns", n.Path(), line)
			}
		}
		grouped := len((&usage{node: n}).groups()) > 0
		if lines := strings.Count(text, "\n"); grouped && lines > screen {
			t.Errorf("perdure %s --help has %d lines; a screen has %d:\n%s", n.Path(), lines, screen, text)
		}
	}
	if text := helpOfCommand(t, "-", "train"); strings.Count(text, "\n") > screen || strings.Count(text, "  --") < 10 {
		t.Errorf("perdure train --help:\n%s", text)
	}
}

// TestHelpGroups: every flag of train and up appears with its full text in the help of a group, and every text belongs
// to a flag.
func TestHelpGroups(t *testing.T) {
	shown := map[string]bool{}
	for _, command := range []string{
		"train", "train softmax", "train cnn", "train mf", "train logreg", "train lda", "train quadratic", "up",
	} {
		args := strings.Fields(command)
		all := helpOfCommand(t, "all", args...)
		u := usage{node: commandTree()}
		for _, name := range args {
			u.node = commandOf(u.node, name)
		}
		for _, f := range u.flags() {
			if isHelp(f) {
				continue
			}
			if f.Group == nil {
				t.Errorf("perdure %s: --%s has no group", command, f.Name)
				continue
			}
			if !strings.Contains(all, " --"+f.Name) {
				t.Errorf("perdure %s --help-all lacks --%s", command, f.Name)
			}
			if text := helpOfCommand(t, f.Group.Key, args...); !strings.Contains(text, "\n  --"+f.Name) &&
				!strings.Contains(text, ", --"+f.Name) {
				t.Errorf("perdure %s --help=%s lacks --%s:\n%s", command, f.Group.Key, f.Name, text)
			}
			shown[f.Group.Key+"."+f.Name] = true
		}
	}
	for name := range flagTexts {
		if !shown[name] {
			t.Errorf("the text %s belongs to no flag", name)
		}
	}
	if text := helpOfCommand(t, "recovery", "train"); !strings.Contains(text, "\n      scar:C,R,SELECTOR ") {
		t.Errorf("--help=recovery does not list the strategies:\n%s", text)
	}
}

// TestHelpAsked: users can request help in the usual ways.
func TestHelpAsked(t *testing.T) {
	for args, want := range map[string]string{
		"train --help":            "Usage: perdure train [softmax|cnn|mf|logreg|lda|quadratic] [flags]",
		"train -h":                "Usage: perdure train [softmax|cnn|mf|logreg|lda|quadratic] [flags]",
		"train cnn --help":        "--partition=row|layer",
		"train mf --help=mf":      "--whole-users",
		"up --help-all":           "--outage-mb=N",
		"bench --help":            "Usage: perdure bench [moves|recovery|workloads] [flags]",
		"--help":                  "Usage: perdure COMMAND [flags]",
		"runs show --help":        "Usage: perdure runs show",
		"train --help=recovry":    `unknown flag group "recovry"; choose job, consistency, .*; did you mean recovery?`,
		"status --help=recovery":  "the flags of this command have no groups",
		"train --resume --help":   "--resume",
		"train --workers 3 --hel": "unknown flag --hel",
	} {
		code := 0
		if !strings.HasPrefix(want, "Usage") && !strings.HasPrefix(want, "--") {
			code = exitUsage
		}
		if code == 0 && !strings.Contains(args, "--resume") {
			wantOut(t, 0, strings.Fields(args), want)
		} else {
			wantRefused(t, exitUsage, want, strings.Fields(args)...)
		}
	}
}
