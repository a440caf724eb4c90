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

// asked is a type as a run's settings are.
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

// TestReadRun reads back what was written, and says what is wrong otherwise, in one line
// with the file's name and the key's.
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
		"":                               "is no run's settings: it is empty",
		`{"seed":`:                       "is no run's settings: unexpected end",
		`{"seed":1} {}`:                  "is no run's settings: invalid character",
		`{"schema":"x"}`:                 "schema cannot be string",
		`{"seed":"x"}`:                   "seed cannot be string",
		`{"seed":-1}`:                    "seed cannot be number -1",
		`[1]`:                            "cannot be array",
		`{"seeds":1}`:                    "the key seeds is not known",
		`{"Seed":1}`:                     "the key Seed is not known; write seed",
		`{"seed":1,"seed":2}`:            "the key seed is there twice",
		`{"se\u0065d":1,"seed":2}`:       "the key seed is there twice",
		`{"params":{"batch":1}}`:         "the key params.batch is not known; write Batch",
		`{"params":{"Rule":{"eta":1}}}`:  "the key params.Rule.eta is not known",
		`{"models":{"a":"bsp","a":"x"}}`: "the key models.a is there twice",
		`{"models":{"a":"ssp:-1"}}`:      `models.a: .*staleness "-1"`,
		`{"tables":[{},{"dims":1}]}`:     "the key tables.1.dims is not known",
		`{"hidden":""}`:                  "the key hidden is not known",
		`{"near":{}}`:                    "the key near is not known",
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
