package docstest

import (
	"fmt"
	"go/ast"
	"go/format"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit/internal/testing/raceflag"
)

// preamble declares what a snippet may use without declaring it.
const preamble = `package snippet

import (
	"context"
	"net/http"

	"github.com/redis/go-redis/v9"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/httplimit"
)

var (
	ctx                   context.Context
	client, standbyClient *redis.Client
	limiter               ratelimit.Limiter
	result                ratelimit.Result
	err                   error
	key, customer, plan   string
	perUser, tokens       *ratelimit.TokenBucket
	perAddress            *ratelimit.SlidingWindow
	reports               *ratelimit.InFlight
	w                     http.ResponseWriter
	r                     *http.Request
	handler               http.Handler
	address, apiKey       httplimit.KeyFunc
)
`

// packages are what a snippet may use without importing it. A snippet that is a whole file
// imports what it uses.
var packages = map[string]string{
	"atomic":        "sync/atomic",
	"context":       "context",
	"errors":        "errors",
	"fmt":           "fmt",
	"fnv":           "hash/fnv",
	"http":          "net/http",
	"httplimit":     "github.com/tryacquire/ratelimit/httplimit",
	"httptest":      "net/http/httptest",
	"json":          "encoding/json",
	"log":           "log",
	"miniredis":     "github.com/alicebob/miniredis/v2",
	"netip":         "net/netip",
	"observe":       "github.com/tryacquire/ratelimit/observe",
	"rand":          "math/rand/v2",
	"ratelimit":     "github.com/tryacquire/ratelimit",
	"ratelimittest": "github.com/tryacquire/ratelimit/ratelimittest",
	"redis":         "github.com/redis/go-redis/v9",
	"logging":       "github.com/redis/go-redis/v9/logging",
	"sha256":        "crypto/sha256",
	"slog":          "log/slog",
	"strconv":       "strconv",
	"synctest":      "testing/synctest",
	"testing":       "testing",
	"time":          "time",
}

// TestSnippetsCompile type-checks and vets each Go snippet, and runs those that are tests. Each is
// a package of a temporary module that requires what this module requires, so that nothing has
// to be downloaded.
func TestSnippetsCompile(t *testing.T) {
	if testing.Short() {
		t.Skip("compiling the snippets takes seconds; left out with -short")
	}
	t.Parallel()
	module := t.TempDir()
	write := func(name, text string) {
		path := filepath.Join(module, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	}
	read := func(name string) string {
		text, err := os.ReadFile(filepath.Join(root(t), name))
		require.NoError(t, err)
		return string(text)
	}
	const path = "github.com/tryacquire/ratelimit"
	write("go.mod", replaceOnce(t, read("go.mod"), "module "+path+"\n", "module snippets\n")+
		"\nrequire "+path+" v0.0.0\n\nreplace "+path+" => "+strconv.Quote(root(t))+"\n")
	write("go.sum", read("go.sum"))

	snippets, tests := 0, []string{}
	for _, p := range pages(t, "README.md", "CONTRIBUTING.md", "docs/*.md", "docs/from/*.md") {
		for _, b := range p.blocks() {
			if b.language != "go" || p.source(b) != "" {
				continue
			}
			snippets++
			where := fmt.Sprintf("%s:%d", p.name, b.line)
			formatted, err := format.Source([]byte(b.text))
			require.NoError(t, err, where)
			require.Equal(t, string(formatted), b.text, "%s: gofmt would change this snippet", where)
			name := regexp.MustCompile(`\W`).ReplaceAllString(where, "_")
			file := "snippet.go"
			if strings.Contains(b.text, "*testing.T") {
				file = "snippet_test.go"
				tests = append(tests, "./"+name)
			}
			write(name+"/preamble.go", preamble)
			write(name+"/"+file, whole(t, p.path, b))
		}
	}
	run := func(args ...string) {
		cmd := exec.Command("go", args...)
		cmd.Dir = module
		cmd.Env = append(os.Environ(), "GOFLAGS="+raceflag.GoFlags(), "GOWORK=off")
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "go %s:\n%s", args[0], out)
	}
	run("vet", "./...")
	require.NotEmpty(t, tests)
	run(append([]string{"test"}, tests...)...)
	t.Logf("%d snippets, %d of them tests", snippets, len(tests))
}

// whole is the snippet as a file whose positions are those of the page.
func whole(t *testing.T, path string, b block) string {
	position := fmt.Sprintf("//line %s:%d\n", path, b.line)
	files := token.NewFileSet()
	if parsed, err := parser.ParseFile(files, "", b.text, parser.PackageClauseOnly); err == nil {
		at := files.Position(parsed.Name.Pos()).Offset
		return position + b.text[:at] + "snippet" + b.text[at+len(parsed.Name.Name):]
	}
	const clause = "package snippet; "
	if parsed, err := parser.ParseFile(files, "", clause+b.text, 0); err == nil {
		return clause + imports(parsed) + "\n" + position + b.text
	}
	const open = clause + "func _() error {\n"
	parsed, err := parser.ParseFile(files, "", open+b.text+"\n}", 0)
	require.NoError(t, err, "%s:%d", path, b.line)
	body := parsed.Decls[0].(*ast.FuncDecl).Body
	return clause + imports(parsed) + "\nfunc _() error {\n" + position + b.text + uses(body) + "return nil\n}\n"
}

// imports are the declared packages that the file uses.
func imports(file *ast.File) string {
	used := map[string]bool{}
	ast.Inspect(file, func(n ast.Node) bool {
		if s, ok := n.(*ast.SelectorExpr); ok {
			if x, ok := s.X.(*ast.Ident); ok && packages[x.Name] != "" {
				used[x.Name] = true
			}
		}
		return true
	})
	var clauses strings.Builder
	for _, name := range slices.Sorted(maps.Keys(used)) {
		fmt.Fprintf(&clauses, "import %s %q; ", name, packages[name])
	}
	return clauses.String()
}

// uses are assignments that use what the body declares: a snippet may end before it does.
func uses(body *ast.BlockStmt) string {
	var all strings.Builder
	for _, statement := range body.List {
		if a, ok := statement.(*ast.AssignStmt); ok && a.Tok == token.DEFINE {
			for _, left := range a.Lhs {
				if name := left.(*ast.Ident).Name; name != "_" {
					fmt.Fprintf(&all, "_ = %s\n", name)
				}
			}
		}
	}
	return all.String()
}
