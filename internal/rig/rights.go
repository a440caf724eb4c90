package rig

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

// Right lists the roles that may send a kind of message, by receiver.
type Right struct {
	Name                string // without its Kind
	Coordinator, Server []wire.Role
	Back                []wire.Role // roles that send it as the accepting side
}

const (
	rightsPage  = "docs/design/security.md"
	rightsBegin = "| kind | message | to the coordinator | to a server | back |\n|---|---|---|---|---|\n"
	kindsFile   = "internal/data/wire/frame.go"
)

// Rights parses the table of docs/design/security.md in the repository at root. It returns an error if the table lacks
// a kind of message, or lists one that does not exist or is never sent.
func Rights(root string) (map[wire.Kind]Right, error) {
	page, err := os.ReadFile(filepath.Join(root, rightsPage))
	if err != nil {
		return nil, err
	}
	_, rest, found := strings.Cut(string(page), rightsBegin)
	if !found {
		return nil, fmt.Errorf("%s: missing table that begins with\n%s", rightsPage, rightsBegin)
	}
	rights := map[wire.Kind]Right{}
	for line := range strings.Lines(rest) {
		if !strings.HasPrefix(line, "|") {
			break
		}
		kind, right, err := parseRight(line)
		if err == nil && rights[kind].Name != "" {
			err = fmt.Errorf("duplicate row for kind %d", kind)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %q: %w", rightsPage, line, err)
		}
		rights[kind] = right
	}
	return rights, compareRights(rights, filepath.Join(root, kindsFile))
}

// parseRight parses one row.
func parseRight(line string) (kind wire.Kind, r Right, err error) {
	cells := strings.Split(strings.Trim(line, "|\n "), " | ")
	if len(cells) != 5 {
		return 0, r, fmt.Errorf("%d cells, want 5", len(cells))
	}
	n, err := strconv.ParseUint(cells[0], 10, 8)
	if err != nil {
		return 0, r, err
	}
	r.Name = cells[1]
	for i, to := range []*[]wire.Role{&r.Coordinator, &r.Server, &r.Back} {
		if cells[i+2] == "–" {
			continue
		}
		for name := range strings.SplitSeq(cells[i+2], ", ") {
			if wire.Role(name).Known() != wire.Role(name) {
				return 0, r, fmt.Errorf("unknown role %q", name)
			}
			*to = append(*to, wire.Role(name))
		}
	}
	return wire.Kind(n), r, nil
}

// compareRights compares the table with the kinds declared in a Go file.
func compareRights(rights map[wire.Kind]Right, file string) error {
	kinds, err := kindsOf(file)
	if err != nil {
		return err
	}
	for kind, name := range kinds {
		if r := rights[kind]; r.Name != name {
			return fmt.Errorf("%s: kind %d is %q, want Kind%s; list its senders", rightsPage, kind, r.Name,
				name)
		}
	}
	unsent := []string{"Hello", "Life"} // the handshake, and a record only in update logs
	for kind, r := range rights {
		if kinds[kind] == "" {
			return fmt.Errorf("%s: kind %d (%s) does not exist", rightsPage, kind, r.Name)
		}
		said := len(r.Coordinator)+len(r.Server)+len(r.Back) > 0
		if said == slices.Contains(unsent, r.Name) {
			return fmt.Errorf("%s: wrong senders for %s: %v", rightsPage, r.Name, said)
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
