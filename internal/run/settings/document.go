package settings

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/disk"
)

// Documents are YAML or JSON files that people write for the command: a job, a study, a list of prices. A document
// consists of maps, lists and scalars, and each Node knows its line. Readers ask a node for the type that they need.
// Errors are one line with the file, the line and the key. Values are never coerced: a quoted 4 is a text and not a
// number, and a duplicate or unknown key is an error. Anchors, tags and multiple documents in one file are rejected: no
// job needs them, and they obscure the meaning.
//
// A Node is immutable and safe for concurrent use.

// MaxDocumentBytes is the size of the longest document that is accepted. Documents written by hand are far smaller.
const MaxDocumentBytes = 1 << 20

// Node is a document or a part of it.
type Node struct {
	file string // as the user named it
	line int    // line of the key if it has one
	path string // keys and indexes that lead to it: "job.fault[2]"; "" for the document
	node *yaml.Node
}

// Entry is a key of a map with its value.
type Entry struct {
	Key   string
	Value Node
}

// ReadDocument reads the document in a regular file.
func ReadDocument(path string) (Node, error) {
	text, err := readDocument(path)
	if pe, is := errors.AsType[*fs.PathError](err); is {
		err = pe.Err // without the path and the name of the system call
	}
	if err != nil {
		return Node{}, perdure.Usagef("%s cannot be read: %w", path, err)
	}
	return ParseDocument(path, text)
}

func readDocument(path string) ([]byte, error) {
	f, err := disk.OpenRegular(path)
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // it was only read
	return io.ReadAll(io.LimitReader(f, MaxDocumentBytes+1))
}

// ParseDocument parses a document with the given name. It returns an error if the document has no key.
func ParseDocument(name string, text []byte) (Node, error) {
	v := Node{file: name, line: 1}
	switch {
	case len(text) > MaxDocumentBytes:
		return v, perdure.Usagef("%s is longer than %d bytes, the limit for a document", name, MaxDocumentBytes)
	case bytes.IndexByte(text, 0) >= 0:
		return v, perdure.Usagef("%s is not a text file; write YAML or JSON", name)
	}
	d := yaml.NewDecoder(bytes.NewReader(text))
	var root, next yaml.Node
	switch err := d.Decode(&root); {
	case errors.Is(err, io.EOF):
		return v, v.empty()
	case err != nil:
		return v, v.syntax(err)
	}
	switch err := d.Decode(&next); {
	case err == nil:
		v.line = next.Line
		return v, v.Errorf("a second document starts here; write one document per file")
	case !errors.Is(err, io.EOF):
		return v, v.syntax(err)
	}
	v.node = root.Content[0]
	if n := v.node; n.ShortTag() == nullTag || n.Kind == yaml.MappingNode && len(n.Content) == 0 {
		return v, v.empty()
	}
	return v, v.check()
}

// empty returns the error for a document without keys. Such a file is probably truncated or commented out, and
// accepting it would silently apply all defaults.
func (v Node) empty() error {
	return perdure.Usagef("%s is empty: it has no key; write at least one, as in workers: 4", v.file)
}

// Tags of scalars.
const (
	nullTag  = "!!null"
	textTag  = "!!str"
	intTag   = "!!int"
	floatTag = "!!float"
	boolTag  = "!!bool"
)

var syntaxLine = regexp.MustCompile(`^yaml: (?:line (\d+): )?(?s:(.*))$`)

// syntax turns an error of the YAML parser into one line in the format of all other errors.
func (v Node) syntax(err error) error {
	m := syntaxLine.FindStringSubmatch(err.Error())
	if m == nil {
		return v.Errorf("%s", strings.ReplaceAll(err.Error(), "\n", "; "))
	}
	if n, err := strconv.Atoi(m[1]); err == nil {
		v.line = n
	}
	return v.Errorf("invalid YAML: %s", strings.ReplaceAll(m[2], "\n", "; "))
}

// check returns an error if v or a node below it uses an unsupported YAML feature.
func (v Node) check() error {
	switch n := v.node; {
	case n.Kind == yaml.AliasNode || n.Anchor != "":
		return v.Errorf("anchors and aliases are not supported; write the value where it is needed")
	case n.Style&yaml.TaggedStyle != 0:
		return v.Errorf("the tag %s is not supported; leave it out", n.Tag)
	case n.Kind == yaml.MappingNode:
		return v.checkMap()
	case n.Kind == yaml.SequenceNode:
		for i := range n.Content {
			if err := v.item(i).check(); err != nil {
				return err
			}
		}
	}
	return nil
}

func (v Node) checkMap() error {
	lines := map[string]int{} // of keys
	for i := 0; i < len(v.node.Content); i += 2 {
		key := v.node.Content[i]
		at := v.entry(i).Value
		at.path = v.path
		if key.Kind != yaml.ScalarNode || key.ShortTag() == "!!merge" || key.Anchor != "" || key.Value == "" {
			return at.Errorf("a key must be a word, as in workers: 4")
		}
		if first, twice := lines[key.Value]; twice {
			return at.Errorf("duplicate key %s; it is already on line %d", key.Value, first)
		}
		lines[key.Value] = key.Line
		if err := v.entry(i).Value.check(); err != nil {
			return err
		}
	}
	return nil
}

func (v Node) entry(i int) Entry {
	key := v.node.Content[i]
	path := key.Value
	if v.path != "" {
		path = v.path + "." + path
	}
	return Entry{key.Value, Node{file: v.file, line: key.Line, path: path, node: v.node.Content[i+1]}}
}

func (v Node) item(i int) Node {
	n := v.node.Content[i]
	return Node{file: v.file, line: n.Line, path: fmt.Sprintf("%s[%d]", v.path, i+1), node: n}
}

// Line returns the line of the value's key, or of the value if it has no key, counting from 1.
func (v Node) Line() int { return v.line }

// Path returns the keys and indexes that lead to the value, as in "job.fault[2]"; "" is the document.
func (v Node) Path() string { return v.path }

// Folder returns the directory of the document. Relative paths in the document may refer to it.
func (v Node) Folder() string { return filepath.Dir(v.file) }

// Errorf returns an error of one line that starts with the file and the value's line.
func (v Node) Errorf(format string, args ...any) error {
	return perdure.Usagef("%s:%d: %w", v.file, v.line, fmt.Errorf(format, args...))
}

// wrong returns the error for a value of another type than want.
func (v Node) wrong(want string) error {
	name := v.path
	if name == "" {
		name = "the document"
	}
	return v.Errorf("%s is %s; write %s", name, v.describe(), want)
}

// describe names the value in an error.
func (v Node) describe() string {
	switch n := v.node; {
	case n.Kind == yaml.MappingNode:
		return "a map"
	case n.Kind == yaml.SequenceNode:
		return "a list"
	case n.ShortTag() == nullTag:
		return "empty"
	case n.ShortTag() == textTag:
		return "the text " + strconv.Quote(shortened(n.Value))
	default:
		return shortened(n.Value)
	}
}

// shortened truncates text so that an error fits on one line.
func shortened(text string) string {
	const most = 60
	if r := []rune(text); len(r) > most {
		return string(r[:most]) + "…"
	}
	return text
}

// IsMap reports whether the value has keys.
func (v Node) IsMap() bool { return v.node.Kind == yaml.MappingNode }

// IsList reports whether the value is a list.
func (v Node) IsList() bool { return v.node.Kind == yaml.SequenceNode }

// Map returns the value's keys in document order. If known is not empty, any other key is an error that suggests the
// nearest known key.
func (v Node) Map(known ...string) ([]Entry, error) {
	if !v.IsMap() {
		return nil, v.wrong("a map, a line for each key, as in workers: 4")
	}
	entries := make([]Entry, 0, len(v.node.Content)/2)
	for i := 0; i < len(v.node.Content); i += 2 {
		e := v.entry(i)
		if len(known) > 0 {
			if err := e.Known(known...); err != nil {
				return nil, err
			}
		}
		entries = append(entries, e)
	}
	return entries, nil
}

// Known returns an error if the entry's key is not one of known. The error suggests the nearest known key.
func (e Entry) Known(known ...string) error {
	if slices.Contains(known, e.Key) {
		return nil
	}
	return e.Value.Errorf("unknown key %s%s", strconv.Quote(shortened(e.Key)), Suggest(e.Key, known))
}

// List returns the value's items.
func (v Node) List() ([]Node, error) {
	if !v.IsList() {
		return nil, v.wrong("a list, as in [a, b]")
	}
	items := make([]Node, len(v.node.Content))
	for i := range items {
		items[i] = v.item(i)
	}
	return items, nil
}

// Text returns a scalar as it is written in the document; for a number, that is its digits.
func (v Node) Text() (string, error) {
	if v.node.Kind != yaml.ScalarNode || v.node.ShortTag() == nullTag {
		return "", v.wrong("a word or a number")
	}
	return v.node.Value, nil
}

// Texts returns a list of scalars as they are written. A single scalar counts as a list of one.
func (v Node) Texts() ([]string, error) {
	if !v.IsList() {
		text, err := v.Text()
		if err != nil {
			return nil, v.wrong("a list, as in [a, b]")
		}
		return []string{text}, nil
	}
	items, err := v.List()
	if err != nil {
		return nil, err
	}
	texts := make([]string, len(items))
	for i, item := range items {
		if texts[i], err = item.Text(); err != nil {
			return nil, err
		}
	}
	return texts, nil
}

// Int returns a whole number.
func (v Node) Int() (int64, error) {
	if v.node.ShortTag() == intTag {
		if n, err := strconv.ParseInt(v.node.Value, 10, 64); err == nil {
			return n, nil
		}
	}
	return 0, v.wrong("a whole number")
}

// Float returns a finite number.
func (v Node) Float() (float64, error) {
	if tag := v.node.ShortTag(); tag == intTag || tag == floatTag {
		if x, err := strconv.ParseFloat(v.node.Value, 64); err == nil && !math.IsInf(x, 0) && !math.IsNaN(x) {
			return x, nil
		}
	}
	return 0, v.wrong("a number")
}

// Bool returns true or false.
func (v Node) Bool() (bool, error) {
	if v.node.ShortTag() == boolTag {
		return strings.EqualFold(v.node.Value, "true"), nil
	}
	return false, v.wrong("true or false")
}
