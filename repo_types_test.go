package perdure_test

import (
	"fmt"
	"go/ast"
	"maps"
	"path"
	"slices"
	"strings"
)

// Limits on types and directories. A larger one combines several ideas under one name.
const (
	maxMethods     = 40   // of a type, including functions whose first parameter is a pointer to it
	maxFields      = 25   // of a struct, including those of embedded structs
	maxFolderLines = 4500 // of a directory, without tests
)

// ceilings lists the exceptions and their current sizes, which may only decrease. Most of them must be split: see
// docs/architecture.md.
var ceilings = map[string]int{
	"lines internal/core/membership":        5286, // members, their failures, and the resulting decisions
	"fields ..JobSpec":                      27,   // the JSON form of a job
	"methods internal/core/membership.Core": 44,   // one method per kind of message to the coordinator
	"methods worker.Client":                 45,   // one method per operation of a program
	"fields internal/run/rundir.Summary":    40,   // a file, as JSON
}

// shape holds the sizes of one directory.
type shape struct {
	lines   int
	methods map[string]int // by type
	structs map[string]*ast.StructType
}

// checkTypes limits the sizes of types and directories.
func checkTypes(files []source) (found []string) {
	for dir, s := range shapes(files) {
		sizes := map[string]int{"lines " + dir: s.lines}
		for name, n := range s.methods {
			sizes["methods "+dir+"."+name] = n
		}
		for name := range s.structs {
			sizes["fields "+dir+"."+name] = s.fields(name)
		}
		for _, what := range slices.Sorted(maps.Keys(sizes)) {
			kind, _, _ := strings.Cut(what, " ")
			most := map[string]int{"lines": maxFolderLines, "methods": maxMethods, "fields": maxFields}[kind]
			switch n := sizes[what]; {
			case n > max(most, ceilings[what]):
				found = append(found,
					fmt.Sprintf("%s: %d; at most %d: see docs/architecture.md", what, n, max(most, ceilings[what])))
			case n < ceilings[what]:
				found = append(found, fmt.Sprintf("%s: %d; its ceiling is %d: lower it, or take it away if %d will do",
					what, n, ceilings[what], most))
			}
		}
	}
	slices.Sort(found)
	return found
}

// shapes computes the sizes by directory.
func shapes(files []source) map[string]*shape {
	all := map[string]*shape{}
	for _, s := range files {
		if s.file == nil || s.isTest() || s.isGenerated() {
			continue
		}
		dir := path.Dir(s.path)
		sh := all[dir]
		if sh == nil {
			sh = &shape{methods: map[string]int{}, structs: map[string]*ast.StructType{}}
			all[dir] = sh
		}
		sh.lines += strings.Count(string(s.text), "\n")
		for _, d := range s.file.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				if name := methodOf(d); name != "" {
					sh.methods[name]++
				}
			case *ast.GenDecl:
				for _, spec := range d.Specs {
					if t, ok := spec.(*ast.TypeSpec); ok {
						if of, ok := t.Type.(*ast.StructType); ok {
							sh.structs[t.Name.Name] = of
						}
					}
				}
			}
		}
	}
	return all
}

// methodOf returns the type that a function is a method of, or that its first parameter points to.
func methodOf(d *ast.FuncDecl) string {
	var t ast.Expr
	switch {
	case d.Recv != nil:
		t = d.Recv.List[0].Type
	case len(d.Type.Params.List) > 0:
		if _, pointer := d.Type.Params.List[0].Type.(*ast.StarExpr); pointer {
			t = d.Type.Params.List[0].Type
		}
	}
	return typeName(t)
}

// typeName returns the name of a type, or of its pointer target, in the same package; "" if it has none.
func typeName(t ast.Expr) string {
	switch t := t.(type) {
	case *ast.StarExpr:
		return typeName(t.X)
	case *ast.IndexExpr:
		return typeName(t.X)
	case *ast.Ident:
		return t.Name
	}
	return ""
}

// fields counts a struct's fields, including those of embedded structs of its package.
func (s *shape) fields(name string) (n int) {
	for _, f := range s.structs[name].Fields.List {
		embedded := ""
		if i, ok := f.Type.(*ast.Ident); ok { // an embedded pointer counts as one field
			embedded = i.Name
		}
		switch {
		case len(f.Names) > 0:
			n += len(f.Names)
		case s.structs[embedded] != nil:
			n += s.fields(embedded)
		default:
			n++
		}
	}
	return n
}

// many repeats a format n times, with the numbers from 0.
func many(n int, what string) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, what+"\n", i)
	}
	return b.String()
}

var typeCases = []ruleCase{
	{"x/a.go", "package x\ntype t struct{}\n" + many(maxMethods, "func (s *t) f%d() {}"), ""},
	{
		"x/a.go", "package x\ntype t struct{}\n" + many(maxMethods, "func (s *t) f%d() {}") + "func g(s *t) {}",
		"methods x.t: 41",
	},
	{"x/a.go", "package x\ntype t struct{\n" + many(maxFields, "f%d int") + "}", ""},
	{
		"x/a.go", "package x\ntype e struct { a, b int }\ntype t struct{\n e\n" + many(maxFields-1, "f%d int") + "}",
		"fields x.t: 26",
	},
	{"x/a.go", "package x" + lines(maxFolderLines), ""},
	{"x/a.go", "package x" + lines(maxFolderLines+1), "lines x: 4501"},
	{"x/a_test.go", "package x" + lines(maxFolderLines+1), ""},
}
