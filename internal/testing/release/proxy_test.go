package release

import (
	"bytes"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/stretchr/testify/require"
	"golang.org/x/mod/modfile"
)

// A user is somebody with an empty folder and the proxy.
type user struct{ proxy, version, cache string }

// TestEveryModuleCanBeHad: .ci/tag cuts a release candidate, and a new module gets each module of the repository at it from
// a proxy, and builds what a service would import. It uses the module cache, for what the modules need, and leaves there
// nothing of its own.
func TestEveryModuleCanBeHad(t *testing.T) {
	if testing.Short() {
		t.Skip("left out with -short: it resolves and builds every module")
	}
	root := repository(t)
	u := user{t.TempDir(), fmt.Sprintf("v0.1.0-rc.%d", time.Now().UnixNano()), strings.TrimSpace(output(t, root, "go", "env", "GOMODCACHE"))}
	modules, err := Modules(root)
	require.NoError(t, err)
	require.Equal(t, Module{".", rootPath}, modules[0])
	require.NoError(t, WriteProxy(u.proxy, tagged(t, root, u.version), u.version))
	t.Cleanup(func() { u.forget(t, modules) })

	for _, m := range modules {
		t.Run(m.Path, func(t *testing.T) {
			dir := u.folder(t)
			u.run(t, dir, "go", "get", m.Path+"@"+u.version)
			text, err := os.ReadFile(filepath.Join(dir, "go.mod"))
			require.NoError(t, err)
			require.Contains(t, string(text), m.Path+" "+u.version)
			require.NotContains(t, string(text), "replace")
			if published(m.Dir) {
				imports := imported(m)
				for _, path := range imports {
					u.run(t, dir, "go", "get", path+"@"+u.version)
				}
				u.run(t, dir, append([]string{"go", "build", "-o", os.DevNull}, imports...)...)
			}
		})
	}
	t.Run("the README's lines", func(t *testing.T) { u.runsInstallLines(t, root, modules) })
	t.Run("the README's first program", func(t *testing.T) { u.runsFirstProgram(t, root) })
}

// tagged is a clone of the repository in which .ci/tag has made the tags of version, at the commit of all modules but the root.
func tagged(t *testing.T, root, version string) string {
	for _, name := range []string{"AUTHOR", "COMMITTER"} {
		t.Setenv("GIT_"+name+"_NAME", "release")
		t.Setenv("GIT_"+name+"_EMAIL", "release@localhost")
	}
	clone := filepath.Join(t.TempDir(), "clone")
	output(t, root, "git", "clone", "--quiet", "--no-hardlinks", root, clone)
	output(t, clone, ".ci/tag", version)
	tags := strings.Fields(output(t, clone, "git", "tag", "--list", "*"+version))
	modules, err := Modules(clone)
	require.NoError(t, err)
	var want []string
	for _, m := range modules {
		if published(m.Dir) {
			want = append(want, strings.TrimPrefix(m.Dir+"/"+version, "./"))
		}
	}
	require.ElementsMatch(t, want, tags)
	require.Empty(t, output(t, clone, "git", "status", "--porcelain"))
	require.Equal(t, output(t, clone, "git", "rev-parse", "HEAD"), output(t, clone, "git", "rev-parse", version+"^{commit}"), "the branch stays where it was")
	output(t, clone, "git", "checkout", "--quiet", "grpclimit/"+version)
	for _, m := range modules {
		if m.Dir == "." || !published(m.Dir) {
			continue
		}
		text, err := os.ReadFile(filepath.Join(clone, m.Dir, "go.mod"))
		require.NoError(t, err)
		require.Contains(t, string(text), rootPath+" "+version)
		require.NotContains(t, string(text), "replace")
	}
	return clone
}

// imported are the packages of a published module that a service imports.
func imported(m Module) []string {
	if m.Dir == "." { // the others are examples, and of the module itself
		return []string{m.Path, m.Path + "/httplimit", m.Path + "/observe", m.Path + "/ratelimittest", m.Path + "/simulate"}
	}
	return []string{m.Path + "/..."}
}

// published reports whether a module gets a tag: the others are read, not imported.
func published(dir string) bool {
	return !regexp.MustCompile(`^(bench|docs|examples|internal)\b`).MatchString(dir)
}

func TestPublishedModulesAreThoseOfTheScript(t *testing.T) {
	root := repository(t)
	modules, err := Modules(root)
	require.NoError(t, err)
	script, err := os.ReadFile(filepath.Join(root, ".ci/tag"))
	require.NoError(t, err)
	named := regexp.MustCompile(`(?s)\nmodules=\((.*?)\)`).FindStringSubmatch(string(script))
	require.NotNil(t, named)
	want := []string{}
	for _, m := range modules[1:] {
		if published(m.Dir) {
			want = append(want, m.Dir)
		}
	}
	require.ElementsMatch(t, want, strings.Fields(named[1]))
}

// TestUsersNeedNoReplace: those that a checkout needs name other modules of the repository, which a
// tagged go.mod requires by version.
func TestUsersNeedNoReplace(t *testing.T) {
	root := repository(t)
	modules, err := Modules(root)
	require.NoError(t, err)
	for _, m := range modules {
		name := filepath.Join(root, m.Dir, "go.mod")
		text, err := os.ReadFile(name)
		require.NoError(t, err)
		f, err := modfile.Parse(name, text, nil)
		require.NoError(t, err)
		require.Equal(t, m.Path, f.Module.Mod.Path)
		for _, r := range f.Replace {
			require.True(t, ours(r.Old.Path), "%s replaces %s; users do not", name, r.Old.Path)
			require.Equal(t, r.Old.Path, filepath.ToSlash(filepath.Join(m.Path, r.New.Path)), name)
		}
		tagged, err := m.tagged(root, "v1.2.3")
		require.NoError(t, err)
		require.NotContains(t, string(tagged), "replace ")
		require.NotContains(t, string(tagged), rootPath+" v0.0.0")
	}
}

// folder is a new module.
func (u user) folder(t *testing.T) string {
	dir := t.TempDir()
	u.run(t, dir, "go", "mod", "init", "example.com/hello")
	return dir
}

// run runs a command with what the proxy and the module cache have, else with the network. The test
// is skipped where the network cannot be reached.
func (u user) run(t *testing.T, dir string, args ...string) {
	t.Helper()
	try := func(further string) (string, error) {
		cmd := exec.Command(args[0], args[1:]...)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "GOFLAGS="+goflags, "GOWORK=off", "GONOSUMDB=*", "GOTOOLCHAIN=auto",
			"GOPROXY=file://"+filepath.ToSlash(u.proxy)+",file://"+filepath.ToSlash(u.cache)+"/cache/download,"+further)
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	if _, err := try("off"); err == nil {
		return
	}
	network := strings.TrimSpace(output(t, dir, "go", "env", "GOPROXY"))
	out, err := try(network)
	if err != nil && regexp.MustCompile(`dial tcp|no such host|connection refused|i/o timeout|TLS handshake|proxyconnect|GOPROXY=off`).MatchString(out) {
		t.Skipf("left out: neither the module cache nor the network serves %q:\n%s", strings.Join(args, " "), out)
	}
	require.NoError(t, err, "%s:\n%s", strings.Join(args, " "), out)
}

// forget removes from the module cache what the proxy served.
func (u user) forget(t *testing.T, modules []Module) {
	for _, m := range modules {
		require.NoError(t, os.RemoveAll(filepath.Join(u.cache, m.Path+"@"+u.version)))
		files, err := filepath.Glob(filepath.Join(u.cache, "cache/download", m.Path, "@v", u.version+".*"))
		require.NoError(t, err)
		for _, name := range files {
			require.NoError(t, os.Remove(name))
		}
	}
}

// runsInstallLines takes each line of the README that gets a published module, in a folder of its own, and uses what it got.
func (u user) runsInstallLines(t *testing.T, root string, modules []Module) {
	readme, err := os.ReadFile(filepath.Join(root, "README.md"))
	require.NoError(t, err)
	got := map[string]string{}
	for _, line := range regexp.MustCompile(`(?m)^go (?:get|install) (\S+?)(?:@latest)?$`).FindAllStringSubmatch(string(readme), -1) {
		require.Empty(t, got[line[1]], "twice")
		got[line[1]] = line[0]
	}
	for _, m := range modules {
		if m.Dir != "." && !published(m.Dir) {
			continue
		}
		require.NotEmpty(t, got[m.Path], "the README has no line that gets %s", m.Path)
		dir := u.folder(t)
		args := strings.Fields(got[m.Path])
		if args[1] == "install" {
			args = append([]string{"env", "GOBIN=" + dir}, args...)
			u.run(t, dir, args...)
			program := filepath.Join(dir, filepath.Base(m.Path))
			require.Contains(t, output(t, dir, program, "--help"), "ratelimit")
		} else {
			u.run(t, dir, args...)
			packages := strings.Fields(output(t, filepath.Join(root, m.Dir), "go", "list", "./..."))
			imports := fmt.Sprintf("package main\n\nimport _ %q\n\nfunc main() {}\n", packages[0])
			require.NoError(t, os.WriteFile(filepath.Join(dir, "main.go"), []byte(imports), 0o600))
			u.run(t, dir, "go", "mod", "tidy")
			u.run(t, dir, "go", "build", "-o", os.DevNull, ".")
		}
		delete(got, m.Path)
	}
	require.Empty(t, got, "the README gets what is not published")
}

func (u user) runsFirstProgram(t *testing.T, root string) {
	readme, err := os.ReadFile(filepath.Join(root, "README.md"))
	require.NoError(t, err)
	first := regexp.MustCompile("(?s)\n```go\n(package main\n.*?)```").FindSubmatch(readme)
	require.NotNil(t, first)
	server := miniredis.RunT(t)
	server.SetTime(time.Unix(1_763_670_000, 0)) // no token arrives during the test
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	address := listener.Addr().String()
	require.NoError(t, listener.Close())
	program := string(first[1])
	for old, now := range map[string]string{"localhost:6379": server.Addr(), "localhost:8080": address} {
		require.Equal(t, 1, strings.Count(program, old))
		program = strings.Replace(program, old, now, 1)
	}

	dir := u.folder(t)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "main.go"), []byte(program), 0o600))
	u.run(t, dir, "go", "get", rootPath+"@"+u.version)
	u.run(t, dir, "go", "mod", "tidy")
	u.run(t, dir, "go", "build", "-o", "hello", ".")

	var log bytes.Buffer
	hello := exec.Command(filepath.Join(dir, "hello"))
	hello.Stdout, hello.Stderr = &log, &log
	require.NoError(t, hello.Start())
	t.Cleanup(func() {
		_ = hello.Process.Kill()
		_ = hello.Wait()
		if t.Failed() {
			t.Log(log.String())
		}
	})
	require.Eventually(t, func() bool {
		c, err := net.Dial("tcp", address)
		if err == nil {
			_ = c.Close()
		}
		return err == nil
	}, 10*time.Second, 10*time.Millisecond)
	for i := range 6 {
		response, err := http.Get("http://" + address)
		require.NoError(t, err)
		require.NoError(t, response.Body.Close())
		require.Equal(t, []int{200, 200, 200, 200, 200, 429}[i], response.StatusCode)
	}
}

func repository(t *testing.T) string {
	t.Helper()
	root, err := filepath.Abs("../../..")
	require.NoError(t, err)
	if _, err := os.Stat(filepath.Join(root, ".git")); err != nil {
		t.Skip("left out: this is no checkout")
	}
	return root
}

func output(t *testing.T, dir string, args ...string) string {
	t.Helper()
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Dir = dir
	out, err := cmd.Output()
	require.NoError(t, err)
	return string(out)
}
