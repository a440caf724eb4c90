package perdure_test

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// sinks returns the functions that write or read JSON, with the index of the parameter that they encode or decode. It
// also finds functions of this module that pass on a parameter of type any.
func (c checked) sinks() map[string]int {
	all := map[string]int{
		"encoding/json.Marshal":           0,
		"encoding/json.MarshalIndent":     0,
		"encoding/json.Unmarshal":         1,
		"(*encoding/json.Encoder).Encode": 0,
		"(*encoding/json.Decoder).Decode": 0,
	}
	for more := true; more; {
		more = false
		c.calls(all, func(p *typed, in *ast.FuncDecl, arg ast.Expr) {
			id, ok := ast.Unparen(arg).(*ast.Ident)
			if !ok || in == nil || !isAny(p.info.TypeOf(arg)) {
				return
			}
			f := p.info.Defs[in.Name].(*types.Func)
			if _, known := all[f.FullName()]; known {
				return
			}
			params := f.Signature().Params()
			for i := range params.Len() {
				if params.At(i) == p.info.Uses[id] {
					all[f.FullName()], more = i, true
				}
			}
		})
	}
	return all
}

// calls invokes use for each call of a sink, with the enclosing function and the argument that is converted to JSON.
func (c checked) calls(sinks map[string]int, use func(p *typed, in *ast.FuncDecl, arg ast.Expr)) {
	for _, p := range c.packages {
		for _, file := range p.files {
			for _, decl := range file.Decls {
				in, _ := decl.(*ast.FuncDecl)
				ast.Inspect(decl, func(n ast.Node) bool {
					if call, ok := n.(*ast.CallExpr); ok {
						if f := p.callee(call); f != nil {
							if i, ok := sinks[f.FullName()]; ok && i < len(call.Args) {
								use(p, in, call.Args[i])
							}
						}
					}
					return true
				})
			}
		}
	}
}

// TestSerialisedNames checks that each exported field of a struct that reaches encoding/json has an explicit JSON name.
// Renaming a field then changes no byte of a file or message.
func TestSerialisedNames(t *testing.T) {
	c := loadTypes(t)
	found := map[string]bool{}
	sinks := c.sinks()
	for _, f := range []string{"/internal/data/wire.JSON", "/internal/run/humanize.JSON"} { // else the search is broken
		if _, ok := sinks[ours+f]; !ok {
			t.Errorf("%s is not among the functions that write JSON: %v", f, sinks)
		}
	}
	c.calls(sinks, func(p *typed, _ *ast.FuncDecl, arg ast.Expr) {
		untagged(p.info.TypeOf(arg), map[types.Type]bool{}, func(what string) { found[what] = true })
	})
	for _, what := range slices.Sorted(maps.Keys(found)) {
		t.Error(what)
	}
}

func isAny(t types.Type) bool {
	_, ok := t.Underlying().(*types.Interface)
	return ok
}

const ours = "github.com/perdure/perdure"

// untagged reports the exported fields without a JSON name in all of this module's structs that a type reaches.
func untagged(t types.Type, seen map[types.Type]bool, report func(string)) {
	if seen[t] || marshals(t) {
		return
	}
	seen[t] = true
	switch of := t.(type) {
	case *types.Pointer:
		untagged(of.Elem(), seen, report)
		return
	case *types.Alias:
		untagged(types.Unalias(of), seen, report)
		return
	}
	switch of := t.Underlying().(type) {
	case *types.Slice:
		untagged(of.Elem(), seen, report)
	case *types.Array:
		untagged(of.Elem(), seen, report)
	case *types.Map:
		untagged(of.Key(), seen, report)
		untagged(of.Elem(), seen, report)
	case *types.Struct:
		name := types.TypeString(t, nil)
		for i := range of.NumFields() {
			f := of.Field(i)
			tag := reflect.StructTag(of.Tag(i)).Get("json")
			if tag == "-" || !f.Exported() && !f.Embedded() {
				continue
			}
			if key, _, _ := strings.Cut(tag, ","); key == "" && !f.Embedded() {
				report(fmt.Sprintf("%s.%s reaches JSON without a name of its own", name, f.Name()))
			}
			untagged(f.Type(), seen, report)
		}
	}
}

// marshals reports whether a type has its own marshalling methods.
func marshals(t types.Type) bool {
	for _, of := range []types.Type{t, types.NewPointer(t)} {
		set := types.NewMethodSet(of)
		for _, name := range []string{"MarshalJSON", "MarshalText"} {
			if set.Lookup(nil, name) != nil {
				return true
			}
		}
	}
	return false
}

// typed is a package with its types.
type typed struct {
	path  string
	files []*ast.File
	info  *types.Info
}

// callee returns the called function or method, if it has a name.
func (p *typed) callee(call *ast.CallExpr) *types.Func {
	fun := ast.Unparen(call.Fun)
	switch of := fun.(type) { // an instantiated generic function
	case *ast.IndexExpr:
		fun = of.X
	case *ast.IndexListExpr:
		fun = of.X
	}
	var id *ast.Ident
	switch of := fun.(type) {
	case *ast.Ident:
		id = of
	case *ast.SelectorExpr:
		id = of.Sel
	default:
		return nil
	}
	if f, ok := p.info.Uses[id].(*types.Func); ok {
		return f.Origin()
	}
	return nil
}

type checked struct{ packages []*typed }

// loadTypes type-checks all packages from source, with the compiler's export data for their imports.
func loadTypes(t *testing.T) checked {
	t.Helper()
	cmd := exec.Command("go", "list", "-export", "-deps", "-f",
		`{{.ImportPath}}|{{.Export}}|{{if not .Standard}}{{.Dir}}|{{join .GoFiles ","}}{{end}}`, "./...")
	cmd.Stderr = os.Stderr
	text, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	exports := map[string]string{}
	type list struct{ path, dir, files string }
	var mine []list
	for line := range strings.Lines(string(text)) {
		f := strings.Split(strings.TrimSpace(line), "|")
		exports[f[0]] = f[1]
		if len(f) == 4 && (f[0] == ours || strings.HasPrefix(f[0], ours+"/")) {
			mine = append(mine, list{f[0], f[2], f[3]})
		}
	}
	set := token.NewFileSet()
	imports := importer.ForCompiler(set, "gc", func(path string) (io.ReadCloser, error) {
		b, err := os.ReadFile(exports[path])
		return io.NopCloser(bytes.NewReader(b)), err
	})
	var c checked
	for _, l := range mine {
		p := &typed{path: l.path, info: &types.Info{
			Types: map[ast.Expr]types.TypeAndValue{},
			Uses:  map[*ast.Ident]types.Object{}, Defs: map[*ast.Ident]types.Object{},
		}}
		for name := range strings.SplitSeq(l.files, ",") {
			file, err := parser.ParseFile(set, filepath.Join(l.dir, name), nil, parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			p.files = append(p.files, file)
		}
		conf := types.Config{Importer: imports}
		if _, err := conf.Check(l.path, set, p.files, p.info); err != nil {
			t.Fatal(err)
		}
		c.packages = append(c.packages, p)
	}
	return c
}
