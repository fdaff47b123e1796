package vectors_test

import (
	"context"
	"flag"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/scripts"
	"github.com/tryacquire/ratelimit/internal/testing/limitertest"
	"github.com/tryacquire/ratelimit/internal/testing/vectors"
)

const file = "../../../clients/vectors.json"

var (
	update = flag.Bool("update", false, "write clients/vectors.json")
	ctx    = context.Background()
)

// TestVectorsAreThoseOfTheModels: go test ./internal/testing/vectors -run TheModels -update writes them again.
func TestVectorsAreThoseOfTheModels(t *testing.T) {
	text, err := vectors.JSON(vectors.All())
	require.NoError(t, err)
	if *update {
		require.NoError(t, os.WriteFile(file, text, 0o644))
	}
	committed, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, string(committed), string(text))
	require.Less(t, len(text), 150_000, "a moderate size")
}

// TestScriptsDoWhatTheVectorsSay: the scripts reply and write, and limiters answer, what the models say.
func TestScriptsDoWhatTheVectorsSay(t *testing.T) {
	for name, stage := range map[string]func(testing.TB) *limitertest.Stage{"miniredis": limitertest.OnMiniredis, "Redis": limitertest.OnHeldRedis} {
		t.Run(name, func(t *testing.T) {
			s := stage(t)
			for _, g := range vectors.All() {
				l, err := g.Build(s.Client)
				require.NoError(t, err)
				for i, c := range g.Cases {
					about := g.Algorithm + ", case " + strconv.Itoa(i) + ": " + c.Operation
					vectors.Restore(t, s, g, c)
					reply, err := run(s.Admin, g, c).Result()
					require.NoError(t, err, about)
					require.Equal(t, c.Reply, numbers(reply), about)
					vectors.Compare(t, s, g, c, about)
					if c.Result == nil {
						continue
					}
					vectors.Restore(t, s, g, c)
					got, err := ask(l, c.Operation)
					require.NoError(t, err, about)
					require.Equal(t, c.Result, vectors.ResultOf(got), about)
					vectors.Compare(t, s, g, c, about)
				}
			}
		})
	}
}

// run is the script of a case's operation.
func run(c redis.UniversalClient, g vectors.Group, of vectors.Case) *redis.Cmd {
	set := scripts.Of(g.Script).Get(false)
	own := g.Args
	if of.Args != nil {
		own = of.Args
	}
	script, args := set.Alone, append([]string{"1"}, own...)
	if of.Operation == "look" {
		script = set.Peek
	} else {
		args = append(args, of.Operation)
	}
	return c.Eval(ctx, script.Source(), []string{g.Key}, args)
}

func numbers(reply any) (all []int64) {
	for _, n := range reply.([]any) {
		all = append(all, n.(int64))
	}
	return all
}

// ask is the operation by the limiter.
func ask(l ratelimit.Limiter, operation string) (ratelimit.Result, error) {
	if operation == "look" {
		return l.Peek(ctx, "k")
	}
	at := strings.IndexAny(operation, "xec")
	n, err := strconv.Atoi(operation[:at])
	if err != nil {
		return ratelimit.Result{}, err
	}
	switch operation[at] {
	case 'c':
		return l.(ratelimit.Settler).Charge(ctx, "k", n)
	case 'e':
		_, r, err := l.(ratelimit.Settler).Estimate(ctx, "k", n)
		return r, err
	}
	return l.TryAcquireN(ctx, "k", n)
}
