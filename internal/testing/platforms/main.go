// Command platforms checks that all packages of the modules named compile on other platforms,
// with their tests:
//
//	go run ./internal/testing/platforms . grpclimit/
//
// It checks the types and generates no code, so it takes seconds where GOOS=windows go vet takes
// minutes, which compiles the standard library and all dependencies first. What vet finds besides
// does not depend on the platform. It exits with 1 if a package does not compile.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// Two systems of another kind than CI's, and one on which an int has 32 bits.
var platforms = []platform{{"windows", "amd64"}, {"darwin", "arm64"}, {"linux", "386"}}

type platform struct{ system, processor string }

func main() {
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "usage: platforms MODULE...")
		os.Exit(2)
	}
	failed := false
	for _, p := range platforms {
		c := newChecker(p)
		for _, module := range os.Args[1:] {
			errs, n := c.check(module)
			fmt.Printf("%s/%s %s: %d packages, %d errors\n", p.system, p.processor, module, n, len(errs))
			for _, err := range errs {
				fmt.Println("\t" + err.Error())
				failed = true
			}
		}
	}
	if failed {
		os.Exit(1)
	}
}

// A listed package is what go list says of it. A package whose tests are among its files has an
// import path of its own: "p [p.test]".
type listed struct {
	ImportPath string
	Name       string
	Dir        string
	GoFiles    []string
	ImportMap  map[string]string
	Standard   bool
	DepOnly    bool // a dependency, of which only the declarations count
	ForTest    string
	Module     *struct{ GoVersion string }
	Error      *struct{ Err string }
}

// A checker checks packages for one platform.
type checker struct {
	platform
	files    *token.FileSet
	sizes    types.Sizes
	standard map[string]*types.Package // which are those of all modules
}

func newChecker(p platform) *checker {
	return &checker{p, token.NewFileSet(), types.SizesFor("gc", p.processor), map[string]*types.Package{"unsafe": types.Unsafe}}
}

// check checks the packages of a module, and returns the number of those that are its own.
func (c *checker) check(module string) (errs []error, n int) {
	cmd := exec.Command("go", "list", "-e", "-json=ImportPath,Name,Dir,GoFiles,ImportMap,Standard,DepOnly,ForTest,Module,Error", "-deps", "-test", "./...")
	cmd.Dir, cmd.Stderr = module, os.Stderr
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS="+c.system, "GOARCH="+c.processor)
	out, err := cmd.StdoutPipe()
	if err != nil {
		return []error{err}, 0
	}
	if err := cmd.Start(); err != nil {
		return []error{err}, 0
	}
	done := map[string]*types.Package{}
	for list := json.NewDecoder(out); ; { // a package comes after what it imports
		var p listed
		if err := list.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return append(errs, err), n
		}
		switch {
		case p.Name == "main" && strings.HasSuffix(p.ImportPath, ".test"): // go test generates it
			continue
		case p.Error != nil:
			errs = append(errs, fmt.Errorf("%s: %s", p.ImportPath, p.Error.Err))
			continue
		case !p.DepOnly:
			n++
		case c.standard[p.ImportPath] != nil:
			continue
		}
		checked, faults := c.checkPackage(p, done)
		errs = append(errs, faults...)
		if p.Standard {
			c.standard[p.ImportPath] = checked
		} else {
			done[p.ImportPath] = checked
		}
	}
	if err := cmd.Wait(); err != nil {
		errs = append(errs, err)
	}
	return errs, n
}

func (c *checker) checkPackage(p listed, done map[string]*types.Package) (_ *types.Package, errs []error) {
	note := func(err error) { errs = append(errs, err) }
	var syntax []*ast.File
	for _, name := range p.GoFiles {
		if !filepath.IsAbs(name) {
			name = filepath.Join(p.Dir, name)
		}
		file, err := parser.ParseFile(c.files, name, nil, parser.SkipObjectResolution)
		if err != nil {
			note(err)
			continue
		}
		syntax = append(syntax, file)
	}
	config := types.Config{
		Importer:         importer{p, c.standard, done},
		Sizes:            c.sizes,
		IgnoreFuncBodies: p.DepOnly,
		Error:            note,
	}
	if p.Module != nil && p.Module.GoVersion != "" {
		config.GoVersion = "go" + p.Module.GoVersion
	}
	path, _, _ := strings.Cut(p.ImportPath, " ")
	checked, _ := config.Check(path, c.files, syntax, nil) // the errors were noted
	return checked, errs
}

// An importer returns what a package imports.
type importer struct {
	of       listed
	standard map[string]*types.Package
	done     map[string]*types.Package
}

func (i importer) Import(path string) (*types.Package, error) {
	if mapped, ok := i.of.ImportMap[path]; ok {
		path = mapped
	}
	if p := i.standard[path]; p != nil {
		return p, nil
	}
	if p := i.done[path]; p != nil {
		return p, nil
	}
	return nil, fmt.Errorf("%s was not listed", path)
}
