package ratelimit_test

import (
	"context"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
)

// unmade are the zero values of the exported types that have methods. A nil pointer to one may panic, as in the
// standard library, but those that a call returns with a denial or an error answer too.
var unmade = []any{
	new(ratelimit.FixedWindow),
	new(ratelimit.CalendarWindow),
	new(ratelimit.SlidingWindow),
	new(ratelimit.SlidingLog),
	new(ratelimit.TokenBucket),
	new(ratelimit.LeakyBucket),
	new(ratelimit.Pause),
	new(ratelimit.FairTokenBucket),
	new(ratelimit.LocalTokenBucket),
	ratelimit.Rate{},
	new(ratelimit.All),
	new(ratelimit.Choice),
	new(ratelimit.DenyCache),
	new(ratelimit.Fallback),
	new(ratelimit.Leased),
	new(ratelimit.Shadow),
	new(ratelimit.Bans),
	new(ratelimit.InFlight),
	new(ratelimit.LocalInFlight),
	(*ratelimit.Hold)(nil), new(ratelimit.Hold),
	(*ratelimit.Ticket)(nil), new(ratelimit.Ticket),
	(*ratelimit.Reservation)(nil), new(ratelimit.Reservation),
	new(ratelimit.Breaker),
	(*ratelimit.DeniedError)(nil), new(ratelimit.DeniedError),
	(*ratelimit.WaitError)(nil), new(ratelimit.WaitError),
	ratelimit.AllResult{}, ratelimit.Claim{}, ratelimit.Calendar{}, ratelimit.Result{}, ratelimit.Storage(0),
	ratelimit.BreakerState(0), ratelimit.Outcome(0), ratelimit.Source(0),
}

// answerless are methods that answer otherwise than by errUnmade or zero values, and why.
var answerless = map[string]string{
	"Hold.Extend":         "a hold without a lease has lost it",
	"Hold.Do":             "the same",
	"Hold.HandOver":       "the same",
	"DeniedError.Error":   "an error always has a text",
	"WaitError.Error":     "the same",
	"DeniedError.Is":      "the type says what it is",
	"WaitError.Is":        "the same",
	"Result.Err":          "the zero Result is a denial",
	"AllResult.Err":       "the same",
	"AllResult.Do":        "the same",
	"Calendar.String":     "it says that it is none",
	"Rate.String":         "the same",
	"Storage.String":      "a name",
	"BreakerState.String": "the same",
	"Outcome.String":      "the same",
	"Source.String":       "the same",
}

// TestZeroValuesAnswer calls every exported method of every exported type on what unmade lists: the answer is
// errUnmade or a zero one, and nothing panics.
func TestZeroValuesAnswer(t *testing.T) {
	types, ofTests := exportedMethods(t)
	var covered []string
	for _, v := range unmade {
		of := reflect.TypeOf(v)
		name := strings.TrimPrefix(strings.TrimPrefix(of.String(), "*"), "ratelimit.")
		if !slices.Contains(covered, name) {
			covered = append(covered, name)
		}
		for i := range of.NumMethod() {
			method := of.Method(i)
			about := fmt.Sprintf("%s.%s", name, method.Name)
			if ofTests[about] {
				continue
			}
			t.Run(fmt.Sprintf("%s of nil: %t", about, reflect.ValueOf(v).IsZero()), func(t *testing.T) {
				var got []reflect.Value
				require.NotPanics(t, func() { got = reflect.ValueOf(v).Method(i).Call(argumentsOf(method.Type)) })
				if _, ok := answerless[about]; ok {
					return
				}
				for _, g := range got {
					checkUnmade(t, g.Interface())
				}
			})
		}
	}
	slices.Sort(covered)
	require.Equal(t, types, covered, "every type is tried")
}

// checkUnmade checks one of the values that a method returned.
func checkUnmade(t *testing.T, got any) {
	switch got := got.(type) {
	case nil:
	case error:
		require.ErrorIs(t, got, ratelimit.ErrInvalidConfig)
	case []ratelimit.Claim:
		_, err := ratelimit.TryAcquireAll(ctx, got...)
		require.ErrorIs(t, err, ratelimit.ErrInvalidConfig)
	case ratelimit.Claim:
		_, err := ratelimit.TryAcquireAll(ctx, got)
		require.ErrorIs(t, err, ratelimit.ErrInvalidConfig)
	default:
		require.Zero(t, got)
	}
}

// argumentsOf are arguments that a limiter would take.
func argumentsOf(method reflect.Type) []reflect.Value {
	var args []reflect.Value
	for i := 1; i < method.NumIn(); i++ {
		switch in := method.In(i); in {
		case reflect.TypeFor[context.Context]():
			args = append(args, reflect.ValueOf(ctx))
		case reflect.TypeFor[string]():
			args = append(args, reflect.ValueOf("k"))
		case reflect.TypeFor[int]():
			args = append(args, reflect.ValueOf(1))
		case reflect.TypeFor[time.Duration]():
			args = append(args, reflect.ValueOf(time.Second))
		case reflect.TypeFor[error]():
			args = append(args, reflect.ValueOf(errors.New("x")))
		case reflect.TypeFor[func(context.Context) error]():
			args = append(args, reflect.ValueOf(func(context.Context) error { return nil }))
		default:
			args = append(args, reflect.Zero(in))
		}
	}
	return args
}

// exportedMethods returns the names of the package's exported types that have exported methods, of
// their own or embedded, and the methods that only tests have.
func exportedMethods(t *testing.T) (types []string, ofTests map[string]bool) {
	files, err := filepath.Glob("*.go")
	require.NoError(t, err)
	ofTests = map[string]bool{}
	for _, name := range files {
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		require.NoError(t, err)
		for _, d := range f.Decls {
			types = append(types, embedding(d)...)
			fn, ok := d.(*ast.FuncDecl)
			if !ok || fn.Recv == nil || !fn.Name.IsExported() {
				continue
			}
			on := fn.Recv.List[0].Type
			if star, ok := on.(*ast.StarExpr); ok {
				on = star.X
			}
			id, ok := on.(*ast.Ident)
			switch {
			case !ok || !id.IsExported():
			case strings.HasSuffix(name, "_test.go"):
				ofTests[id.Name+"."+fn.Name.Name] = true
			case !slices.Contains(types, id.Name):
				types = append(types, id.Name)
			}
		}
	}
	slices.Sort(types)
	return slices.Compact(types), ofTests
}

// embedding returns the exported structs of a declaration that embed something unexported.
func embedding(d ast.Decl) (names []string) {
	g, ok := d.(*ast.GenDecl)
	if !ok {
		return nil
	}
	for _, spec := range g.Specs {
		t, ok := spec.(*ast.TypeSpec)
		if !ok || !t.Name.IsExported() {
			continue
		}
		if s, ok := t.Type.(*ast.StructType); ok {
			for _, field := range s.Fields.List {
				if id, ok := field.Type.(*ast.Ident); ok && field.Names == nil && !id.IsExported() {
					names = append(names, t.Name.Name)
				}
			}
		}
	}
	return names
}
