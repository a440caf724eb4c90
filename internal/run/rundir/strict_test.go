package rundir

import (
	"errors"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/perdure/perdure"
)

// asked is a type like a run's settings.
type asked struct {
	Seed   uint64 `json:"seed"`
	Params struct {
		Batch int
		Rule  perdure.Rule
	} `json:"params"`
	Models map[string]perdure.Consistency `json:"models"`
	Tables []perdure.TableSpec            `json:"tables"`
	near
	Hidden string `json:"-"`
}

type near struct {
	Delay string `json:"delay"`
}

// TestReadRun checks that settings can be read back, and that each error is one line with the names of the file and the
// key.
func TestReadRun(t *testing.T) {
	d := create1(t)
	defer d.Close()
	name := filepath.Join(d.Path(), RunFile)
	var got asked
	must(t, d.WriteRun(asked{Seed: 1}))
	must(t, d.WriteRun(asked{Seed: math.MaxUint64, Models: map[string]perdure.Consistency{"w": {Kind: perdure.ASP}}}))
	if must(t, ReadRun(name, &got)); got.Seed != math.MaxUint64 {
		t.Errorf("read %+v", got)
	}
	for text, version := range map[string]string{`{"seed": 3}`: "0", `{"schema": 2, "colour": "red"}`: "2"} {
		must(t, os.WriteFile(name, []byte(text), 0o666))
		err := ReadRun(name, &got)
		want := "the run was written by another version of Perdure (format " + version +
			", this one reads format 1); use the version that wrote it"
		if !errors.Is(err, perdure.ErrUsage) || !strings.HasPrefix(err.Error(), name) ||
			!strings.HasSuffix(err.Error(), want) {
			t.Errorf("%s: %v; want %s", text, err, want)
		}
	}
	for content, want := range map[string]string{
		"":                               "is not a run's settings file: it is empty",
		`{"seed":`:                       "is not a run's settings file: unexpected end",
		`{"seed":1} {}`:                  "is not a run's settings file: invalid character",
		`{"schema":"x"}`:                 "schema cannot be a JSON string",
		`{"seed":"x"}`:                   "seed cannot be a JSON string",
		`{"seed":-1}`:                    "seed cannot be a JSON number -1",
		`[1]`:                            "cannot be a JSON array",
		`{"seeds":1}`:                    "unknown key seeds",
		`{"Seed":1}`:                     "unknown key Seed; write seed",
		`{"seed":1,"seed":2}`:            "duplicate key seed",
		`{"se\u0065d":1,"seed":2}`:       "duplicate key seed",
		`{"params":{"batch":1}}`:         "unknown key params.batch; write Batch",
		`{"params":{"Rule":{"eta":1}}}`:  "unknown key params.Rule.eta",
		`{"models":{"a":"bsp","a":"x"}}`: "duplicate key models.a",
		`{"models":{"a":"ssp:-1"}}`:      `models.a: .*staleness "-1"`,
		`{"tables":[{},{"dims":1}]}`:     "unknown key tables.1.dims",
		`{"hidden":""}`:                  "unknown key hidden",
		`{"near":{}}`:                    "unknown key near",
		`{"params":{"Batch":1000}}`:      "",
		`{"delay":"5ms"}`:                "",
	} {
		if text, ok := strings.CutPrefix(content, "{"); ok && !strings.Contains(content, "schema") {
			content = strings.Replace(`{"schema":1,`+text, ",}", "}", 1)
		}
		must(t, os.WriteFile(name, []byte(content), 0o666))
		err := ReadRun(name, &asked{})
		switch {
		case want == "" && err != nil:
			t.Errorf("%s: %v", content, err)
		case want != "" && (err == nil || !regexp.MustCompile(want).MatchString(err.Error()) ||
			!strings.HasPrefix(err.Error(), name) || strings.Contains(err.Error(), "\n")):
			t.Errorf("%s: %v; want one line with %s", content, err, want)
		}
	}
}
