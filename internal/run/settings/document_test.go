package settings_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/run/settings"
)

func parse(t *testing.T, text string) settings.Node {
	t.Helper()
	v, err := settings.ParseDocument("a.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// at returns the value at a path of keys.
func at(t *testing.T, v settings.Node, keys ...string) settings.Node {
	t.Helper()
	for _, key := range keys {
		entries, err := v.Map()
		if err != nil {
			t.Fatal(err)
		}
		i := slices.IndexFunc(entries, func(e settings.Entry) bool { return e.Key == key })
		if i < 0 {
			t.Fatalf("no %s in %v", key, entries)
		}
		v = entries[i].Value
	}
	return v
}

const study = `# a study
job:
  workers: 4
  lr: 1e-3
  until: 0.83
  sparse: true
  fault: [kill:server:0@clock:100, 'freeze:worker:*@2s+1s']
  recovery:
    resend:auto
vary:
- one
- two: [1, 2]
`

// TestNodes checks that all values of a document are found, in document order, with their lines.
func TestNodes(t *testing.T) {
	v := parse(t, study)
	if n, err := at(t, v, "job", "workers").Int(); err != nil || n != 4 {
		t.Errorf("workers %d, %v", n, err)
	}
	if x, err := at(t, v, "job", "lr").Float(); err != nil || x != 0.001 {
		t.Errorf("lr %v, %v", x, err)
	}
	if x, err := at(t, v, "job", "workers").Float(); err != nil || x != 4 {
		t.Errorf("workers %v, %v", x, err)
	}
	if text, err := at(t, v, "job", "until").Text(); err != nil || text != "0.83" {
		t.Errorf("until %s, %v", text, err)
	}
	if yes, err := at(t, v, "job", "sparse").Bool(); err != nil || !yes {
		t.Errorf("sparse %v, %v", yes, err)
	}
	want := []string{"kill:server:0@clock:100", "freeze:worker:*@2s+1s"}
	if texts, err := at(t, v, "job", "fault").Texts(); err != nil || !slices.Equal(texts, want) {
		t.Errorf("fault %q, %v", texts, err)
	}
	recovery := at(t, v, "job", "recovery")
	if texts, err := recovery.Texts(); err != nil || !slices.Equal(texts, []string{"resend:auto"}) {
		t.Errorf("recovery %q, %v", texts, err)
	}
	if recovery.Line() != 8 || recovery.Path() != "job.recovery" {
		t.Errorf("recovery is at %s, line %d", recovery.Path(), recovery.Line())
	}
	items, err := at(t, v, "vary").List()
	if err != nil || len(items) != 2 || items[0].IsMap() || !items[1].IsMap() || items[1].Line() != 12 {
		t.Fatalf("vary %v, %v", items, err)
	}
	two := at(t, items[1], "two")
	if !two.IsList() || two.Path() != "vary[2].two" {
		t.Errorf("two is at %s", two.Path())
	}
}

// TestDocumentJSON checks that JSON files written by programs are accepted, including tabs.
func TestDocumentJSON(t *testing.T) {
	v := parse(t, "{\n\t\"workers\": 4,\n\t\"fault\": [\n\t\t\"a\\u0062\"\n\t],\n\t\"url\":\"s3://b/p?x=1\"\n}\n")
	if n, err := at(t, v, "workers").Int(); err != nil || n != 4 {
		t.Errorf("workers %d, %v", n, err)
	}
	if texts, err := at(t, v, "fault").Texts(); err != nil || !slices.Equal(texts, []string{"ab"}) {
		t.Errorf("fault %q, %v", texts, err)
	}
	if text, err := at(t, v, "url").Text(); err != nil || text != "s3://b/p?x=1" {
		t.Errorf("url %q, %v", text, err)
	}
}

// TestDocumentRefused checks that an invalid document is rejected with an error of one line that names the position.
func TestDocumentRefused(t *testing.T) {
	for text, want := range map[string]string{
		"a: 1\nb: 2\na: 3\n":              "a.yaml:3: duplicate key a; it is already on line 1",
		"a: {b: 1, b: 2}":                 "a.yaml:1: duplicate key b",
		"a: &x 1\nb: *x\n":                "a.yaml:1: anchors and aliases are not supported",
		"a:\n  <<: {b: 1}\n":              "a.yaml:2: a key must be a word",
		"a: [1]\n? [b]\n: c\n":            "a.yaml:2: a key must be a word",
		"\"\": 1":                         "a.yaml:1: a key must be a word",
		"a: !!binary aGk=":                "a.yaml:1: the tag !!binary is not supported",
		"a: !x 1":                         "a.yaml:1: the tag !x is not supported",
		"a: 1\n---\nb: 1\n":               "a.yaml:2: a second document starts here",
		"a: 1\n b: 2\n":                   "a.yaml:2: invalid YAML: mapping values are not allowed in this context",
		"a: [1, 2\nb: 1\n":                "a.yaml:1: invalid YAML",
		"a:\n\t- 1\n":                     "a.yaml:2: invalid YAML: found character that cannot start any token",
		"a: \xff":                         "a.yaml:1: invalid YAML: invalid",
		"a: 1\x00":                        "a.yaml is not a text file",
		strings.Repeat("# x\n", 300_000):  "a.yaml is longer than",
		"a: " + strings.Repeat("[", 20e3): "a.yaml:1: invalid YAML: exceeded max depth",
	} {
		_, err := settings.ParseDocument("a.yaml", []byte(text))
		refused(t, err, want)
	}
}

func refused(t *testing.T, err error, want string) {
	t.Helper()
	if !errors.Is(err, perdure.ErrUsage) || !strings.Contains(err.Error(), want) ||
		strings.Contains(err.Error(), "\n") {
		t.Errorf("%v, want %s", err, want)
	}
}

// TestNodeKinds checks that a value of the wrong type is reported with its actual type.
func TestNodeKinds(t *testing.T) {
	v := parse(t, "n: four\nq: \"4\"\nf: 4.5\nnone:\nlist: [a, {b: 1}]\nmap: {a: 1}\nbig: 99999999999999999999\n"+
		"inf: .inf\nyes: yes\nhex: 0x10\nlong: "+strings.Repeat("x", 100)+"\n")
	list, err := at(t, v, "list").List()
	if err != nil {
		t.Fatal(err)
	}
	of := func(key string) settings.Node { return at(t, v, key) }
	for want, read := range map[string]func() (any, error){
		`a.yaml:1: n is the text "four"; write a whole number`: func() (any, error) {
			return of("n").Int()
		},
		`a.yaml:2: q is the text "4"; write a whole number`: func() (any, error) {
			return of("q").Int()
		},
		`a.yaml:3: f is 4.5; write a whole number`: func() (any, error) {
			return of("f").Int()
		},
		`a.yaml:4: none is empty; write a word or a number`: func() (any, error) {
			return of("none").Text()
		},
		`a.yaml:4: none is empty; write a list`: func() (any, error) {
			return of("none").Texts()
		},
		`a.yaml:5: list is a list; write a word or a number`: func() (any, error) {
			return of("list").Text()
		},
		`a.yaml:5: list[2] is a map; write a word or a number`: func() (any, error) {
			return list[1].Text()
		},
		`a.yaml:5: list is a list; write a map`: func() (any, error) {
			return of("list").Map()
		},
		`a.yaml:6: map is a map; write a list`: func() (any, error) {
			return of("map").List()
		},
		`a.yaml:7: big is 99999999999999999999; write a whole`: func() (any, error) {
			return of("big").Int()
		},
		`a.yaml:8: inf is .inf; write a number`: func() (any, error) {
			return of("inf").Float()
		},
		`a.yaml:9: yes is the text "yes"; write true or false`: func() (any, error) {
			return of("yes").Bool()
		},
		`a.yaml:10: hex is 0x10; write a whole number`: func() (any, error) {
			return of("hex").Int()
		},
		`xxx…"; write a number`: func() (any, error) {
			return of("long").Float()
		},
		`a.yaml:1: unknown key "n"; did you mean m?`: func() (any, error) {
			return v.Map("m")
		},
		`a.yaml:6: unknown key "map"`: func() (any, error) {
			return v.Map("n", "q", "f", "none", "list")
		},
		`a.yaml:6: unknown key "a"; did you mean b?`: func() (any, error) {
			return of("map").Map("b")
		},
		`a.yaml:1: the document is a list; write a map, a line`: func() (any, error) {
			return parse(t, "[a]").Map()
		},
	} {
		_, err := read()
		refused(t, err, want)
	}
}

// TestReadDocument checks that errors for missing and special files do not name a system call.
func TestReadDocument(t *testing.T) {
	dir := t.TempDir()
	_, err := settings.ReadDocument(filepath.Join(dir, "none.yaml"))
	refused(t, err, "none.yaml cannot be read: no such file or directory")
	_, err = settings.ReadDocument(dir)
	refused(t, err, "cannot be read: is a directory")
	path := filepath.Join(dir, "job.yaml")
	if err := os.WriteFile(path, []byte("workers: 4"), 0o666); err != nil {
		t.Fatal(err)
	}
	v, err := settings.ReadDocument(path)
	if err != nil || v.Folder() != dir {
		t.Errorf("%s, %v", v.Folder(), err)
	}
	refused(t, v.Errorf("no"), path+":1: no")
	_, err = settings.ReadDocument(os.DevNull)
	refused(t, err, os.DevNull+" cannot be read: it is a device, not a regular file")
}

// TestEmptyDocument checks that a document without any key is rejected: probably its file was truncated or commented
// out, and to accept it would silently apply all defaults. A byte order mark at the start makes no difference, with or
// without keys.
func TestEmptyDocument(t *testing.T) {
	for _, text := range []string{
		"", " \n\n", "# workers: 4\n", "null\n", "~", "{}", "---\n", "---\n...\n", "\ufeff", "\ufeff# a\n",
	} {
		_, err := settings.ParseDocument("a.yaml", []byte(text))
		refused(t, err, "a.yaml is empty: it has no key")
	}
	v, err := settings.ParseDocument("a.yaml", []byte("\ufeffworkers: 4\r\n"))
	if err != nil {
		t.Fatal(err)
	}
	if all, err := v.Map("workers"); err != nil || len(all) != 1 {
		t.Errorf("after a byte order mark: %v, %v", all, err)
	}
}

// TestNearest checks that typing errors get a suggestion and that unrelated words do not.
func TestNearest(t *testing.T) {
	known := []string{"workers", "servers", "seed", "recovery", "on-outage", "lr", "l2"}
	for word, want := range map[string]string{
		"worker": "workers", "wokrers": "workers", "Workers": "workers", "seeds": "seed", "recover": "recovery",
		"on_outage": "on-outage", "l22": "l2", "rl": "lr", "x": "", "epochs": "", "": "",
		strings.Repeat("workers", 20): "",
	} {
		if got := settings.Nearest(word, known); got != want {
			t.Errorf("%q: %q, want %q", word, got, want)
		}
	}
}

// FuzzParseDocument checks that no input causes a panic and that every error is one line.
func FuzzParseDocument(f *testing.F) {
	f.Add([]byte(study))
	f.Add([]byte("a: &b [*b]"))
	f.Fuzz(func(t *testing.T, text []byte) {
		v, err := settings.ParseDocument("a.yaml", text)
		if err != nil {
			if strings.Contains(err.Error(), "\n") {
				t.Errorf("%q", err)
			}
			return
		}
		walk(v)
	})
}

func walk(v settings.Node) {
	entries, _ := v.Map()
	for _, e := range entries {
		walk(e.Value)
	}
	items, _ := v.List()
	for _, item := range items {
		walk(item)
	}
	for _, read := range []func(){
		func() { _, _ = v.Text() }, func() { _, _ = v.Int() }, func() { _, _ = v.Float() }, func() { _, _ = v.Bool() },
	} {
		read()
	}
}
