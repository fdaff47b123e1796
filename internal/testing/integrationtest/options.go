package integrationtest

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/testing/limitertest"
)

// Options are the constructors and the options of grpclimit or connectlimit. O is its Option, K its
// KeyFunc.
type Options[O, K any] struct {
	Constructors map[string]Constructor[O, K] // by name: NewServer, NewClient and, of grpclimit, NewTap
	Key          K

	WithPolicy             func(name string) O
	WithMaxWait            func(time.Duration) O
	WithReceived, WithSent func(ratelimit.Limiter, time.Duration) O
	WithInFlight           func(ratelimit.Holder) O
	WithRetryAfter         func(time.Duration) O
	WithMaxPushback        func(time.Duration) O
	WithRetrySpread        func(time.Duration) O
	WithOutageRetryAfter   func(time.Duration) O

	NoCost, NoSkip, NoDenialHandler, NoErrorHandler O // WithCost(nil), and so on
}

// A Constructor makes a limit of calls.
type Constructor[O, K any] func(ratelimit.Limiter, K, ...O) (any, error)

// Construct makes a Constructor of one that returns an L.
func Construct[O, K, L any](construct func(ratelimit.Limiter, K, ...O) (L, error)) Constructor[O, K] {
	return func(limiter ratelimit.Limiter, key K, opts ...O) (any, error) {
		return construct(limiter, key, opts...)
	}
}

// Test tests which options each constructor takes, and with which values.
func (o Options[O, K]) Test(t *testing.T) {
	for name := range o.Constructors {
		t.Run(name, func(t *testing.T) {
			o.testValues(t, name)
			o.testLimiterAndKey(t, name)
		})
	}
}

func (o Options[O, K]) testValues(t *testing.T, name string) {
	const (
		every   = "NewServer NewClient NewTap"
		streams = "NewServer NewClient"
		server  = "NewServer"
		client  = "NewClient"
		tap     = "NewTap"
	)
	limiter := limitertest.Allowing()
	inFlight := ratelimit.Must(ratelimit.NewInFlight(limitertest.Offline(t), 1, 10*time.Second))
	var empty O
	for _, c := range []struct {
		opts    []O
		mention string // in the error; none: it works
		where   string
	}{
		{[]O{empty}, "option 1 is empty", every},
		{[]O{o.WithPolicy("a"), o.WithPolicy("b")}, "WithPolicy is given twice", every},
		{[]O{o.WithPolicy("")}, "WithPolicy", every},
		{[]O{o.WithPolicy(strings.Repeat("a", 129))}, "129", every},
		{[]O{o.WithPolicy(strings.Repeat("a", 128))}, "", every},
		{[]O{o.WithPolicy("ä")}, "ASCII", every},
		{[]O{o.NoCost}, "WithCost", every},
		{[]O{o.NoSkip}, "WithSkip", every},
		{[]O{o.NoDenialHandler}, "WithDenialHandler", every},
		{[]O{o.NoErrorHandler}, "WithErrorHandler", every},
		{[]O{o.WithMaxWait(0)}, "WithMaxWait", every},
		{[]O{o.WithMaxWait(time.Millisecond - 1)}, "WithMaxWait", every},
		{[]O{o.WithMaxWait(time.Millisecond)}, "", streams},
		{[]O{o.WithMaxWait(time.Millisecond)}, "NewTap: WithMaxWait does not apply", tap},
		{[]O{o.WithReceived(nil, 0)}, "WithReceived: the limiter", streams},
		{[]O{o.WithReceived(limiter, -1)}, "WithReceived: a wait of -1ns", streams},
		{[]O{o.WithReceived(limiter, 0)}, "NewTap: WithReceived does not apply", tap},
		{[]O{o.WithSent(nil, 0)}, "WithSent: the limiter", streams},
		{[]O{o.WithSent(limiter, 1)}, "WithSent: a wait of 1ns", streams},
		{[]O{o.WithSent(limiter, 0)}, "NewTap: WithSent does not apply", tap},
		{[]O{o.WithInFlight(nil)}, "WithInFlight: the limiter", server},
		{[]O{o.WithInFlight(inFlight)}, "", server},
		{[]O{o.WithInFlight(inFlight)}, "NewClient: WithInFlight does not apply", client},
		{[]O{o.WithInFlight(inFlight)}, "NewTap: WithInFlight does not apply", tap},
		{[]O{o.WithRetryAfter(0)}, "WithRetryAfter: 0s", server},
		{[]O{o.WithRetryAfter(1)}, "nothing limits the calls at once", server},
		{[]O{o.WithRetryAfter(1), o.WithInFlight(inFlight)}, "", server},
		{[]O{o.WithRetryAfter(1)}, "NewClient: WithRetryAfter does not apply", client},
		{[]O{o.WithOutageRetryAfter(time.Millisecond - 1)}, "WithOutageRetryAfter: 999.999µs is less than", every},
		{[]O{o.WithOutageRetryAfter(time.Millisecond)}, "", every},
		{[]O{o.WithRetrySpread(0)}, "WithRetrySpread: 0s is not more than 0", server},
		{[]O{o.WithRetrySpread(1)}, "", server},
		{[]O{o.WithRetrySpread(1)}, "NewClient: WithRetrySpread does not apply", client},
		{[]O{o.WithMaxPushback(-1)}, "WithMaxPushback: -1ns", server},
		{[]O{o.WithMaxPushback(24*time.Hour + 1)}, "WithMaxPushback", server},
		{[]O{o.WithMaxPushback(24 * time.Hour)}, "", server},
		{[]O{o.WithMaxPushback(1)}, "NewClient: WithMaxPushback does not apply", client},
		{[]O{o.WithMaxPushback(1)}, "NewTap: WithMaxPushback does not apply", tap},
	} {
		if !slices.Contains(strings.Fields(c.where), name) {
			continue
		}
		limit, err := o.Constructors[name](limiter, o.Key, c.opts...)
		if c.mention == "" {
			require.NoError(t, err)
			continue
		}
		require.Nil(t, limit, c.mention)
		require.ErrorIs(t, err, ratelimit.ErrInvalidConfig, c.mention)
		require.ErrorContains(t, err, c.mention)
	}
}

func (o Options[O, K]) testLimiterAndKey(t *testing.T, name string) {
	limiter := limitertest.Allowing()
	var noKey K
	for _, c := range []struct {
		limiter ratelimit.Limiter
		key     K
		opts    []O
		mention string // in the error, after the constructor's name; none: it works
	}{
		{nil, o.Key, nil, ": the limiter is nil"},
		{(*ratelimit.TokenBucket)(nil), o.Key, nil, ": the limiter is nil"},
		{limiter, noKey, nil, ": the key function is nil"},
		{limitertest.Named("ok", limiter), o.Key, nil, ""},
		{limitertest.Named("ä", limiter), o.Key, nil, ": the limiter's name"},
		{limitertest.Named("ä", limiter), o.Key, []O{o.WithPolicy("a")}, ""},
	} {
		_, err := o.Constructors[name](c.limiter, c.key, c.opts...)
		if c.mention == "" {
			require.NoError(t, err)
			continue
		}
		require.ErrorContains(t, err, name+c.mention)
	}
}
