package vectors_test

import (
	"cmp"
	"context"
	"flag"
	"fmt"
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
	"github.com/tryacquire/ratelimit/internal/testing/model"
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
	require.Less(t, len(text), 181_000, "a moderate size")
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
					check(t, s, g, c, about)
					if c.Result == nil || c.ID != "" && c.Beside.Before != nil { // what an id stands for is each library's own
						continue
					}
					vectors.Restore(t, s, g, c)
					got, err := ask(c)
					require.NoError(t, err, about)
					require.Equal(t, c.Result, vectors.ResultOf(got), about)
					if state {
						vectors.Compare(t, s, g, c, about)
					} else if c.ID != "" && got.Allowed {
						require.Equal(t, time.Duration(c.Beside.TTL)*time.Millisecond, s.Admin.PTTL(ctx, g.Beside).Val(), "the id's key has that name")
					}
				}
			}
		})
	}
}

// check compares what the script does in a case.
func check(t *testing.T, s *limitertest.Stage, g vectors.Group, c vectors.Case, about string) {
	vectors.Restore(t, s, g, c)
	reply, err := run(s.Admin, g, c).Result()
	if c.Error != "" {
		require.ErrorContains(t, err, c.Error, about)
	} else {
		require.NoError(t, err, about)
		require.Equal(t, c.Reply, numbers(reply), about)
	}
	vectors.Compare(t, s, g, c, about)
}

// TestScriptsFollowRandomHistories compares every reply, state and TTL where the file has chosen cases only.
func TestScriptsFollowRandomHistories(t *testing.T) {
	s, rng := limitertest.OnMiniredis(t), model.Seeded(limitertest.Seed(t))
	for range limitertest.Rounds(300, 2) {
		for _, g := range vectors.Histories(rng, 40) {
			for i, c := range g.Cases {
				check(t, s, g, c, fmt.Sprintf("%s, case %d: %s of %v, %v at %d", g.Script, i, c.Operation, c.Before, c.Beside, c.Clock))
			}
		}
	}
}

// run is the script of a case's operation.
func run(c redis.UniversalClient, g vectors.Group, of vectors.Case) *redis.Cmd {
	set := setOf(g.Script, of.Spare > 0)
	own := g.Args
	if of.Args != nil {
		own = of.Args
	}
	script, args, keys := set.Alone, append([]string{"1"}, own...), []string{cmp.Or(of.Key, g.Key)}
	if g.Beside != "" {
		keys = append(keys, g.Beside)
	}
	switch n, id, extends := strings.Cut(of.Operation, "k"); {
	case of.ID != "":
		script, args = set.One, append(own[:len(own):len(own)], of.Operation, of.ID)
	case of.Operation == "look":
		script = set.Peek
	case g.Algorithm != "inflight":
		args = append(args, of.Operation)
	case extends:
		script, args = set.Extend, append(append([]string{n}, own...), id)
	default:
		script, args = set.Operations, append(args, of.Operation)
	}
	if of.Spare > 0 {
		args = append(args, strconv.FormatInt(of.Spare, 10), strconv.FormatInt(of.Clock, 10))
	}
	return c.Eval(ctx, script.Source(), keys, args)
}

// setOf are the scripts of a name, as ratelimit scripts says it.
func setOf(name string, byCaller bool) scripts.Set {
	if limiter, underID := strings.CutPrefix(name, "NewAll of "); underID {
		limiter, of, _ := strings.Cut(limiter, ", ")
		all, err := scripts.Group([]string{limiter})
		if err == nil {
			for _, s := range all {
				if s.Name == limiter+", "+of {
					return scripts.Set{One: s.Script}
				}
			}
		}
	}
	if limiter, leased := strings.CutSuffix(name, ",tickets"); leased {
		return scripts.WithTickets(limiter).Get(false)
	}
	return scripts.Of(name).Get(byCaller)
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
		if g.Cases[0].ID != "" {
			return func(c vectors.Case) (ratelimit.Result, error) {
				n, err := strconv.Atoi(c.Operation)
				require.NoError(t, err)
				r, err := ratelimit.TryAcquireOnce(ctx, "job 7", 2*time.Second, ratelimit.ClaimOf(l, "k", n))
				return r.Result, err
			}, false
		}
		var clock time.Time
		if g.ByClock == nil {
			return func(c vectors.Case) (ratelimit.Result, error) { return operate(l, c.Operation) }, g.Beside == "" // names of tickets are random
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
	at := strings.IndexAny(operation, "xecpa")
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
	case 'e', 'a':
		_, r, err := l.(ratelimit.Settler).Estimate(ctx, "k", n)
		return r, err
	}
	return l.TryAcquireN(ctx, "k", n)
}
