package ratelimit_test

import (
	"fmt"
	"math/big"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/testing/limitertest"
	"github.com/tryacquire/ratelimit/internal/testing/model"
)

// TestSlicesAreAsLargeAsThereIsRoom: random slices and takes, alone and in lists, of rates that divide no microsecond. The
// expected numbers are computed from the rule, in fractions.
func TestSlicesAreAsLargeAsThereIsRoom(t *testing.T) {
	for _, stage := range []func(testing.TB) *limitertest.Stage{limitertest.OnMiniredis, limitertest.OnHeldRedis} {
		s, rng := stage(t), model.Seeded(limitertest.Seed(t))
		for range limitertest.Rounds(200, 20) {
			s.Wipe(t)
			count, burst := 1+rng.IntN(50), 1+rng.IntN(120)
			period := time.Duration(1000+rng.IntN(3_000_000)) * time.Microsecond
			var opts []ratelimit.Option
			every := int64(1)
			if rng.IntN(2) == 0 {
				every = int64(1+rng.IntN(200)) * 1000
				opts = append(opts, ratelimit.WithRefillEvery(time.Duration(every)*time.Microsecond))
			}
			aligned := every > 1 && rng.IntN(2) == 0
			if aligned {
				opts = append(opts, ratelimit.WithAlignment(0))
			}
			l := ratelimit.Must(ratelimit.NewTokenBucket(s.Client, ratelimit.Per(count, period), burst, opts...))
			b := slicedBucket{rate: big.NewRat(int64(count), period.Microseconds()), burst: int64(burst), every: every, aligned: aligned, missing: new(big.Rat)}
			for range 12 {
				s.Advance(time.Duration(rng.IntN(int(period.Microseconds()))) * time.Microsecond)
				now := s.Now.UnixMicro()
				var list, about []string
				var want []int64
				for range 1 + rng.IntN(3) {
					n, waiting := int64(1+rng.IntN(burst)), int64(rng.IntN(6))
					if rng.IntN(3) == 0 {
						list = append(list, fmt.Sprintf("%dx1", n))
						want = append(want, b.take(now, n))
					} else {
						long := int64(rng.IntN(int(period.Microseconds())))
						shortest := rng.Int64N(long + 1)
						list = append(list, fmt.Sprintf("%dd%d/%d/%d/%d", n, waiting, shortest, long, 2+rng.IntN(1000)))
						taken, lasts := b.lease(now, n, waiting, shortest, long)
						want = append(want, lasts, taken)
					}
					about = append(about, b.missing.String())
				}
				words, err := ratelimit.DecideList(l, "k", []byte(strings.Join(list, ",")))
				require.NoError(t, err)
				var got []int64
				width := 4
				if every > 1 {
					width = 5
				}
				for _, o := range list {
					if strings.Contains(o, "x") {
						got, words = append(got, words[0]), words[width:]
					} else {
						got, words = append(got, words[0], words[1]), words[1+width+2:]
					}
				}
				require.Empty(t, words)
				require.Equal(t, want, got, "%d per %v, burst %d, every %d, aligned %v: %v, missing %v, %q", count, period, burst, every, aligned, list, about,
					s.Admin.Get(ctx, bucketKey).Val())
			}
		}
	}
}

// A slicedBucket is the rule: what is missing, at an instant.
type slicedBucket struct {
	rate    *big.Rat // permits a microsecond
	burst   int64
	every   int64 // microseconds of a step
	aligned bool
	missing *big.Rat
	at      int64 // of the last step
}

func (b *slicedBucket) restored(from, to int64) *big.Rat {
	steps := (to - from) / b.every
	return new(big.Rat).Mul(b.rate, big.NewRat(steps*b.every, 1))
}

func (b *slicedBucket) pass(now int64) {
	b.missing = new(big.Rat).Sub(b.missing, b.restored(b.at, now))
	b.at += (now - b.at) / b.every * b.every
	if b.missing.Sign() <= 0 {
		b.missing, b.at = new(big.Rat), now
	}
	if b.aligned { // also if the bucket is full
		b.at = now / b.every * b.every
	}
}

// room is how many whole permits fit if so much is missing.
func (b *slicedBucket) room(missing *big.Rat) int64 {
	room := new(big.Rat).Sub(big.NewRat(b.burst, 1), missing)
	return new(big.Int).Div(room.Num(), room.Denom()).Int64()
}

func (b *slicedBucket) take(now, n int64) int64 {
	b.pass(now)
	if b.room(b.missing) < n {
		return 0
	}
	b.missing = new(big.Rat).Add(b.missing, big.NewRat(n, 1))
	return 1
}

func (b *slicedBucket) lease(now, most, waiting, shortest, long int64) (n, lasts int64) {
	b.pass(now)
	if long > shortest { // until the end all that is missing is restored, but for an eighth of the burst and as many permits as are asked for
		free := new(big.Rat).Sub(b.missing, big.NewRat(b.burst+8*most, 8))
		free.Sub(free.Quo(free, b.rate), big.NewRat(now-b.at, 1))
		lasts := max(shortest, min(long, new(big.Int).Div(free.Num(), free.Denom()).Int64()))
		most = max(min(most, waiting), most*lasts/long)
		long = lasts
	}
	floor := b.restored(b.at, now+long)
	if floor.Cmp(b.missing) < 0 {
		floor = b.missing
	}
	room := b.room(floor)
	n, lasts = min(most, max(min(room, waiting), room/4)), long
	if n < 1 || long == 0 {
		n, lasts, floor = max(min(waiting, b.room(b.missing)), 0), 0, b.missing
	}
	if n > 0 {
		b.missing = new(big.Rat).Add(floor, big.NewRat(n, 1))
	}
	return n, lasts
}

// TestASliceInTheState: what the state says of it, what a bucket without slices finds, and what comes back.
func TestASliceInTheState(t *testing.T) {
	s := limitertest.OnMiniredis(t)
	l := ratelimit.Must(ratelimit.NewTokenBucket(s.Client, ratelimit.PerSecond(100), 100))
	state := func() string { return s.Admin.Get(ctx, bucketKey).Val() }
	operations := func(list string) []int64 {
		words, err := ratelimit.DecideList(l, "k", []byte(list))
		require.NoError(t, err)
		return words
	}

	// 250 ms of 100 a second are 25 permits. That leaves room for 75, of which a slice gets a quarter.
	require.Equal(t, []int64{250_000, 18, 250_000, 0, 0, 0, 7}, operations("20d1/250000/250000/7"))
	at := strconv.FormatInt(s.Now.UnixMicro(), 10)
	require.Equal(t, at+"/430000/10000/1~250000,7,0,100", state())
	require.Equal(t, 56, must(t)(l.TryAcquire(ctx, "k")).Remaining)
	require.Equal(t, at+"/440000/10000/1~250000,7,0,43", state())

	s.Advance(100 * time.Millisecond)
	require.Equal(t, []int64{250_000, 5, 340_000, 0, 0, 0, 7}, operations("5d1/250000/250000/8"), "in the same epoch")
	at = strconv.FormatInt(s.Now.UnixMicro(), 10)
	require.Equal(t, at+"/390000/10000/1~250000,7,100000,9", state(), "of 34 that were missing 25 had to be")
	require.Equal(t, []int64{0}, operations("10g0/7"), "of a slice all or nothing")
	require.Equal(t, []int64{0}, operations("4g0/8"), "no such epoch")
	require.Equal(t, []int64{8}, operations("8g0/7"))
	require.Equal(t, at+"/310000/10000/1~250000,7,100000,1", state())
	require.Equal(t, []int64{0}, operations("2g0/7"))

	operations("60x1")
	s.Advance(500 * time.Millisecond)
	operations("50x1")
	require.Contains(t, state(), "~0,7,600000,1", "what is left of slices may still come back")
	s.Advance(800 * time.Millisecond)
	operations("60x1")
	require.Contains(t, state(), "~0,7,1400000,1")
	s.Advance(600 * time.Millisecond)
	operations("1x1")
	require.NotContains(t, state(), "~")
	require.Equal(t, []int64{0}, operations("1g0/7"))
	require.Equal(t, []int64{1}, operations("1g0/0"))

	s.Wipe(t)
	operations("31x1")
	require.Equal(t, []int64{145_000, 1, 310_000, 0, 0, 0, 9}, operations("4d1/100000/400000/9"),
		"in 145 ms 14.5 permits are restored, and then 16.5 are missing: 4 and an eighth of the burst. For 145 ms one is what 4 are for 400")
}
