package vectors_test

import (
	"context"
	"flag"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

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
				ask, state := askerOf(t, s.Client, g)
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
					got, err := ask(c)
					require.NoError(t, err, about)
					require.Equal(t, c.Result, vectors.ResultOf(got), about)
					if state {
						vectors.Compare(t, s, g, c, about)
					}
				}
			}
		})
	}
}

// run is the script of a case's operation.
func run(c redis.UniversalClient, g vectors.Group, of vectors.Case) *redis.Cmd {
	set := scripts.Of(g.Script).Get(of.Spare > 0)
	own := g.Args
	if of.Args != nil {
		own = of.Args
	}
	script, args := set.Alone, append([]string{"1"}, own...)
	switch n, id, extends := strings.Cut(of.Operation, "k"); {
	case of.Operation == "look":
		script = set.Peek
	case g.Build != nil:
		args = append(args, of.Operation)
	case extends:
		script, args = set.Extend, append(append([]string{n}, own...), id)
	default:
		script, args = set.Operations, append(args, of.Operation)
	}
	if of.Spare > 0 {
		args = append(args, strconv.FormatInt(of.Spare, 10), strconv.FormatInt(of.Clock, 10))
	}
	return c.Eval(ctx, script.Source(), []string{g.Key}, args)
}

func numbers(reply any) (all []int64) {
	for _, n := range reply.([]any) {
		all = append(all, n.(int64))
	}
	return all
}

// askerOf returns what does a case by a limiter. state says that the key then holds what the case says.
func askerOf(t *testing.T, client ratelimit.Client, g vectors.Group) (ask func(vectors.Case) (ratelimit.Result, error), state bool) {
	if g.Build != nil {
		l, err := g.Build(client)
		require.NoError(t, err)
		var clock time.Time
		if g.ByClock == nil {
			return func(c vectors.Case) (ratelimit.Result, error) { return operate(l, c.Operation) }, true
		}
		callers, err := g.ByClock(client, func() time.Time { return clock })
		require.NoError(t, err)
		return func(c vectors.Case) (ratelimit.Result, error) {
			if c.Spare == 0 {
				return operate(l, c.Operation)
			}
			clock = time.UnixMicro(c.Clock)
			return operate(callers, c.Operation)
		}, true
	}
	return func(c vectors.Case) (ratelimit.Result, error) { // whose id is another one
		lease := time.Duration(c.Result.Window) * time.Microsecond
		f := ratelimit.Must(ratelimit.NewInFlight(client, int(g.Rule["limit"]), lease))
		if c.Operation == "look" {
			return f.Peek(ctx, "k")
		}
		n, err := strconv.Atoi(c.Operation[:strings.IndexByte(c.Operation, 'h')])
		require.NoError(t, err)
		_, r, err := f.TryAcquireN(ctx, "k", n)
		return r, err
	}, false
}

// operate is the operation by the limiter.
func operate(l ratelimit.Limiter, operation string) (ratelimit.Result, error) {
	if operation == "look" {
		return l.Peek(ctx, "k")
	}
	at := strings.IndexAny(operation, "xecp")
	n, err := strconv.Atoi(operation[:at])
	if err != nil {
		return ratelimit.Result{}, err
	}
	switch operation[at] {
	case 'p':
		us, err := strconv.Atoi(operation[at+1:])
		if err != nil {
			return ratelimit.Result{}, err
		}
		return l.(*ratelimit.Pause).Pause(ctx, "k", time.Duration(us)*time.Microsecond)
	case 'c':
		return l.(ratelimit.Settler).Charge(ctx, "k", n)
	case 'e':
		_, r, err := l.(ratelimit.Settler).Estimate(ctx, "k", n)
		return r, err
	}
	return l.TryAcquireN(ctx, "k", n)
}
