package testcluster

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/perdure/perdure/internal/data/wire"
)

// Senders lists the roles that may send a kind of message, by receiver.
type Senders struct {
	Name                string // without its Kind
	Coordinator, Server []wire.Role
	Acceptors           []wire.Role // roles that send it as the accepting side
}

const (
	sendersPage   = "docs/design/security.md"
	sendersHeader = "| kind | message | to the coordinator | to a server | back |\n|---|---|---|---|---|\n"
	kindsFile     = "internal/data/wire/frame.go"
)

// ParseSenders parses the table of docs/design/security.md in the repository at root. It returns an error if the table
// lacks a kind of message, or lists one that does not exist or is never sent.
func ParseSenders(root string) (map[wire.Kind]Senders, error) {
	page, err := os.ReadFile(filepath.Join(root, sendersPage))
	if err != nil {
		return nil, err
	}
	_, rest, found := strings.Cut(string(page), sendersHeader)
	if !found {
		return nil, fmt.Errorf("%s: missing table that begins with\n%s", sendersPage, sendersHeader)
	}
	rights := map[wire.Kind]Senders{}
	for line := range strings.Lines(rest) {
		if !strings.HasPrefix(line, "|") {
			break
		}
		kind, right, err := parseSenders(line)
		if err == nil && rights[kind].Name != "" {
			err = fmt.Errorf("duplicate row for kind %d", kind)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %q: %w", sendersPage, line, err)
		}
		rights[kind] = right
	}
	return rights, compareKinds(rights, filepath.Join(root, kindsFile))
}

// parseSenders parses one row.
func parseSenders(line string) (kind wire.Kind, r Senders, err error) {
	cells := strings.Split(strings.Trim(line, "|\n "), " | ")
	if len(cells) != 5 {
		return 0, r, fmt.Errorf("%d cells, want 5", len(cells))
	}
	n, err := strconv.ParseUint(cells[0], 10, 8)
	if err != nil {
		return 0, r, err
	}
	r.Name = cells[1]
	for i, to := range []*[]wire.Role{&r.Coordinator, &r.Server, &r.Acceptors} {
		if cells[i+2] == "–" {
			continue
		}
		for name := range strings.SplitSeq(cells[i+2], ", ") {
			if wire.Role(name).Printable() != wire.Role(name) {
				return 0, r, fmt.Errorf("unknown role %q", name)
			}
			*to = append(*to, wire.Role(name))
		}
	}
	return wire.Kind(n), r, nil
}

// compareKinds compares the table with the kinds declared in a Go file.
func compareKinds(rights map[wire.Kind]Senders, file string) error {
	kinds, err := kindsOf(file)
	if err != nil {
		return err
	}
	for kind, name := range kinds {
		if r := rights[kind]; r.Name != name {
			return fmt.Errorf("%s: kind %d is %q, want Kind%s; list its senders", sendersPage, kind, r.Name,
				name)
		}
	}
	unsent := []string{"Hello", "Life"} // the handshake, and a record only in update logs
	for kind, r := range rights {
		if kinds[kind] == "" {
			return fmt.Errorf("%s: kind %d (%s) does not exist", sendersPage, kind, r.Name)
		}
		said := len(r.Coordinator)+len(r.Server)+len(r.Acceptors) > 0
		if said == slices.Contains(unsent, r.Name) {
			return fmt.Errorf("%s: wrong senders for %s: %v", sendersPage, r.Name, said)
		}
	}
	return nil
}

// kindsOf reads the constants of type Kind from a Go file.
func kindsOf(file string) (map[wire.Kind]string, error) {
	parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	kinds := map[wire.Kind]string{}
	for _, d := range parsed.Decls {
		group, ok := d.(*ast.GenDecl)
		if !ok || group.Tok != token.CONST {
			continue
		}
		for _, s := range group.Specs {
			value := s.(*ast.ValueSpec)
			name, is := strings.CutPrefix(value.Names[0].Name, "Kind")
			if !is {
				continue
			}
			number, ok := value.Values[0].(*ast.BasicLit)
			if !ok {
				return nil, fmt.Errorf("%s: Kind%s is not an integer literal", file, name)
			}
			n, err := strconv.ParseUint(number.Value, 10, 8)
			if err != nil {
				return nil, fmt.Errorf("%s: Kind%s: %w", file, name, err)
			}
			kinds[wire.Kind(n)] = name
		}
	}
	if len(kinds) == 0 {
		return nil, fmt.Errorf("%s declares no constants of type Kind", file)
	}
	return kinds, nil
}
