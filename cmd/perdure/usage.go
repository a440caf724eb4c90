package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/alecthomas/kong"
	"golang.org/x/term"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/run/settings"
)

// This file prints help. The help of a command with few flags shows them all. train and up have dozens: their help
// shows the main ones, one line each, and --help=GROUP shows the others.

// helpFlag prints the help of the command that it follows. With the name of a group it prints the help of that group.
type helpFlag string

// Decode implements kong.MapperValue.
func (h *helpFlag) Decode(ctx *kong.DecodeContext) error {
	*h = "-"
	if t := ctx.Scan.Peek(); t.Type == kong.FlagValueToken {
		*h = helpFlag(ctx.Scan.Pop().String())
	}
	return nil
}

// IsBool makes kong accept the flag without a value.
func (helpFlag) IsBool() bool { return true }

// IgnoreDefault makes kong print the help of a command such as bench itself, instead of that of its default command.
func (helpFlag) IgnoreDefault() {}

// BeforeReset prints the help and exits as soon as the flag is parsed.
func (helpFlag) BeforeReset(k *kong.Context, p *kong.Path) error {
	h, _ := k.FlagValue(p.Flag).(helpFlag)
	text := strings.Builder{}
	u := usage{out: &text, node: helpTarget(k), width: width()}
	if err := u.print(string(h)); err != nil {
		return err
	}
	fmt.Fprint(k.Stdout, text.String())
	k.Kong.Exit(0)
	return nil
}

// helpAllFlag prints the help of a command with all its flags.
type helpAllFlag bool

// IgnoreDefault has the same effect as helpFlag's.
func (helpAllFlag) IgnoreDefault() {}

// BeforeReset prints the help and exits as soon as the flag is parsed.
func (helpAllFlag) BeforeReset(k *kong.Context) error {
	u := usage{out: k.Stdout, node: helpTarget(k), width: width()}
	u.all()
	k.Kong.Exit(0)
	return nil
}

// helpTarget returns the command whose help a command line requests.
func helpTarget(k *kong.Context) *kong.Node {
	n := k.Selected()
	if n == nil {
		return k.Model.Node
	}
	if n.Hidden && n == n.Parent.DefaultCmd {
		return n.Parent
	}
	return n
}

// width returns the width of the terminal, at most 100 columns, or 80 if stdout is not a terminal.
func width() int {
	const usual, most = 80, 100
	if w, _, err := term.GetSize(int(stdout.Fd())); err == nil && w > 0 {
		return min(w, most)
	}
	return usual
}

// usage prints the help of one command.
type usage struct {
	out   io.Writer
	node  *kong.Node
	width int
}

// print prints the requested help: the command's own for "-", otherwise that of the group.
func (u *usage) print(what string) error {
	if what == "-" {
		u.own()
		return nil
	}
	names := u.groups()
	switch {
	case len(names) == 0:
		return perdure.Usagef("the flags of this command have no groups; use --help")
	case !slices.Contains(names, what):
		return perdure.Usagef("unknown flag group %q; choose %s%s", what, strings.Join(names, ", "),
			settings.Suggest(what, names))
	}
	for _, g := range flagGroups {
		if g.name == what {
			fmt.Fprintf(u.out, "%s:\n", g.title)
		}
	}
	for _, f := range u.flags() {
		if f.Group == nil || f.Group.Key != what {
			continue
		}
		fmt.Fprintf(u.out, "\n  %s  %s\n", strings.TrimSpace(flagName(f)), flagLine(f))
		for _, line := range moreLines(f, u.width-6) {
			fmt.Fprintln(u.out, strings.TrimRight("      "+line, " "))
		}
	}
	return nil
}

// own prints the help of the command with its main flags, or with all flags if they have no groups.
func (u *usage) own() {
	u.head()
	main := func(f *kong.Flag) bool { return f.Tag.Has("main") }
	groups := u.groups()
	if len(groups) == 0 {
		main = func(*kong.Flag) bool { return true }
	}
	u.list(func(f *kong.Flag) bool { return main(f) && !isHelp(f) })
	if len(groups) == 0 {
		return
	}
	fmt.Fprintln(u.out)
	u.text("More: --help=GROUP, where GROUP is " + strings.Join(groups, ", ") + ". --help-all: all flags.")
}

// all prints the help with all flags, group by group.
func (u *usage) all() {
	u.head()
	if len(u.groups()) == 0 {
		u.list(func(f *kong.Flag) bool { return !isHelp(f) })
		return
	}
	for _, g := range flagGroups {
		if slices.Contains(u.groups(), g.name) {
			fmt.Fprintf(u.out, "%s (details: --help=%s)\n", g.title, g.name)
			u.list(func(f *kong.Flag) bool { return f.Group != nil && f.Group.Key == g.name })
			fmt.Fprintln(u.out)
		}
	}
}

// head prints the usage line, the description, and the list of subcommands and arguments.
func (u *usage) head() {
	fmt.Fprintln(u.out, "Usage:", usageLine(u.node))
	fmt.Fprintln(u.out)
	u.text(u.node.Help)
	var rows [][2]string
	for _, c := range u.node.Children {
		if !c.Hidden {
			rows = append(rows, [2]string{c.Name, c.Help})
		}
	}
	for _, p := range u.node.Positional {
		rows = append(rows, [2]string{p.Summary(), p.Help})
	}
	if len(rows) > 0 {
		fmt.Fprintln(u.out)
		u.table(rows)
	}
	fmt.Fprintln(u.out)
}

// usageLine returns the first line of the help.
func usageLine(n *kong.Node) string {
	line := "perdure"
	if n.Type != kong.ApplicationNode {
		line += " " + n.Path()
	}
	names := childNames(n)
	switch some := strings.Join(names, "|"); {
	case len(names) > 0 && n.DefaultCmd != nil:
		line += " [" + some + "]"
	case len(names) > 4:
		line += " COMMAND"
	case len(names) > 0:
		line += " " + some
	}
	for _, f := range n.Flags {
		if f.Required {
			line += " --" + f.Name + "=" + f.FormatPlaceHolder()
		}
	}
	for _, p := range n.Positional {
		line += " " + p.Summary()
	}
	return line + " [flags]"
}

// flags returns the flags that the command accepts: its own first, then those of its parents.
func (u *usage) flags() (flags []*kong.Flag) {
	all := u.node.AllFlags(true)
	for _, group := range slices.Backward(all) {
		flags = append(flags, group...)
	}
	return flags
}

func isHelp(f *kong.Flag) bool {
	return f.Name == "help" || f.Name == "help-all" || f.Name == "version"
}

// groups returns the names of the groups that the command's flags belong to, in the order of flagGroups.
func (u *usage) groups() (names []string) {
	has := map[string]bool{}
	for _, f := range u.flags() {
		if f.Group != nil {
			has[f.Group.Key] = true
		}
	}
	for _, g := range flagGroups {
		if has[g.name] {
			names = append(names, g.name)
		}
	}
	return names
}

// list prints the flags for which wanted is true.
func (u *usage) list(wanted func(f *kong.Flag) bool) {
	var rows [][2]string
	for _, f := range u.flags() {
		if wanted(f) {
			rows = append(rows, [2]string{flagName(f), flagLine(f)})
		}
	}
	u.table(rows)
}

// flagName formats a flag's name and placeholder: "-q, --quiet", "    --out=DIR".
func flagName(f *kong.Flag) string {
	s := "    --" + f.Name
	if f.Short != 0 {
		s = fmt.Sprintf("-%c, --%s", f.Short, f.Name)
	}
	if !f.IsBool() {
		s += "=" + strings.Trim(f.FormatPlaceHolder(), `"`)
	}
	return s
}

// flagLine returns the one-line help of a flag, with its default.
func flagLine(f *kong.Flag) string {
	if f.HasDefault && f.Group != nil {
		return fmt.Sprintf("%s (default %s).", strings.TrimSuffix(f.Help, "."), f.Default)
	}
	return f.Help
}

// moreLines returns the additional help of a flag, wrapped to width.
func moreLines(f *kong.Flag, width int) (lines []string) {
	if f.Group == nil {
		return nil
	}
	text := ""
	end := func() {
		if text != "" {
			lines, text = append(lines, wrapped(text, width)...), ""
		}
	}
	for _, line := range strings.Split(strings.TrimPrefix(flagTexts[f.Group.Key+"."+f.Name].more, "\n"), "\n") {
		if strings.HasPrefix(line, "  ") {
			end()
			lines = append(lines, line[2:])
			continue
		}
		text += " " + line
	}
	end()
	return lines
}

// table prints rows of two columns and wraps the second.
func (u *usage) table(rows [][2]string) {
	const most = 26
	column := 0
	for _, r := range rows {
		if n := utf8.RuneCountInString(r[0]); n <= most {
			column = max(column, n)
		}
	}
	for _, r := range rows {
		pad := column - utf8.RuneCountInString(r[0])
		fmt.Fprintf(u.out, "  %s", r[0])
		if pad < 0 {
			fmt.Fprintln(u.out)
			pad = column + 2
		}
		for i, line := range wrapped(r[1], u.width-column-4) {
			if i > 0 {
				pad = column + 2
			}
			fmt.Fprintf(u.out, "%s  %s\n", strings.Repeat(" ", pad), line)
		}
	}
}

// text prints a paragraph.
func (u *usage) text(text string) {
	for _, line := range wrapped(text, u.width) {
		fmt.Fprintln(u.out, line)
	}
}

// wrapped breaks a text into lines. The result has at least one line, even for an empty text.
func wrapped(text string, most int) (lines []string) {
	line := ""
	for _, word := range strings.Fields(text) {
		if line != "" && utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) > most {
			lines, line = append(lines, line), ""
		}
		if line != "" {
			line += " "
		}
		line += word
	}
	return append(lines, line)
}

// fillFlags sets the one-line help of flags that are in a group.
func fillFlags(n *kong.Node) error {
	for _, f := range n.Flags {
		if f.Group == nil {
			continue
		}
		text, known := flagTexts[f.Group.Key+"."+f.Name]
		if !known {
			return fmt.Errorf("no help text for --%s in group %s", f.Name, f.Group.Key)
		}
		f.Help = text.line
	}
	return nil
}
