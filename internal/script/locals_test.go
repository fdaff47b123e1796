package script

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/yuin/gopher-lua/ast"
	"github.com/yuin/gopher-lua/parse"

	"github.com/tryacquire/ratelimit/internal/testing/raceflag"
)

// The layout of every script and of everything that is cut from it says how many variables it has.
func TestLocalsAreThoseOfTheParser(t *testing.T) {
	raceflag.SkipSequential(t)
	files := luaFiles(t)
	sources := map[string]string{}
	for name, text := range files {
		if name == "callersclock.lua" || isTemplate(name) {
			continue
		}
		f := Parse(name, text)
		sources[name], _, _ = strings.Cut(text, "\n--[[") // blocks that this script does not use
		for _, template := range templatesOf(name) {
			if fits(template, f) {
				sources[template+" of "+name] = f.Fill(files[template]).Source()
			}
		}
	}
	for name, text := range sources {
		chunk, err := parse.Parse(strings.NewReader(text), name)
		require.NoError(t, err)
		c := counter{}
		c.function(nil, chunk)
		require.Equal(t, c.most, Locals(text), name)
	}
	for text, want := range map[string]int{
		"":                          0,
		"local a, b = f(1, 2), 3\n": 2,
		"if a then\n  local b\nelse\n  local c, d\nend\n":                    2,
		"do\n  local a, b\nend\nlocal c\n":                                   2,
		"for i = 1, 2 do\n  local a\nend\n":                                  5,
		"for k, v in next, t do\nend\nlocal a\n":                             5,
		"local function f(a, b)\n  local c\nend\nlocal d\n":                  3,
		"local a, b, c\nlocal d = (function()\n  local e\nend)()\nlocal f\n": 5,
		"local f = function(a) return a end\nlocal b\n":                      2,
	} {
		require.Equal(t, want, Locals(text), text)
		chunk, err := parse.Parse(strings.NewReader(text), "text")
		require.NoError(t, err)
		c := counter{}
		c.function(nil, chunk)
		require.Equal(t, want, c.most, text)
	}
}

// A counter counts the variables in scope as the parser finds them.
type counter struct{ now, most int }

func (c *counter) declare(n int) {
	c.now += n
	c.most = max(c.most, c.now)
}

func (c *counter) function(params []string, body []ast.Stmt) {
	before := c.now
	c.now = 0
	c.scope(len(params), body)
	c.now = before
}

func (c *counter) scope(n int, body []ast.Stmt) {
	before := c.now
	c.declare(n)
	for _, stmt := range body {
		c.stmt(stmt)
	}
	c.now = before
}

func (c *counter) stmt(stmt ast.Stmt) {
	switch s := stmt.(type) {
	case *ast.LocalAssignStmt:
		c.exprs(s.Exprs)
		c.declare(len(s.Names))
	case *ast.AssignStmt:
		c.exprs(s.Rhs)
	case *ast.FuncCallStmt:
		c.exprs([]ast.Expr{s.Expr})
	case *ast.ReturnStmt:
		c.exprs(s.Exprs)
	case *ast.DoBlockStmt:
		c.scope(0, s.Stmts)
	case *ast.WhileStmt:
		c.scope(0, s.Stmts)
	case *ast.RepeatStmt:
		c.scope(0, s.Stmts)
	case *ast.IfStmt:
		c.scope(0, s.Then)
		c.scope(0, s.Else)
	case *ast.NumberForStmt:
		c.scope(4, s.Stmts)
	case *ast.GenericForStmt:
		c.scope(3+len(s.Names), s.Stmts)
	}
}

// exprs finds the functions in expressions.
func (c *counter) exprs(all []ast.Expr) {
	for _, expr := range all {
		switch e := expr.(type) {
		case *ast.FunctionExpr:
			c.function(e.ParList.Names, e.Stmts)
		case *ast.FuncCallExpr:
			c.exprs(append([]ast.Expr{e.Func}, e.Args...))
		case *ast.TableExpr:
			for _, field := range e.Fields {
				c.exprs([]ast.Expr{field.Value})
			}
		}
	}
}
