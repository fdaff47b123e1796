package script

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/yuin/gopher-lua/ast"
	"github.com/yuin/gopher-lua/parse"

	"github.com/tryacquire/ratelimit/internal/testing/raceflag"
)

// scriptsDir holds the Lua files of the algorithms and the templates.
const scriptsDir = "../../scripts"

// templates are filled with the blocks of an algorithm. Those of several limiters are
// parts of the last three, with places that the program fills.
var (
	templates     = []string{"many.lua", "operations.lua", "peek.lua", "holds.lua"}
	ofSeveral     = []string{"all_limiter.lua", "all_closure.lua", "all_peek_limiter.lua", "finish_limiter.lua"}
	aroundSeveral = []string{"all.lua", "all_one.lua", "all_peek.lua", "all_common.lua", "finish.lua"}
	filledByGo    = names{"own": true, "request": true, "inner": true, "settle": true, "sealed": true, "shape": true, "limiters": true}
)

// fits reports whether a template can be filled from a file: only permits in flight are held.
func fits(template string, f *File) bool {
	return template != "holds.lua" || f.Name() == "inflight.lua"
}

// forOneLimiter is a template without the lines that are for keys of several limiters, or for an
// operation on its own.
func forOneLimiter(template string) string {
	for _, variant := range []string{"own", "alone"} {
		for {
			before, rest, ok := strings.Cut(template, "-- <if "+variant+">\n")
			if !ok {
				break
			}
			_, behind, _ := strings.Cut(rest, "-- </if "+variant+">\n")
			template = before + behind
		}
	}
	return template
}

// isTemplate reports whether the file is not one of an algorithm.
func isTemplate(name string) bool {
	return slices.Contains(slices.Concat(templates, ofSeveral, aroundSeveral), name)
}

// templatesOf are the templates that a file is cut into. Permits in flight have an id, which
// the requests of the others do not.
func templatesOf(name string) []string {
	switch name {
	case "inflight.lua":
		return []string{"peek.lua", "holds.lua"}
	case "inflight_extend.lua":
		return nil
	}
	return slices.DeleteFunc(slices.Clone(templates), func(template string) bool { return template == "holds.lua" })
}

// luaGlobals are those of Redis that the scripts use.
var luaGlobals = names{"redis": true, "KEYS": true, "ARGV": true, "string": true, "math": true, "tonumber": true,
	"type": true, "unpack": true, "pairs": true, "pcall": true, "table": true}

// names is a set of them.
type names map[string]bool

func (n names) String() string { return strings.Join(slices.Sorted(maps.Keys(n)), " ") }

func (n names) addAll(others ...names) names {
	for _, o := range others {
		maps.Copy(n, o)
	}
	return n
}

func readLua(t *testing.T, name string) string {
	text, err := os.ReadFile(filepath.Join(scriptsDir, name))
	require.NoError(t, err)
	return string(text)
}

func luaFiles(t *testing.T) map[string]string {
	files := map[string]string{}
	paths, err := filepath.Glob(scriptsDir + "/*.lua")
	require.NoError(t, err)
	for _, path := range paths {
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		files[filepath.Base(path)] = string(text)
	}
	for _, of := range []string{"bucket_rules.lua", "sliding.lua"} {
		common := Parse(of, files[of])
		delete(files, of)
		for name, text := range files {
			if !isTemplate(name) {
				files[name] = Include(text, common)
			}
		}
	}
	for _, of := range []string{"tickets.lua", "tickets_one.lua", "all_once.lua"} { // around the blocks of other files
		delete(files, of)
	}
	require.NotEmpty(t, files)
	return files
}

// Each block says in a line "-- needs:" which names it uses that are declared outside
// of it, and in "-- sets:" which names of those that it declares or assigns are used
// after it. Both are true, and complete.
func TestBlocksSayWhatTheyNeedAndSet(t *testing.T) {
	raceflag.SkipSequential(t)
	files := luaFiles(t)
	for name, text := range files {
		if isTemplate(name) {
			continue
		}
		blocks := Parse(name, text).Blocks()
		require.NotEmpty(t, blocks, name)
		for block, body := range blocks {
			used := analyse(t, name, body)
			// What comes after it: other blocks, the lines that belong to none, and what
			// the templates use.
			_, rest, _ := strings.Cut(text, "-- </"+block+">")
			after := (names{}).addAll(outsideBlocks(rest))
			for later, body := range blocks {
				if strings.Contains(rest, "-- <"+later+">") {
					after.addAll(analyse(t, name, body).free)
				}
			}
			sets := names{}
			for _, template := range templates {
				if !fits(template, Parse(name, text)) {
					continue
				}
				source := forOneLimiter(files[template])
				free := analyse(t, template, source).free
				_, rest, _ := strings.Cut(source, "-- <"+block+"/>")
				for line := range strings.Lines(rest) { // the blocks that the template has after it
					if mark, kind := parseMark(line); kind == markPlace {
						if body, ok := blocks[strings.TrimSuffix(mark, "?")]; ok {
							after.addAll(analyse(t, name, body).free)
						}
					}
				}
				for word := range identifiers(rest) {
					if used.assigned[word] || used.top[word] && free[word] {
						sets[word] = true
					}
				}
			}
			for changed := range (names{}).addAll(used.top, used.assigned) {
				if after[changed] || name == "callersclock.lua" { // whose blocks stand in other files
					sets[changed] = true
				}
			}
			require.Equal(t, used.free.String(), said(body, "needs"), "%s: needs of <%s>", name, block)
			require.Equal(t, sets.String(), said(body, "sets"), "%s: sets of <%s>", name, block)
		}
	}
}

// The same of tickets.lua, whose blocks stand around those of other files, and so apart from each other. What a block sets is
// used by any other block of it, of the files that have tickets, or by a template; not by another block for the same place, such
// as "keep of log" for "keep".
func TestTicketsSayWhatTheyNeedAndSet(t *testing.T) {
	raceflag.SkipSequential(t)
	const name = "tickets.lua"
	files := luaFiles(t)
	others := names{}
	for _, template := range slices.Concat(templates, ofSeveral, aroundSeveral) {
		others.addAll(identifiers(files[template]))
	}
	others.addAll(identifiers(readLua(t, "tickets_one.lua")))
	blocks := Parse(name, readLua(t, name)).Blocks()
	for _, of := range []string{"bucket.lua", "calendarwindow.lua", "datedwindow.lua", "slidinglog.lua", "slidingwindow_list.lua"} {
		for _, body := range Parse(of, files[of]).Blocks() {
			others.addAll(analyse(t, of, body).free)
		}
	}
	place := func(block string) string {
		place, _, _ := strings.Cut(block, " of ")
		return place
	}
	for block, body := range blocks {
		after := maps.Clone(others)
		for other, body := range blocks {
			if place(other) != place(block) {
				after.addAll(analyse(t, name, body).free)
			}
		}
		used, sets := analyse(t, name, body), names{}
		for changed := range (names{}).addAll(used.top, used.assigned) {
			sets[changed] = after[changed]
		}
		maps.DeleteFunc(sets, func(_ string, after bool) bool { return !after })
		require.Equal(t, used.free.String(), said(body, "needs"), "%s: needs of <%s>", name, block)
		require.Equal(t, sets.String(), said(body, "sets"), "%s: sets of <%s>", name, block)
	}
}

// said returns what the block's own line says, in alphabetical order.
func said(body, what string) string {
	for line := range strings.Lines(body) {
		if list, ok := strings.CutPrefix(strings.TrimSpace(line), "-- "+what+":"); ok {
			all := strings.Fields(list)
			slices.Sort(all)
			return strings.Join(all, " ")
		}
	}
	return "(nothing is said)"
}

// outsideBlocks are the identifiers in lines that belong to no block which begins in text.
func outsideBlocks(text string) names {
	depth, outside := 0, ""
	for line := range strings.Lines(text) {
		switch _, kind := parseMark(line); kind {
		case markBegin:
			depth++
		case markEnd:
			depth = max(depth-1, 0)
		default:
			if depth == 0 {
				outside += line
			}
		}
	}
	return identifiers(outside)
}

var (
	luaComment = regexp.MustCompile(`--.*`)
	luaString  = regexp.MustCompile(`'[^'\n]*'`)
	luaWord    = regexp.MustCompile(`[A-Za-z_]\w*`)
)

func identifiers(text string) names {
	all := names{}
	text = luaString.ReplaceAllString(luaComment.ReplaceAllString(text, ""), "")
	for _, word := range luaWord.FindAllString(text, -1) {
		all[word] = true
	}
	return all
}

// A block has a place in a template or in a block of its file, or is inside a block that has one. Otherwise a
// mistyped name of an optional block, such as expire, would only leave the block out.
func TestEveryBlockHasAPlace(t *testing.T) {
	files := luaFiles(t)
	places, used := names{"answer": true}, names{} // AnswerInWords replaces the answer
	for block := range Parse("tickets.lua", readLua(t, "tickets.lua")).Blocks() {
		used[block] = block == "tickets" || block == "full" || block == "begin"
	}
	for block := range Parse("all_once.lua", readLua(t, "all_once.lua")).Blocks() {
		used[block] = true
	}
	maps.DeleteFunc(used, func(_ string, has bool) bool { return !has })
	for _, template := range slices.Concat(templates, ofSeveral, aroundSeveral) {
		for line := range strings.Lines(files[template]) {
			if mark, kind := parseMark(line); kind == markPlace && !filledByGo[strings.TrimSuffix(mark, "?")] {
				places[strings.TrimSuffix(mark, "?")] = true
			}
		}
	}
	for name, text := range files {
		if isTemplate(name) {
			continue
		}
		depth := 0
		for line := range strings.Lines(text) {
			switch mark, kind := parseMark(line); kind {
			case markBegin:
				if depth == 0 && !strings.Contains(text, "-- <"+mark+"/>\n") {
					require.True(t, places[mark], "%s: no template has a place for <%s>", name, mark)
					used[mark] = true
				}
				depth++
			case markEnd:
				depth--
			}
		}
	}
	require.Equal(t, places.String(), used.String(), "places that no script fills")
}

// The same logic for the same state is the same text, so that a fault is mended in all
// places.
func TestSharedBlocksAreTheSameText(t *testing.T) {
	files := luaFiles(t)
	for _, same := range []struct{ a, b, blocks string }{
		{"bucket.lua", "steppedbucket.lua", "clock"},
		{"slidingwindow_list.lua", "slidinglog.lua", "clock"},
		{"slidingwindow_list.lua", "slidingwindow_hash.lua", "clock fit take words answer charge"},
		{"slidingwindow_list.lua", "slidingwindow_zset.lua", "clock fit words answer"},
		{"bucket.lua", "datedwindow.lua", "clock"},
		{"calendarwindow.lua", "datedwindow.lua", "clock fit charge"},
		{"bucket.lua", "slidinglog.lua", "clock"},
		{"bucket.lua", "inflight.lua", "clock"},
		{"bucket.lua", "inflight_extend.lua", "clock"},
	} {
		a, b := Parse(same.a, files[same.a]).Blocks(), Parse(same.b, files[same.b]).Blocks()
		for block := range strings.FieldsSeq(same.blocks) {
			require.Contains(t, a, block, same.a)
			require.Equal(t, unindented(a[block]), unindented(b[block]), "<%s> in %s and %s", block, same.a, same.b)
		}
	}
}

func unindented(text string) string {
	out := ""
	for line := range strings.Lines(text) {
		out += strings.TrimLeft(line, " ")
	}
	return out
}

// A whole file uses no name that is not declared, and so does what is cut from it.
func TestScriptsUseNoUndeclaredNames(t *testing.T) {
	raceflag.SkipSequential(t)
	files := luaFiles(t)
	caller := Parse("callersclock.lua", files["callersclock.lua"])
	for name, text := range files {
		if name == "callersclock.lua" || isTemplate(name) {
			continue
		}
		f := Parse(name, text)
		for _, f := range []*File{f, f.With(caller), f.AnswerInWords()} {
			require.Empty(t, analyse(t, name, f.Script().Source()).free, name)
			for _, template := range templatesOf(name) {
				if !fits(template, f) {
					continue
				}
				variants := []*File{f}
				if strings.Contains(files[template], "<if own>") {
					variants = append(variants, f.Set("alone", ""), f.MoveArguments("front").Move("config", "own"))
				}
				for _, variant := range variants {
					require.Empty(t, analyse(t, name, variant.Fill(files[template]).Source()).free, "%s in %s", name, template)
				}
			}
		}
	}
}

// In a script of several limiters a limiter's blocks stand in the scope of those before it,
// and hide their names. The names that all of them use must stay visible.
func TestNoBlockHidesWhatSeveralLimitersShare(t *testing.T) {
	shared := names{"KEYS": true, "ARGV": true, "ahead": true, "all": true, "call": true, "change": true, "common": true, "configured": true, "i": true, "inner": true,
		"limiters": true,
		"now":      true, "failed": true, "front": true, "mark": true, "ok": true, "out": true, "request": true, "size": true, "sized": true, "skipped": true, "spare": true}
	for name, text := range luaFiles(t) {
		if name == "callersclock.lua" || isTemplate(name) {
			continue
		}
		for block, body := range Parse(name, text).Blocks() {
			if block == "clock" || block == "limits" || block == "answer" { // the first two are around all, the third is not used
				continue
			}
			for declared := range analyse(t, name, body).top {
				require.False(t, shared[declared], "<%s> of %s declares %s", block, name, declared)
			}
		}
	}
}

// A usage is what a piece of Lua does with names.
type usage struct {
	top      names // declared by it, and visible after it
	free     names // used, and not declared by it
	assigned names // the free ones that it assigns
}

func analyse(t *testing.T, name, text string) usage {
	chunk, err := parse.Parse(strings.NewReader(text), name)
	require.NoError(t, err, "%s:\n%s", name, text)
	w := walker{usage: usage{top: names{}, free: names{}, assigned: names{}}}
	w.open()
	w.stmts(chunk)
	w.top = w.scopes[0]
	return w.usage
}

type walker struct {
	usage
	scopes []names
}

func (w *walker) open()  { w.scopes = append(w.scopes, names{}) }
func (w *walker) close() { w.scopes = w.scopes[:len(w.scopes)-1] }

func (w *walker) declare(all ...string) {
	for _, name := range all {
		w.scopes[len(w.scopes)-1][name] = true
	}
}

func (w *walker) use(name string, assigned bool) {
	for _, scope := range w.scopes {
		if scope[name] {
			return
		}
	}
	if luaGlobals[name] && !assigned {
		return
	}
	w.free[name] = true
	if assigned {
		w.assigned[name] = true
	}
}

func (w *walker) body(stmts []ast.Stmt) {
	w.open()
	w.stmts(stmts)
	w.close()
}

func (w *walker) stmts(stmts []ast.Stmt) {
	for _, stmt := range stmts {
		w.stmt(stmt)
	}
}

func (w *walker) stmt(stmt ast.Stmt) {
	switch s := stmt.(type) {
	case *ast.AssignStmt:
		w.exprs(s.Rhs)
		for _, to := range s.Lhs {
			if name, ok := to.(*ast.IdentExpr); ok {
				w.use(name.Value, true)
			} else {
				w.expr(to)
			}
		}
	case *ast.LocalAssignStmt:
		if len(s.Exprs) == 1 {
			if _, ok := s.Exprs[0].(*ast.FunctionExpr); ok { // local function f: f knows itself
				w.declare(s.Names...)
			}
		}
		w.exprs(s.Exprs)
		w.declare(s.Names...)
	case *ast.FuncCallStmt:
		w.expr(s.Expr)
	case *ast.DoBlockStmt:
		w.body(s.Stmts)
	case *ast.WhileStmt:
		w.expr(s.Condition)
		w.body(s.Stmts)
	case *ast.RepeatStmt:
		w.open()
		w.stmts(s.Stmts)
		w.expr(s.Condition) // it sees the locals of the body
		w.close()
	case *ast.IfStmt:
		w.expr(s.Condition)
		w.body(s.Then)
		w.body(s.Else)
	case *ast.NumberForStmt:
		w.exprs([]ast.Expr{s.Init, s.Limit, s.Step})
		w.open()
		w.declare(s.Name)
		w.stmts(s.Stmts)
		w.close()
	case *ast.GenericForStmt:
		w.exprs(s.Exprs)
		w.open()
		for _, name := range s.Names {
			w.declare(name)
		}
		w.stmts(s.Stmts)
		w.close()
	case *ast.ReturnStmt:
		w.exprs(s.Exprs)
	case *ast.BreakStmt:
	default:
		panic(fmt.Sprintf("a statement that the scripts did not have: %T", stmt))
	}
}

func (w *walker) exprs(exprs []ast.Expr) {
	for _, expr := range exprs {
		w.expr(expr)
	}
}

func (w *walker) expr(expr ast.Expr) {
	switch e := expr.(type) {
	case nil, *ast.TrueExpr, *ast.FalseExpr, *ast.NilExpr, *ast.NumberExpr, *ast.StringExpr:
	case *ast.IdentExpr:
		w.use(e.Value, false)
	case *ast.AttrGetExpr:
		w.exprs([]ast.Expr{e.Object, e.Key})
	case *ast.TableExpr:
		for _, field := range e.Fields {
			w.exprs([]ast.Expr{field.Value})
		}
	case *ast.FuncCallExpr:
		w.exprs([]ast.Expr{e.Func, e.Receiver})
		w.exprs(e.Args)
	case *ast.LogicalOpExpr:
		w.exprs([]ast.Expr{e.Lhs, e.Rhs})
	case *ast.RelationalOpExpr:
		w.exprs([]ast.Expr{e.Lhs, e.Rhs})
	case *ast.StringConcatOpExpr:
		w.exprs([]ast.Expr{e.Lhs, e.Rhs})
	case *ast.ArithmeticOpExpr:
		w.exprs([]ast.Expr{e.Lhs, e.Rhs})
	case *ast.UnaryMinusOpExpr:
		w.expr(e.Expr)
	case *ast.UnaryNotOpExpr:
		w.expr(e.Expr)
	case *ast.UnaryLenOpExpr:
		w.expr(e.Expr)
	case *ast.FunctionExpr:
		w.open()
		w.declare(e.ParList.Names...)
		w.stmts(e.Stmts)
		w.close()
	default:
		panic(fmt.Sprintf("an expression that the scripts did not have: %T", expr))
	}
}
