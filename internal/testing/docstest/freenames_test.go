package docstest

import (
	"go/ast"
	"go/parser"
	"go/scanner"
	"go/token"
	"go/types"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestSnippetsSayWhatTheirNamesAre: what a snippet uses and does not declare is declared by a snippet above it, or told
// in a paragraph of the page that begins "In the snippets," (or "In the snippet,").
func TestSnippetsSayWhatTheirNamesAre(t *testing.T) {
	for _, p := range pages(t, "README.md", "CONTRIBUTING.md", "docs/*.md", "docs/from/*.md") {
		known := told(p)
		used := map[string]bool{}
		for _, b := range p.blocks() {
			if b.language != "go" {
				continue
			}
			file := parsed(t, p, b)
			imported := packages
			if source := p.source(b); source != "" {
				imported = importsOf(t, source)
			}
			for _, name := range free(file) {
				if imported[name] != "" || types.Universe.Lookup(name) != nil {
					continue
				}
				used[name] = true
				require.True(t, known[name], "%s:%d: %s is neither declared above nor told in a paragraph that begins \"In the snippets,\"", p.name, b.line, name)
			}
			maps.Copy(known, declared(file))
		}
		for name := range told(p) {
			if ast.IsExported(name) { // of a package, in a sentence about it
				continue
			}
			require.True(t, used[name], "%s explains the name %s, but every snippet that uses it declares it", p.name, name)
		}
	}
}

// told are the names in the paragraphs that begin "In the snippet".
func told(p page) map[string]bool {
	names := map[string]bool{}
	inside := false
	for _, line := range p.lines {
		inside = inside && line != "" || strings.HasPrefix(line, "In the snippet")
		if !inside {
			continue
		}
		for _, found := range inCode.FindAllStringSubmatch(line, -1) {
			if token.IsIdentifier(found[1]) {
				names[found[1]] = true
			}
		}
	}
	return names
}

// parsed is a snippet as a file.
func parsed(t *testing.T, p page, b block) *ast.File {
	const clause = "package snippet; "
	for _, text := range []string{b.text, clause + b.text, clause + "func _() {\n" + b.text + closing(b.text) + "\n}"} {
		if file, err := parser.ParseFile(token.NewFileSet(), "", text, 0); err == nil {
			return file
		}
	}
	require.Failf(t, "no Go", "%s:%d", p.name, b.line)
	return nil
}

// closing are the brackets that text leaves open: some snippets of other libraries end before their function does.
func closing(text string) (brackets string) {
	file := token.NewFileSet().AddFile("", -1, len(text))
	var s scanner.Scanner
	s.Init(file, []byte(text), nil, 0)
	pairs := map[token.Token]string{token.LBRACE: "}", token.LPAREN: ")", token.LBRACK: "]"}
	for {
		switch _, tok, _ := s.Scan(); tok {
		case token.EOF:
			return brackets
		case token.LBRACE, token.LPAREN, token.LBRACK:
			brackets = pairs[tok] + brackets
		case token.RBRACE, token.RPAREN, token.RBRACK:
			brackets = strings.TrimPrefix(brackets, tok.String())
		}
	}
}

// free are the names that file does not declare, except those of fields in a composite literal.
func free(file *ast.File) []string {
	fields := map[*ast.Ident]bool{}
	ast.Inspect(file, func(n ast.Node) bool {
		if literal, ok := n.(*ast.CompositeLit); ok {
			if _, isMap := literal.Type.(*ast.MapType); isMap {
				return true
			}
			for _, element := range literal.Elts {
				if pair, ok := element.(*ast.KeyValueExpr); ok {
					if name, ok := pair.Key.(*ast.Ident); ok {
						fields[name] = true
					}
				}
			}
		}
		return true
	})
	names := map[string]bool{}
	for _, name := range file.Unresolved { //nolint:staticcheck // go/types would need what the snippet imports
		if !fields[name] {
			names[name.Name] = true
		}
	}
	return slices.Sorted(maps.Keys(names))
}

// declared are the names that snippets below may use.
func declared(file *ast.File) map[string]bool {
	names := map[string]bool{}
	add := func(all ...ast.Expr) {
		for _, x := range all {
			if name, ok := x.(*ast.Ident); ok {
				names[name.Name] = true
			}
		}
	}
	addSpecs := func(d *ast.GenDecl) {
		for _, spec := range d.Specs {
			switch spec := spec.(type) {
			case *ast.ValueSpec:
				for _, name := range spec.Names {
					add(name)
				}
			case *ast.TypeSpec:
				add(spec.Name)
			}
		}
	}
	for _, d := range file.Decls {
		switch d := d.(type) {
		case *ast.GenDecl:
			addSpecs(d)
		case *ast.FuncDecl:
			add(d.Name)
			if d.Name.Name != "_" && d.Name.Name != "main" { // a whole function, not the body of a snippet
				continue
			}
			for _, statement := range d.Body.List {
				switch s := statement.(type) {
				case *ast.AssignStmt:
					add(s.Lhs...)
				case *ast.DeclStmt:
					addSpecs(s.Decl.(*ast.GenDecl))
				}
			}
		}
	}
	return names
}

// importsOf are the names of the packages that a file of the repository imports.
func importsOf(t *testing.T, name string) map[string]string {
	text, err := os.ReadFile(filepath.Join(root(t), name))
	require.NoError(t, err)
	file, err := parser.ParseFile(token.NewFileSet(), name, text, parser.ImportsOnly)
	require.NoError(t, err)
	names := map[string]string{}
	for _, spec := range file.Imports {
		at, err := strconv.Unquote(spec.Path.Value)
		require.NoError(t, err)
		base := path.Base(at)
		if regexp.MustCompile(`^v\d+$`).MatchString(base) {
			base = path.Base(path.Dir(at))
		}
		if spec.Name != nil {
			base = spec.Name.Name
		}
		names[base] = at
	}
	return names
}
