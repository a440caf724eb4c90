package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/alecthomas/kong"
)

var writeReference = flag.Bool("reference.write", false, "write docs/guide/commands.md anew")

const referencePage = "../../docs/guide/commands.md"

// TestReference: the page of all commands and flags is what the program itself says. Write
// it anew with go test ./cmd/perdure -run TestReference -reference.write.
func TestReference(t *testing.T) {
	page := reference(newParser(context.Background(), &cli{}))
	if *writeReference {
		must(t, os.WriteFile(referencePage, []byte(page), 0o666))
	}
	is, err := os.ReadFile(referencePage)
	must(t, err)
	if string(is) != page {
		t.Errorf("%s is not what the program says; write it anew with go test ./cmd/perdure -run TestReference "+
			"-reference.write", referencePage)
	}
}

// reference is the page: each command with what it is for, its arguments and its flags.
func reference(parser *kong.Kong) string {
	var b strings.Builder
	b.WriteString("# Commands\n\nEvery command, argument and flag, as `--help` says it. This page is made by the " +
		"program.\n")
	for _, n := range parser.Model.Leaves(true) {
		name := n.FullPath()
		fmt.Fprintf(&b, "\n## `%s`\n\n", name)
		for _, line := range wrapped(n.Help, 120) {
			b.WriteString(line + "\n")
		}
		var rows []string
		for _, p := range n.Positional {
			rows = append(rows, tableRow(p.Summary(), p.Help))
		}
		for _, group := range n.AllFlags(true) {
			for _, f := range group {
				if f.Name != "help" && f.Name != "version" { // every command has these
					rows = append(rows, tableRow(flagSummary(f), f.Help))
				}
			}
		}
		if len(rows) > 0 {
			b.WriteString("\n| | |\n|---|---|\n" + strings.Join(rows, ""))
		}
	}
	return b.String()
}

func flagSummary(f *kong.Flag) string {
	s := "--" + f.Name
	if f.Short != 0 {
		s = fmt.Sprintf("-%c, %s", f.Short, s)
	}
	if !f.IsBool() {
		s += "=" + strings.ReplaceAll(f.FormatPlaceHolder(), "\"", "")
	} else if f.Negated {
		s = strings.Replace(s, "--", "--[no-]", 1)
	}
	return s
}

func tableRow(what, help string) string {
	return fmt.Sprintf("| `%s` | %s |\n", what, strings.ReplaceAll(help, "|", "\\|"))
}

// wrapped breaks a text into lines.
func wrapped(text string, most int) (lines []string) {
	line := ""
	for _, word := range strings.Fields(text) {
		if line != "" && len(line)+1+len(word) > most {
			lines, line = append(lines, line), ""
		}
		if line != "" {
			line += " "
		}
		line += word
	}
	return append(lines, line)
}
