package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/alecthomas/kong"

	"github.com/perdure/perdure/internal/run/settings"
)

var writeReference = flag.Bool("reference.write", false, "write docs/guide/commands.md anew")

const referencePage = "../../docs/guide/commands.md"

// TestReference: the page of all commands and flags equals the program's output. Regenerate it with go test
// ./cmd/perdure -run TestReference -reference.write.
func TestReference(t *testing.T) {
	page := reference(newParser(context.Background(), &cli{}))
	if *writeReference {
		must(t, os.WriteFile(referencePage, []byte(page), 0o666))
	}
	is, err := os.ReadFile(referencePage)
	must(t, err)
	if string(is) != page {
		t.Errorf("%s differs from the program's output; regenerate it with go test ./cmd/perdure -run TestReference "+
			"-reference.write", referencePage)
	}
}

// reference returns the page: each command with its purpose, arguments and flags.
func reference(parser *kong.Kong) string {
	var b strings.Builder
	b.WriteString("# Commands\n\nEvery command, argument and flag, as `--help` and `--help=GROUP` say it. This " +
		"page is made by the program.\n")
	for _, n := range parser.Model.Leaves(true) {
		if n.Parent.Name == "train" && n.Name == settings.DefaultWorkload {
			b.WriteString(section(n.Parent, n.Parent.AllFlags(true)))
		}
		flags := n.AllFlags(true)
		switch {
		case n.Parent.Name == "train": // train's own section covers its shared flags
			b.WriteString(section(n, [][]*kong.Flag{n.Flags}))
		case n.Name == "up":
			b.WriteString(section(n, nil))
			b.WriteString(likeTrain(parser.Model, flags))
		default:
			b.WriteString(section(n, flags))
		}
	}
	return b.String()
}

// section returns the section about one command.
func section(n *kong.Node, flags [][]*kong.Flag) string {
	var b strings.Builder
	fmt.Fprintf(&b, "\n## `%s`\n\n", n.FullPath())
	for _, line := range wrapped(n.Help, 120) {
		b.WriteString(line + "\n")
	}
	rows := map[string]string{} // by group
	for _, p := range n.Positional {
		rows[""] += tableRow(p.Summary(), p.Help)
	}
	for _, f := range slices.Concat(flags...) {
		if isHelp(f) { // every command has these
			continue
		}
		group := ""
		if f.Group != nil {
			group = f.Group.Key
		}
		rows[group] += tableRow(flagSummary(f), strings.TrimSpace(flagLine(f)+" "+moreCell(f)))
	}
	for _, g := range flagGroups {
		if rows[g.name] != "" && n.Parent.Type == kong.ApplicationNode {
			rows[""] += fmt.Sprintf("| **%s** | **%s** |\n", g.name, g.title)
		}
		rows[""] += rows[g.name]
	}
	if rows[""] != "" {
		b.WriteString("\n| | |\n|---|---|\n" + rows[""])
	}
	return b.String()
}

// likeTrain returns the end of a section: the flags that train lacks, and the names of the shared ones.
func likeTrain(app *kong.Application, flags [][]*kong.Flag) string {
	trains, _ := fileFlags(commandOf(app.Node, "train"))
	own, shared := "", []string{}
	for _, f := range slices.Concat(flags...) {
		if isHelp(f) {
			continue
		}
		if trains[f.Name] != nil || slices.Contains(excludedFromFiles, f.Name) {
			shared = append(shared, "`--"+f.Name+"`")
			continue
		}
		own += tableRow(flagSummary(f), strings.TrimSpace(flagLine(f)+" "+moreCell(f)))
	}
	text := "\n| | |\n|---|---|\n" + own + "\nOf the flags of `perdure train` it has these:\n"
	return text + strings.Join(wrapped(strings.Join(shared, ", ")+".", 120), "\n") + "\n"
}

// moreCell returns the details of a flag as one table cell.
func moreCell(f *kong.Flag) string {
	if f.Group == nil {
		return ""
	}
	cell, listed := "", false
	for _, line := range strings.Split(flagTexts[f.Group.Key+"."+f.Name].more, "\n") {
		item, kept := strings.CutPrefix(line, "  ")
		what, about, two := strings.Cut(item, "  ")
		switch {
		case kept && two && what != "":
			cell += fmt.Sprintf("<br>`%s` %s", what, strings.TrimSpace(about))
		case kept && !strings.HasPrefix(item, " "):
			cell += fmt.Sprintf("<br>`%s`", item)
		case listed && !kept:
			cell += "<br>" + line
		default:
			cell += " " + strings.TrimSpace(line)
		}
		listed = kept
	}
	return strings.TrimSpace(cell)
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
