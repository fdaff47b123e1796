package ratelimit_test

import (
	"context"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/testing/limitertest"
)

// optionTable says which constructor has which option (x).
const optionTable = `
                  FixedWindow CalendarWindow SlidingWindow SlidingLog TokenBucket LeakyBucket FairTokenBucket InFlight Pause LocalTokenBucket LocalInFlight Fallback HoldFallback DenyCache Leased
WithName          x           x              x             x          x           x           x               x        x     x                x             x        x            x         x
WithObserver      x           x              x             x          x           x           x               x        x     x                x             x        x            x         x
WithPrefix        x           x              x             x          x           x           x               x        x     .                .             .        .            .         .
WithClock         x           x              x             x          x           x           x               x        x     x                .             .        .            .         .
WithMaxSkew       x           x              x             x          x           x           x               x        x     .                .             .        .            .         .
WithoutMerging    x           x              x             x          x           x           x               x        x     .                .             .        .            .         .
WithHeadroom      x           x              x             x          x           x           .               .        .     .                .             .        .            .         .
WithAlignment     x           .              .             .          x           .           .               .        .     .                .             .        .            .         .
WithStorage       .           .              x             .          .           .           .               .        .     .                .             .        .            .         .
WithSubWindows    .           .              x             .          .           .           .               .        .     .                .             .        .            .         .
WithResolution    .           .              .             x          .           .           .               .        .     .                .             .        .            .         .
WithRefillEvery   .           .              .             .          x           .           .               .        .     .                .             .        .            .         .
WithExactReturns  .           .              .             .          x           x           .               .        .     .                .             .        .            .         .
WithTicketLease   x           x              x             x          x           x           .               .        .     .                .             .        .            .         .
WithEmptyStart    .           .              .             .          .           .           .               .        .     x                .             .        .            .         .
WithLastAnswers   .           .              .             .          .           .           .               .        .     x                .             .        .            .         .
WithMaxKeys       .           .              .             .          .           .           .               .        .     x                .             .        .            x         x
WithMaxDenial     .           .              .             .          .           .           .               .        .     .                .             .        .            x         .
WithMaxSlice      .           .              .             .          .           .           .               .        .     .                .             .        .            .         x
WithBudget        .           .              .             .          .           .           .               .        .     .                .             x        x            .         .
WithBreaker       .           .              .             .          .           .           .               .        .     .                .             x        x            .         .
WithProbe         .           .              .             .          .           .           .               .        x     .                .             .        .            .         .
`

// eachOption is a value of each.
var eachOption = map[string]ratelimit.PolicyOption{
	"WithName":         ratelimit.WithName("n"),
	"WithObserver":     ratelimit.WithObserver(func(context.Context, ratelimit.Observation) {}),
	"WithPrefix":       ratelimit.WithPrefix("p"),
	"WithClock":        ratelimit.WithClock(time.Now),
	"WithMaxSkew":      ratelimit.WithMaxSkew(time.Second),
	"WithoutMerging":   ratelimit.WithoutMerging(),
	"WithHeadroom":     ratelimit.WithHeadroom(1),
	"WithAlignment":    ratelimit.WithAlignment(0),
	"WithStorage":      ratelimit.WithStorage(ratelimit.StorageList),
	"WithSubWindows":   ratelimit.WithSubWindows(10),
	"WithResolution":   ratelimit.WithResolution(time.Millisecond),
	"WithRefillEvery":  ratelimit.WithRefillEvery(time.Second),
	"WithExactReturns": ratelimit.WithExactReturns(),
	"WithTicketLease":  ratelimit.WithTicketLease(time.Second),
	"WithEmptyStart":   ratelimit.WithEmptyStart(),
	"WithLastAnswers":  ratelimit.WithLastAnswers(),
	"WithMaxKeys":      ratelimit.WithMaxKeys(10),
	"WithMaxDenial":    ratelimit.WithMaxDenial(time.Second),
	"WithMaxSlice":     ratelimit.WithMaxSlice(10),
	"WithBudget":       ratelimit.WithBudget(time.Second),
	"WithBreaker":      ratelimit.WithBreaker(&ratelimit.Breaker{}),
	"WithProbe":        ratelimit.WithProbe(time.Second),
}

// limiterWith and policyWith call each constructor.
func limiterWith(c ratelimit.Client) map[string]func(o ...ratelimit.Option) (any, error) {
	return map[string]func(o ...ratelimit.Option) (any, error){
		"FixedWindow": func(o ...ratelimit.Option) (any, error) { return ratelimit.NewFixedWindow(c, 2, time.Second, o...) },
		"CalendarWindow": func(o ...ratelimit.Option) (any, error) {
			return ratelimit.NewCalendarWindow(c, 2, ratelimit.Daily(time.UTC), o...)
		},
		"SlidingWindow": func(o ...ratelimit.Option) (any, error) { return ratelimit.NewSlidingWindow(c, 2, time.Second, o...) },
		"SlidingLog": func(o ...ratelimit.Option) (any, error) {
			return ratelimit.NewSlidingLog(c, []ratelimit.Rule{{Limit: 2, Window: time.Second}}, o...)
		},
		"TokenBucket": func(o ...ratelimit.Option) (any, error) {
			return ratelimit.NewTokenBucket(c, ratelimit.PerSecond(1), 2, o...)
		},
		"FairTokenBucket": func(o ...ratelimit.Option) (any, error) {
			return ratelimit.NewFairTokenBucket(c, ratelimit.PerSecond(1), 2, o...)
		},
		"LeakyBucket": func(o ...ratelimit.Option) (any, error) {
			return ratelimit.NewLeakyBucket(c, ratelimit.PerSecond(1), 2, o...)
		},
		"InFlight": func(o ...ratelimit.Option) (any, error) { return ratelimit.NewInFlight(c, 2, time.Minute, o...) },
		"Pause":    func(o ...ratelimit.Option) (any, error) { return ratelimit.NewPause(c, o...) },
		"LocalTokenBucket": func(o ...ratelimit.Option) (any, error) {
			return ratelimit.NewLocalTokenBucket(ratelimit.PerSecond(1), 2, o...)
		},
		"LocalInFlight": func(o ...ratelimit.Option) (any, error) { return ratelimit.NewLocalInFlight(2, o...) },
	}
}

var policyWith = map[string]func(o ...ratelimit.PolicyOption) (any, error){
	"Fallback": func(o ...ratelimit.PolicyOption) (any, error) {
		return ratelimit.NewFallback(ratelimit.AllowAll(), ratelimit.DenyAll(), o...)
	},
	"HoldFallback": func(o ...ratelimit.PolicyOption) (any, error) {
		return ratelimit.NewHoldFallback(ratelimit.AllowHolds(), ratelimit.DenyHolds(), o...)
	},
	"DenyCache": func(o ...ratelimit.PolicyOption) (any, error) {
		return ratelimit.NewDenyCache(ratelimit.AllowAll(), o...)
	},
	"Leased": func(o ...ratelimit.PolicyOption) (any, error) {
		client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
		return ratelimit.NewLeased(ratelimit.Must(ratelimit.NewTokenBucket(client, ratelimit.PerSecond(1), 2)), o...)
	},
}

// TestEachOptionAtEachConstructor: it applies, or the error names it, the constructor and those that have it. A
// PolicyOption that is no Option does not compile with a limiter.
func TestEachOptionAtEachConstructor(t *testing.T) {
	rows := strings.Split(strings.Trim(optionTable, "\n"), "\n")
	constructors := strings.Fields(rows[0])
	limiters := limiterWith(limitertest.Offline(t))
	require.ElementsMatch(t, constructors, append(slices.Collect(maps.Keys(limiters)), slices.Collect(maps.Keys(policyWith))...))
	var options []string
	for _, row := range rows[1:] {
		cells := strings.Fields(row)
		option := cells[0]
		options = append(options, option)
		value := eachOption[option]
		_, ofLimiters := value.(ratelimit.Option)
		var has []string
		for i, cell := range cells[1:] {
			if cell == "x" {
				has = append(has, "New"+constructors[i])
			}
		}
		for i, cell := range cells[1:] {
			var build func(given ...ratelimit.PolicyOption) (any, error)
			if of := limiters[constructors[i]]; of == nil {
				build = policyWith[constructors[i]]
			} else if ofLimiters {
				build = func(given ...ratelimit.PolicyOption) (any, error) {
					var opts []ratelimit.Option
					for _, o := range given {
						opts = append(opts, o.(ratelimit.Option))
					}
					return of(opts...)
				}
			} else {
				require.Equal(t, ".", cell, "%s does not compile with New%s", option, constructors[i])
				continue
			}
			given := []ratelimit.PolicyOption{value}
			if option == "WithMaxSkew" && cell == "x" {
				given = append(given, ratelimit.WithClock(time.Now)) // which it needs
			}
			if option == "WithAlignment" && constructors[i] == "TokenBucket" {
				given = append(given, ratelimit.WithRefillEvery(time.Second)) // which it needs
			}
			_, err := build(given...)
			if cell == "x" {
				require.NoError(t, err, "%s, New%s", option, constructors[i])
				_, err = build(append(given, value)...)
				require.ErrorIs(t, err, ratelimit.ErrInvalidConfig)
				require.ErrorContains(t, err, option+" is given twice")
				continue
			}
			require.ErrorIs(t, err, ratelimit.ErrInvalidConfig, "%s, New%s", option, constructors[i])
			require.EqualError(t, err, "ratelimit: invalid configuration: New"+constructors[i]+": "+option+
				" is not one of its options; leave it out, or give it to "+either(has))
		}
	}
	require.ElementsMatch(t, options, slices.Collect(maps.Keys(eachOption)))
	found, takers := declaredOptions(t)
	require.ElementsMatch(t, options, found, "the options of this package")
	require.ElementsMatch(t, constructors, takers, "the constructors with options")
}

// either is names as a sentence has them.
func either(names []string) string {
	if len(names) == 1 {
		return names[0]
	}
	return strings.Join(names[:len(names)-1], ", ") + " or " + names[len(names)-1]
}

// declaredOptions are the functions of this package that return an option, and the constructors that take options.
func declaredOptions(t *testing.T) (options, constructors []string) {
	names, err := filepath.Glob("*.go")
	require.NoError(t, err)
	isOption := func(e ast.Expr) bool {
		i, ok := e.(*ast.Ident)
		return ok && (i.Name == "Option" || i.Name == "PolicyOption")
	}
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		require.NoError(t, err)
		for _, d := range file.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok || !f.Name.IsExported() || f.Recv != nil {
				continue
			}
			if r := f.Type.Results; r != nil && len(r.List) == 1 && isOption(r.List[0].Type) {
				options = append(options, f.Name.Name)
			}
			if p := f.Type.Params.List; len(p) > 0 {
				if more, ok := p[len(p)-1].Type.(*ast.Ellipsis); ok && isOption(more.Elt) {
					constructors = append(constructors, strings.TrimPrefix(f.Name.Name, "New"))
				}
			}
		}
	}
	return options, constructors
}
