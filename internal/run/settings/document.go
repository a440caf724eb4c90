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

// Documents are what people write for the command in YAML or JSON: a job, a study, a list of prices. A
// document consists of maps, lists and scalars, and each of these Nodes knows where it stands. A reader asks
// a node for the type that it needs; an error is one line with the file, the line and the key. Nothing is
// guessed: a quoted 4 is a text and not a number, and a duplicate or unknown key is an error. Anchors, tags
// and several documents in one file are refused: a job needs none, and they hide what is meant.
//
// A Node does not change, and any number of goroutines may read it.

// MaxDocumentBytes is the longest document that is read: none that a person writes comes near it.
const MaxDocumentBytes = 1 << 20

// Node is a part of a document, or all of it.
type Node struct {
	file string // as the user named it
	line int    // that of its key, where it has one
	path string // keys and places on the way to it: "job.fault[2]"; "" for the document
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
	if pe := (*fs.PathError)(nil); errors.As(err, &pe) {
		err = pe.Err // which goes without the path, and without the name of a system call
	}
	if err != nil {
		return Node{}, fmt.Errorf("%w: %s cannot be read: %w", perdure.ErrUsage, path, err)
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

// ParseDocument reads a document of that name. One without a key is refused.
func ParseDocument(name string, text []byte) (Node, error) {
	v := Node{file: name, line: 1}
	switch {
	case len(text) > MaxDocumentBytes:
		return v, fmt.Errorf("%w: %s is longer than %d bytes, and can be no document of a person's", perdure.ErrUsage,
			name, MaxDocumentBytes)
	case bytes.IndexByte(text, 0) >= 0:
		return v, fmt.Errorf("%w: %s is no text; write YAML or JSON", perdure.ErrUsage, name)
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
		return v, v.Errorf("a second document begins here; write one document in a file")
	case !errors.Is(err, io.EOF):
		return v, v.syntax(err)
	}
	v.node = root.Content[0]
	if n := v.node; n.ShortTag() == nullTag || n.Kind == yaml.MappingNode && len(n.Content) == 0 {
		return v, v.empty()
	}
	return v, v.check()
}

// empty refuses a document that says nothing: it was cut off, say, or all of it is comments. All defaults would hold.
func (v Node) empty() error {
	return fmt.Errorf("%w: %s is empty: it has no key; write at least one, as in workers: 4", perdure.ErrUsage, v.file)
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

// syntax makes one line of what the parser says, in the form of all others.
func (v Node) syntax(err error) error {
	m := syntaxLine.FindStringSubmatch(err.Error())
	if m == nil {
		return v.Errorf("%s", strings.ReplaceAll(err.Error(), "\n", "; "))
	}
	if n, err := strconv.Atoi(m[1]); err == nil {
		v.line = n
	}
	return v.Errorf("this is no YAML: %s", strings.ReplaceAll(m[2], "\n", "; "))
}

// check refuses, in all below v, what no reader of a document knows what to do with.
func (v Node) check() error {
	switch n := v.node; {
	case n.Kind == yaml.AliasNode || n.Anchor != "":
		return v.Errorf("anchors and aliases are not taken; write the value where it is wanted")
	case n.Style&yaml.TaggedStyle != 0:
		return v.Errorf("the tag %s is not taken; leave it out", n.Tag)
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
			return at.Errorf("a key is a word, as in workers: 4")
		}
		if first, twice := lines[key.Value]; twice {
			return at.Errorf("%s stands here again; it stands in line %d", key.Value, first)
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

// Line is where the value stands, or its key, from 1.
func (v Node) Line() int { return v.line }

// Path is the way to the value through the document, as "job.fault[2]"; "" is all of it.
func (v Node) Path() string { return v.path }

// Folder is where the document lies; paths in it may be meant from there.
func (v Node) Folder() string { return filepath.Dir(v.file) }

// Errorf makes an error of one line that begins with the file and the value's line.
func (v Node) Errorf(format string, args ...any) error {
	return fmt.Errorf("%w: %s:%d: %w", perdure.ErrUsage, v.file, v.line, fmt.Errorf(format, args...))
}

// wrong says that the value is not what is wanted.
func (v Node) wrong(want string) error {
	name := v.path
	if name == "" {
		name = "the document"
	}
	return v.Errorf("%s is %s; write %s", name, v.what(), want)
}

// what says in words what the value is.
func (v Node) what() string {
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

// shortened keeps an error to a line that can be read.
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

// Map is the value's keys, in their order. With known, another key is an error that names the
// nearest of them.
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

// Known returns an error where the entry's key is none of the known, which names the nearest.
func (e Entry) Known(known ...string) error {
	if slices.Contains(known, e.Key) {
		return nil
	}
	return e.Value.Errorf("there is no key %s%s", strconv.Quote(shortened(e.Key)), Suggest(e.Key, known))
}

// List is the value's items.
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

// Text is a scalar as it is written: of a number, its digits.
func (v Node) Text() (string, error) {
	if v.node.Kind != yaml.ScalarNode || v.node.ShortTag() == nullTag {
		return "", v.wrong("a word or a number")
	}
	return v.node.Value, nil
}

// Texts is a list of scalars as they are written; one alone is a list of one.
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

// Int is a whole number.
func (v Node) Int() (int64, error) {
	if v.node.ShortTag() == intTag {
		if n, err := strconv.ParseInt(v.node.Value, 10, 64); err == nil {
			return n, nil
		}
	}
	return 0, v.wrong("a whole number")
}

// Float is a number, which is finite.
func (v Node) Float() (float64, error) {
	if tag := v.node.ShortTag(); tag == intTag || tag == floatTag {
		if x, err := strconv.ParseFloat(v.node.Value, 64); err == nil && !math.IsInf(x, 0) && !math.IsNaN(x) {
			return x, nil
		}
	}
	return 0, v.wrong("a number")
}

// Bool is true or false.
func (v Node) Bool() (bool, error) {
	if v.node.ShortTag() == boolTag {
		return strings.EqualFold(v.node.Value, "true"), nil
	}
	return false, v.wrong("true or false")
}
