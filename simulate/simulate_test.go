package simulate_test

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/testing/limitertest"
	"github.com/tryacquire/ratelimit/internal/testing/raceflag"
	"github.com/tryacquire/ratelimit/simulate"
)

// TestWhatCannotWorkIsRefused: by the constructor of the limiter, in its words.
func TestWhatCannotWorkIsRefused(t *testing.T) {
	for _, tt := range []struct {
		algorithm simulate.Algorithm
		err       string
	}{
		{nil, "ratelimit: invalid configuration: the algorithm is nil; give for example a simulate.TokenBucket"},
		{simulate.FixedWindow{Window: time.Second}, "ratelimit: invalid configuration: the limit is 0; it must be at least 1"},
		{simulate.FixedWindow{Limit: 1}, "ratelimit: invalid configuration: the window is 0s; it must be at least 1ms"},
		{simulate.FixedWindow{Limit: 1, Window: time.Second, Offset: 1}, "ratelimit: invalid configuration: FixedWindow: the Offset is 1ns, and only aligned windows have one; set Aligned"},
		{simulate.CalendarWindow{Limit: 1}, "ratelimit: invalid configuration: the calendar is a zero value; make one with Daily, Weekly or Monthly"},
		{simulate.SlidingWindow{Limit: 1, Window: time.Second, SubWindows: 3}, "ratelimit: invalid configuration: the window 1s is not divisible into 3 sub-windows of whole microseconds; choose another number with WithSubWindows"},
		{simulate.SlidingWindow{Limit: 1, Window: time.Second, SubWindows: 3, Storage: ratelimit.StorageZSet}, "ratelimit: invalid configuration: WithSubWindows: the storage ZSet is exact and has no sub-windows; leave the option out"},
		{simulate.SlidingLog{}, "ratelimit: invalid configuration: there are 0 rules; give 1 to 100"},
		{simulate.TokenBucket{Rate: ratelimit.PerSecond(1), Burst: 1, Offset: 1}, "ratelimit: invalid configuration: TokenBucket: the Offset is 1ns, and only aligned steps have one; set Aligned"},
		{simulate.TokenBucket{Rate: ratelimit.PerSecond(1), Burst: 1, Aligned: true}, "ratelimit: invalid configuration: WithAlignment: tokens arrive continuously, and only steps are aligned; add WithRefillEvery, or leave it out"},
		{simulate.TokenBucket{Rate: ratelimit.PerSecond(1)}, "ratelimit: invalid configuration: the burst is 0; it must be at least 1"},
		{simulate.LeakyBucket{Rate: ratelimit.PerSecond(1)}, "ratelimit: invalid configuration: the capacity is 0; it must be at least 1"},
	} {
		l, err := simulate.New(tt.algorithm)
		require.EqualError(t, err, tt.err)
		require.ErrorIs(t, err, ratelimit.ErrInvalidConfig)
		require.Nil(t, l)
	}
}

func TestMistakesOfCallers(t *testing.T) {
	l := ratelimit.Must(simulate.New(simulate.TokenBucket{Rate: ratelimit.PerSecond(1), Burst: 2}))
	for _, tt := range []struct {
		key  string
		n    int
		is   error
		text string
	}{
		{"", 1, ratelimit.ErrInvalidKey, "ratelimit: invalid key: it is empty"},
		{strings.Repeat("k", 4097), 1, ratelimit.ErrInvalidKey, "ratelimit: invalid key: it has 4097 bytes and may have at most 4096; use a hash of long keys"},
		{"k", 0, ratelimit.ErrInvalidPermits, "ratelimit: invalid number of permits: 0; ask for at least 1"},
		{"k", 3, ratelimit.ErrExceedsLimit, "ratelimit: more permits than the limit: 3 permits of 2 at most"},
	} {
		r, err := l.TryAcquireN(limitertest.Start, tt.key, tt.n)
		require.ErrorIs(t, err, tt.is)
		require.EqualError(t, err, tt.text)
		require.Zero(t, r)
		if errors.Is(tt.is, ratelimit.ErrInvalidKey) {
			_, err = l.Peek(limitertest.Start, tt.key)
			require.EqualError(t, err, tt.text)
			require.EqualError(t, l.Reset(tt.key), tt.text)
		}
	}
	require.Zero(t, l.Keys())
}

// TestInstantsBefore1970CountAs1970: the server's clock has none.
func TestInstantsBefore1970CountAs1970(t *testing.T) {
	l := ratelimit.Must(simulate.New(simulate.FixedWindow{Limit: 1, Window: time.Hour, Aligned: true, Offset: -time.Minute}))
	r, err := l.TryAcquire(time.Unix(-3600, 0), "k")
	require.NoError(t, err)
	require.Equal(t, ratelimit.Result{Allowed: true, Limit: 1, Window: time.Hour, ResetAfter: 59 * time.Minute}, r)
}

// TestDecisionsAllocateNothing: of a key that is known, but for the entries of a log.
func TestDecisionsAllocateNothing(t *testing.T) {
	if raceflag.Enabled {
		t.Skip("the race detector allocates")
	}
	for _, a := range []simulate.Algorithm{
		simulate.FixedWindow{Limit: 2, Window: time.Second},
		simulate.CalendarWindow{Limit: 2, Calendar: ratelimit.Daily(time.UTC)},
		simulate.TokenBucket{Rate: ratelimit.PerSecond(1), Burst: 2},
	} {
		l, at := ratelimit.Must(simulate.New(a)), limitertest.Start
		require.Zero(t, testing.AllocsPerRun(100, func() {
			at = at.Add(time.Millisecond)
			if _, err := l.TryAcquire(at, "k"); err != nil {
				panic(err)
			}
		}), "%T", a)
	}
}

func BenchmarkTryAcquire(b *testing.B) {
	for _, a := range []simulate.Algorithm{
		simulate.FixedWindow{Limit: 100, Window: time.Minute},
		simulate.SlidingWindow{Limit: 100, Window: time.Minute},
		simulate.SlidingLog{Rules: []ratelimit.Rule{{Limit: 10, Window: time.Second}, {Limit: 100, Window: time.Minute}}},
		simulate.TokenBucket{Rate: ratelimit.PerMinute(100), Burst: 100},
	} {
		b.Run(fmt.Sprintf("%T", a)[len("simulate."):], func(b *testing.B) {
			l, at := ratelimit.Must(simulate.New(a)), limitertest.Start
			var keys []string
			for i := range 10_000 {
				keys = append(keys, "192.0.2."+strconv.Itoa(i))
			}
			i := 0
			b.ReportAllocs()
			for b.Loop() {
				at = at.Add(50 * time.Microsecond)
				if _, err := l.TryAcquire(at, keys[i%len(keys)]); err != nil {
					b.Fatal(err)
				}
				i++
			}
		})
	}
}
