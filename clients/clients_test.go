// Package clients has clients of the scripts in other languages, and tests them.
package clients_test

import (
	"bufio"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/scripts"
	"github.com/tryacquire/ratelimit/internal/testing/limitertest"
	"github.com/tryacquire/ratelimit/internal/testing/redistest"
	"github.com/tryacquire/ratelimit/internal/testing/vectors"
)

var (
	update = flag.Bool("update", false, "write the scripts")
	ctx    = context.Background()
)

// TestScriptsAreThoseOfThisVersion: go test ./clients -run ThisVersion -update writes them again.
func TestScriptsAreThoseOfThisVersion(t *testing.T) {
	for name, source := range map[string]string{
		"bucket_take":             scripts.BucketInWords().Source(),
		"bucket_look":             scripts.Of("bucket").Get(false).Peek.Source(),
		"steppedbucket_take":      scripts.Of("steppedbucket").Get(false).One.Source(),
		"steppedbucket_look":      scripts.Of("steppedbucket").Get(false).Peek.Source(),
		"slidingwindow_list_take": scripts.Of("slidingwindow_list").Get(false).One.Source(),
		"slidingwindow_list_look": scripts.Of("slidingwindow_list").Get(false).Peek.Source(),
	} {
		file := filepath.Join("scripts", name+".lua")
		if *update {
			require.NoError(t, os.WriteFile(file, []byte(source), 0o644))
		}
		committed, err := os.ReadFile(file)
		require.NoError(t, err)
		require.Equal(t, source, string(committed), name)
	}
}

// An other is a client in another language: a process that answers calls.
type other struct {
	t    *testing.T
	name string
	in   *json.Encoder
	out  *bufio.Scanner
	kill func() error
}

type call struct {
	Algorithm string           `json:"algorithm"`
	Rule      map[string]int64 `json:"rule"`
	Key       string           `json:"key"`
	N         int              `json:"n"` // 0 looks
}

// start starts a client of the server of a stage. The test is skipped if a program is missing.
func start(t *testing.T, language string, s *limitertest.Stage) *other {
	return startAt(t, language, s.Admin.(*redis.Client).Options().Addr, patience)
}

// patience is how long a client waits for a reply that comes, also on a busy machine.
const patience = 20 * time.Second

// startAt starts a client of the server at an address, that waits so long for a reply.
func startAt(t *testing.T, language, addr string, timeout time.Duration) *other {
	files, err := filepath.Glob(filepath.Join(language, "*"))
	require.NoError(t, err)
	for _, file := range files { // the go command runs a test again when a file has changed that the test itself has read
		_, err := os.ReadFile(file)
		require.NoError(t, err)
	}
	var cmd *exec.Cmd
	host, port, err := net.SplitHostPort(addr)
	require.NoError(t, err)
	ms := strconv.FormatInt(timeout.Milliseconds(), 10)
	switch language {
	case "python":
		redistest.Require(t, "python3")
		cmd = exec.Command("python3", "-B", filepath.Join("python", "drive.py"), host, port, ms)
	case "typescript":
		redistest.Require(t, "node", "tsc")
		built := compiled(t)
		cmd = exec.Command("node", filepath.Join(built, "drive.js"), host, port, ms)
		folder, err := filepath.Abs("scripts")
		require.NoError(t, err)
		cmd.Env = append(os.Environ(), "RATELIMIT_SCRIPTS="+folder)
	}
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = in.Close()
		require.NoError(t, cmd.Wait())
	})
	return &other{t, language, json.NewEncoder(in), bufio.NewScanner(out), cmd.Process.Kill}
}

// compiled is the folder with the JavaScript of the client in TypeScript, which the compiler has checked.
func compiled(t *testing.T) string {
	folder, err := compile()
	require.NoError(t, err)
	return folder
}

var compile = sync.OnceValues(func() (string, error) {
	folder, err := os.MkdirTemp("", "ratelimit-typescript-")
	if err != nil {
		return "", err
	}
	text, err := exec.Command("tsc", "--strict", "--noEmitOnError", "--skipDefaultLibCheck", "--target", "es2020", "--lib", "es2020", "--module", "commonjs",
		"--typeRoots", folder, "--outDir", folder, filepath.Join("typescript", "node.d.ts"), filepath.Join("typescript", "drive.ts")).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%w: %s", err, text)
	}
	typescript = folder
	return folder, nil
})

var typescript string // the folder of compile

func TestMain(m *testing.M) {
	code := m.Run()
	_ = os.RemoveAll(typescript)
	os.Exit(code)
}

func (o *other) ask(c call) vectors.Result {
	r, failed := o.try(c)
	require.Empty(o.t, failed, o.name)
	return r
}

// try returns what the client raises, if the call fails, which is a call or what JSON makes one of.
func (o *other) try(c any) (vectors.Result, string) {
	var r struct {
		vectors.Result
		Error string `json:"error"`
	}
	require.NoError(o.t, o.in.Encode(c))
	hangs := time.AfterFunc(30*time.Second, func() { _ = o.kill() })
	defer hangs.Stop()
	require.True(o.t, o.out.Scan(), "%s answers", o.name)
	require.NoError(o.t, json.Unmarshal(o.out.Bytes(), &r))
	return r.Result, r.Error
}

var languages = []string{"python", "typescript"}

// TestClientsPassTheVectors: takes and looks of token buckets and sliding windows.
func TestClientsPassTheVectors(t *testing.T) {
	for _, language := range languages {
		t.Run(language, func(t *testing.T) {
			s := limitertest.OnHeldRedis(t)
			o := start(t, language, s)
			passed := map[string]int{}
			for _, g := range vectors.All() {
				if g.Beside != "" || g.Algorithm != "tokenbucket" && g.Algorithm != "slidingwindow-list" {
					continue
				}
				for i, c := range g.Cases {
					n := 0
					if c.Args != nil { // by a caller's clock, or another rule than the group's
						continue
					}
					if c.Operation != "look" {
						if _, err := fmt.Sscanf(c.Operation, "%dx1", &n); err != nil || c.Result == nil {
							continue
						}
					}
					about := fmt.Sprintf("%s: %s, case %d: %s", language, g.Algorithm, i, c.Operation)
					vectors.Restore(t, s, g, c)
					require.Equal(t, *c.Result, o.ask(call{g.Algorithm, g.Rule, "k", n}), about)
					vectors.Compare(t, s, g, c, about)
					passed[g.Algorithm]++
				}
			}
			require.Greater(t, passed["tokenbucket"], 20)
			require.Greater(t, passed["slidingwindow-list"], 20)
		})
	}
}

// TestClientsShareKeysWithGo: Go and a client take permits of one key by turns. Together they get exactly the limit.
func TestClientsShareKeysWithGo(t *testing.T) {
	s := limitertest.OnHeldRedis(t)
	var others []*other
	for _, language := range languages {
		t.Run(language, func(t *testing.T) { // a missing language leaves out only itself
			redistest.Require(t, map[string][]string{"python": {"python3"}, "typescript": {"node", "tsc"}}[language]...)
		})
	}
	for _, language := range languages {
		if _, err := exec.LookPath(map[string]string{"python": "python3", "typescript": "tsc"}[language]); err == nil {
			others = append(others, start(t, language, s))
		}
	}
	for _, key := range []string{"user:42", "{user:42}:x", "}x", "a{}b", "ключ"} {
		bucket := ratelimit.Must(ratelimit.NewTokenBucket(s.Client, ratelimit.PerMinute(7), 10))
		window := ratelimit.Must(ratelimit.NewSlidingWindow(s.Client, 10, time.Minute))
		for _, of := range []struct {
			limiter ratelimit.Limiter
			call    call
		}{
			{bucket, call{"tokenbucket", map[string]int64{"count": 7, "period": 60_000_000, "burst": 10}, key, 1}},
			{window, call{"slidingwindow-list", map[string]int64{"limit": 10, "window": 60_000_000}, key, 1}},
		} {
			allowed := 0
			for i := range 20 {
				at, what := i%(len(others)+1), of.call
				var got vectors.Result
				if at == len(others) {
					r, err := of.limiter.TryAcquire(ctx, key)
					require.NoError(t, err)
					got = *vectors.ResultOf(r)
				} else {
					got = others[at].ask(what)
				}
				require.Equal(t, i < 10, got.Allowed, "%s %q, call %d", what.Algorithm, key, i)
				require.Equal(t, max(9-i, 0), got.Remaining)
				if got.Allowed {
					allowed++
				}
				look, err := of.limiter.Peek(ctx, key)
				require.NoError(t, err)
				for _, o := range others {
					seen := what
					seen.N = 0
					require.Equal(t, *vectors.ResultOf(look), o.ask(seen), o.name)
				}
			}
			require.Equal(t, 10, allowed)
		}
	}
}
