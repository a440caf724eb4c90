package perdure_test

import (
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// internalTypes lists the exported identifiers of a package whose types name one of an internal package.
func internalTypes(pkg *types.Package) (found []string) {
	check := func(what string, t types.Type) {
		types.TypeString(types.Unalias(t), func(of *types.Package) string {
			if strings.HasPrefix(of.Path(), module+"/internal/") && !slices.Contains(found, what) {
				found = append(found, what)
			}
			return of.Name()
		})
	}
	for _, name := range pkg.Scope().Names() {
		o := pkg.Scope().Lookup(name)
		if !o.Exported() {
			continue
		}
		check(name, o.Type())
		if _, declared := o.(*types.TypeName); !declared {
			continue
		}
		if s, ok := o.Type().Underlying().(*types.Struct); !ok {
			check(name, o.Type().Underlying())
		} else {
			for f := range s.Fields() {
				if f.Exported() {
					check(name+"."+f.Name(), f.Type())
				}
			}
		}
		for m := range types.NewMethodSet(types.NewPointer(o.Type())).Methods() { // including promoted methods
			if m.Obj().Exported() {
				check(name+"."+m.Obj().Name(), m.Type())
			}
		}
	}
	return found
}

// TestPublicNames checks that exported identifiers of public packages use no internal type, because programs in other
// modules cannot name it.
func TestPublicNames(t *testing.T) {
	list := exec.Command("go", "list", "-export", "-deps", "-f", "{{.ImportPath}} {{.Name}} {{.Export}}", "./...")
	out, err := list.Output()
	if err != nil {
		t.Fatal(err)
	}
	exports, fset := map[string]string{}, token.NewFileSet()
	from := importer.ForCompiler(fset, "gc", func(p string) (io.ReadCloser, error) { return os.Open(exports[p]) })
	for line := range strings.Lines(string(out)) { // a package comes after those that it imports
		f := append(strings.Fields(line), "")
		exports[f[0]] = f[2]
		if pkg, ours := importedPackage(f[0]); !ours || f[1] == "main" || topLevel(pkg) == "internal" {
			continue
		}
		pkg, err := from.Import(f[0])
		if err != nil {
			t.Fatal(err)
		}
		for _, what := range internalTypes(pkg) {
			t.Errorf("%s.%s names an internal type", f[1], what)
		}
	}
	file, err := parser.ParseFile(fset, "bad.go", `package bad
import "`+module+`/internal/data/wire"
type Alias = *wire.Order
type F struct { Map map[string][]func(chan wire.Order); hidden wire.Order; inner }
type inner struct { kind wire.Kind }
func (inner) Promoted(...wire.Report) {}
func (F) hides(wire.Report) {}
type I interface { Take(wire.Frame) }
const K = wire.KindView
func Good() (error, *F) { return nil, nil }
`, 0)
	if err != nil {
		t.Fatal(err)
	}
	pkg, err := (&types.Config{Importer: from}).Check("bad", fset, []*ast.File{file}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if got := internalTypes(pkg); !slices.Equal(got, []string{"Alias", "F.Map", "F.Promoted", "I", "K"}) {
		t.Errorf("of package bad it finds %q", got)
	}
}
