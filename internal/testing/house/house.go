// Package house measures the root package: its files, what a newcomer has to read of it, and how much of it is one knot.
package house

import (
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// A Package is what is counted of one.
type Package struct {
	Files   int
	Lines   int
	Knot    []string // the largest set of files of which each needs all others
	Names   int      // exported: types, functions, constants and variables
	Methods int      // exported, of exported types; those of an embedded unexported type count for it once
}

// Measure counts the package in a folder, without its tests.
func Measure(folder string) (Package, error) {
	fset := token.NewFileSet()
	files, lines, err := parse(fset, folder)
	if err != nil {
		return Package{}, err
	}
	exports, err := exportsOf(folder)
	if err != nil {
		return Package{}, err
	}
	open := func(path string) (io.ReadCloser, error) { return os.Open(exports[path]) }
	info := &types.Info{Uses: map[*ast.Ident]types.Object{}}
	checked, err := (&types.Config{Importer: importer.ForCompiler(fset, "gc", open)}).Check("root", fset, files, info)
	if err != nil {
		return Package{}, err
	}
	p := Package{Files: len(files), Lines: lines}
	needs := map[string][]string{}
	for _, f := range files {
		needs[fset.Position(f.Pos()).Filename] = nil
	}
	for at, used := range info.Uses {
		from, to := fset.Position(at.Pos()).Filename, fset.Position(used.Pos()).Filename
		if used.Pkg() == checked && from != to && !slices.Contains(needs[from], to) {
			needs[from] = append(needs[from], to)
		}
	}
	p.Knot = knot(needs)
	p.Names, p.Methods = exported(files)
	return p, nil
}

func parse(fset *token.FileSet, folder string) (files []*ast.File, lines int, err error) {
	names, err := filepath.Glob(filepath.Join(folder, "*.go"))
	if err != nil {
		return nil, 0, err
	}
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(fset, name, nil, 0)
		if err != nil {
			return nil, 0, err
		}
		files, lines = append(files, f), lines+fset.File(f.Pos()).LineCount()-1
	}
	return files, lines, nil
}

// exportsOf is where the compiler has left what the package's imports export.
func exportsOf(folder string) (map[string]string, error) {
	list := exec.Command("go", "list", "-export", "-deps", "-json=ImportPath,Export", ".")
	list.Dir = folder
	out, err := list.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w", err)
	}
	exports := map[string]string{}
	for d := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p struct{ ImportPath, Export string }
		switch err := d.Decode(&p); {
		case errors.Is(err, io.EOF):
			return exports, nil
		case err != nil:
			return nil, err
		}
		exports[p.ImportPath] = p.Export
	}
}

// knot is the largest strongly connected component, by Tarjan's algorithm.
func knot(needs map[string][]string) (largest []string) {
	index, low, on := map[string]int{}, map[string]int{}, map[string]bool{}
	var stack []string
	var visit func(v string)
	visit = func(v string) {
		index[v] = len(index) + 1
		low[v] = index[v]
		stack, on[v] = append(stack, v), true
		for _, w := range needs[v] {
			if index[w] == 0 {
				visit(w)
				low[v] = min(low[v], low[w])
			} else if on[w] {
				low[v] = min(low[v], index[w])
			}
		}
		if low[v] != index[v] {
			return
		}
		at := slices.Index(stack, v)
		component := slices.Clone(stack[at:])
		stack = stack[:at]
		for _, w := range component {
			on[w] = false
		}
		if len(component) > len(largest) {
			largest = component
		}
	}
	for v := range needs {
		if index[v] == 0 {
			visit(v)
		}
	}
	slices.Sort(largest)
	return largest
}

func exported(files []*ast.File) (names, methods int) {
	count := func(ids ...*ast.Ident) {
		for _, id := range ids {
			if id.IsExported() {
				names++
			}
		}
	}
	for _, f := range files {
		for _, d := range f.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				switch {
				case d.Recv == nil:
					count(d.Name)
				case d.Name.IsExported():
					methods++
				}
			case *ast.GenDecl:
				for _, spec := range d.Specs {
					switch spec := spec.(type) {
					case *ast.TypeSpec:
						count(spec.Name)
						if i, ok := spec.Type.(*ast.InterfaceType); ok && spec.Name.IsExported() {
							methods += len(i.Methods.List)
						}
					case *ast.ValueSpec:
						count(spec.Names...)
					}
				}
			}
		}
	}
	return names, methods
}
