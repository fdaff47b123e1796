package docstest

import (
	"bytes"
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

	"github.com/tryacquire/ratelimit/internal/testing/raceflag"
)

// TestInstallAsPrinted takes the README's program and its steps of the installation in an empty
// folder, starts the program, and asks until it answers 429. This checkout stands in for its clone.
func TestInstallAsPrinted(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("left out with -short: it resolves a module's dependencies and links a program")
	}
	readme := pages(t, "README.md")[0]
	var program string
	var steps []string
	for _, b := range readme.blocks() {
		if program == "" && b.language == "go" {
			program = b.text
		}
		if strings.Contains(b.text, "go mod init") {
			steps = strings.Split(strings.TrimSpace(b.text), "\n")
		}
	}
	require.NotEmpty(t, steps)
	require.Equal(t, "git clone <this repository> ../ratelimit", steps[0])
	require.Equal(t, "go run .", steps[len(steps)-1])

	server := miniredis.RunT(t)
	server.SetTime(time.Unix(1_763_670_000, 0)) // no token arrives during the test
	address := freeAddress(t)
	program = replaceOnce(t, program, "localhost:6379", server.Addr())
	program = replaceOnce(t, program, "localhost:8080", address)

	folder := t.TempDir()
	module := filepath.Join(folder, "hello")
	require.NoError(t, os.Mkdir(module, 0o700))
	require.NoError(t, os.Symlink(root(t), filepath.Join(folder, "ratelimit")))
	require.NoError(t, os.WriteFile(filepath.Join(module, "main.go"), []byte(program), 0o600))
	for _, step := range append(steps[1:len(steps)-1], "go build -o hello .") {
		goStep(t, module, strings.Fields(step))
	}
	mod, err := os.ReadFile(filepath.Join(module, "go.mod"))
	require.NoError(t, err)
	require.Regexp(t, `(?m)^\s*(require )?github.com/tryacquire/ratelimit v`, string(mod), "go mod tidy dropped the requirement")

	var log bytes.Buffer
	hello := exec.Command(filepath.Join(module, "hello"))
	hello.Stdout, hello.Stderr = &log, &log
	require.NoError(t, hello.Start())
	t.Cleanup(func() {
		_ = hello.Process.Kill()
		_ = hello.Wait()
		if t.Failed() {
			t.Log(log.String())
		}
	})
	waitFor(t, address)
	for range 5 {
		status, _ := get(t, address)
		require.Equal(t, http.StatusOK, status)
	}
	status, retryAfter := get(t, address)
	require.Equal(t, http.StatusTooManyRequests, status)
	require.Equal(t, "1", retryAfter)

	server.Close()
	status, _ = get(t, address)
	require.Equal(t, http.StatusServiceUnavailable, status)
}

// TestModulesInstallAsPrinted takes the README's steps for the modules beside the root in an empty folder. The package
// internal/testing/release takes the lines for published ones.
func TestModulesInstallAsPrinted(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("left out with -short: it resolves each module")
	}
	readme := strings.Join(pages(t, "README.md")[0].lines, "\n")
	const one = "github.com/tryacquire/ratelimit/grpclimit"
	replace := regexp.MustCompile(`(?m)^go mod edit -replace ` + one + `=\.\./ratelimit/grpclimit$`).FindString(readme)
	require.NotEmpty(t, replace)
	install := regexp.MustCompile("`(go -C \\.\\./ratelimit/cmd/ratelimit install \\.)`").FindStringSubmatch(readme)
	require.NotNil(t, install)
	modules := regexp.MustCompile(`(?m)^go get github\.com/tryacquire/ratelimit/(\S+)$`).FindAllStringSubmatch(readme, -1)
	require.NotEmpty(t, modules)

	folder := t.TempDir()
	require.NoError(t, os.Symlink(root(t), filepath.Join(folder, "ratelimit")))
	for _, m := range modules {
		module := filepath.Join(folder, filepath.Base(m[1]))
		require.NoError(t, os.Mkdir(module, 0o700))
		list := exec.Command("go", "list", "./...")
		list.Dir = filepath.Join(root(t), m[1])
		packages, err := list.Output()
		require.NoError(t, err)
		program := "package main\n\nimport _ \"" + strings.Fields(string(packages))[0] + "\"\n\nfunc main() {}\n"
		require.NoError(t, os.WriteFile(filepath.Join(module, "main.go"), []byte(program), 0o600))
		steps := []string{
			"go mod init example.com/hello", "go mod edit -replace github.com/tryacquire/ratelimit=../ratelimit",
			strings.ReplaceAll(replace, "grpclimit", m[1]),
		}
		if also := regexp.MustCompile("`" + m[1] + "` needs that of `(\\w+)` too").FindStringSubmatch(readme); also != nil {
			steps = append(steps, strings.ReplaceAll(replace, "grpclimit", also[1]))
		}
		for _, step := range append(steps, "go mod tidy", "go list -deps .") { // internal/testing/release compiles them
			goStep(t, module, strings.Fields(step))
		}
	}
	work := filepath.Join(folder, "work")
	require.NoError(t, os.Mkdir(work, 0o700))
	goStep(t, work, append([]string{"env", "GOBIN=" + work}, strings.Fields(install[1])...))
	require.FileExists(t, filepath.Join(work, "ratelimit"))
}

// TestShimsInstallAsPrinted takes the steps of docs/from/README.md for each shim in an empty folder, with the import that
// stands above them.
func TestShimsInstallAsPrinted(t *testing.T) {
	t.Parallel()
	var shown []string
	folder := t.TempDir()
	require.NoError(t, os.Symlink(root(t), filepath.Join(folder, "ratelimit")))
	for _, b := range pages(t, "docs/from/README.md")[0].blocks() {
		steps := strings.Split(strings.TrimSpace(b.text), "\n")
		shim := regexp.MustCompile(`^# import ("\S+/shims/([^/"]+)[^"]*")$`).FindStringSubmatch(steps[0])
		if shim == nil {
			continue
		}
		shown = append(shown, shim[2])
		if testing.Short() {
			continue // it resolves and builds each module
		}
		module := filepath.Join(folder, shim[2])
		require.NoError(t, os.Mkdir(module, 0o700))
		program := "package main\n\nimport _ " + shim[1] + "\n\nfunc main() {}\n"
		require.NoError(t, os.WriteFile(filepath.Join(module, "main.go"), []byte(program), 0o600))
		goStep(t, module, strings.Fields("go mod init example.com/hello"))
		for _, step := range append(steps[1:], "go build -o "+os.DevNull+" .") {
			goStep(t, module, strings.Fields(step))
		}
	}
	shims, err := os.ReadDir(filepath.Join(root(t), "shims"))
	require.NoError(t, err)
	for _, shim := range shims {
		require.Contains(t, shown, shim.Name(), "docs/from/README.md does not say how to get this shim")
	}
}

// unreachable is what go says where the network cannot serve a module.
var unreachable = regexp.MustCompile(`dial tcp|no such host|connection refused|i/o timeout|TLS handshake|proxyconnect|GOPROXY=off`)

// goStep runs a step with what the module cache has, else with the network. The test is skipped
// where neither serves a module. The toolchain is chosen as by default: the newest go-redis asks for
// a later Go than the oldest that this module is tested with.
func goStep(t *testing.T, dir string, step []string) {
	t.Helper()
	run := func(env ...string) (string, error) {
		cmd := exec.Command(step[0], step[1:]...)
		cmd.Dir = dir
		cmd.Env = append(append(os.Environ(), "GOFLAGS="+raceflag.GoFlags(), "GOWORK=off", "GOTOOLCHAIN=auto"), env...)
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	if _, err := run("GOPROXY=off", "GONOSUMDB=*"); err == nil {
		return
	}
	out, err := run()
	if err != nil && unreachable.MatchString(out) {
		t.Skipf("left out: neither the module cache nor the network serves %q:\n%s", strings.Join(step, " "), out)
	}
	require.NoError(t, err, "%s:\n%s", strings.Join(step, " "), out)
}

func replaceOnce(t *testing.T, text, old, new string) string {
	t.Helper()
	require.Equal(t, 1, strings.Count(text, old), old)
	return strings.Replace(text, old, new, 1)
}

func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { _ = l.Close() }()
	return l.Addr().String()
}

func waitFor(t *testing.T, address string) {
	t.Helper()
	require.Eventually(t, func() bool {
		c, err := net.Dial("tcp", address)
		if err != nil {
			return false
		}
		_ = c.Close()
		return true
	}, 10*time.Second, 10*time.Millisecond)
}

func get(t *testing.T, address string) (status int, retryAfter string) {
	t.Helper()
	response, err := http.Get("http://" + address)
	require.NoError(t, err)
	require.NoError(t, response.Body.Close())
	return response.StatusCode, response.Header.Get("Retry-After")
}
