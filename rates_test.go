package ratelimit_test

import (
	"fmt"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/testing/limitertest"
	"github.com/tryacquire/ratelimit/internal/testing/model"
	"github.com/tryacquire/ratelimit/internal/testing/raceflag"
)

// TestEveryRateThatAPersonWouldName: every count and burst up to 10^8 per whole number of
// milliseconds up to a year, unless the bucket takes more than 71 years to refill. Then
// the error names a burst and a rate that are accepted.
func TestEveryRateThatAPersonWouldName(t *testing.T) {
	raceflag.SkipSequential(t)
	const day = 24 * time.Hour
	client := limitertest.Offline(t)
	build := func(rate ratelimit.Rate, burst int) error {
		_, err := ratelimit.NewTokenBucket(client, rate, burst)
		_, same := ratelimit.NewLeakyBucket(client, rate, burst)
		require.Equal(t, err == nil, same == nil)
		_, same = ratelimit.NewLocalTokenBucket(rate, burst)
		require.Equal(t, err, same)
		return err
	}
	for _, rate := range []ratelimit.Rate{
		ratelimit.Per(77_777, day), ratelimit.Per(2_999, 30*day), ratelimit.Per(1_000_003, day),
		ratelimit.Per(100_000_000, 365*day), ratelimit.Per(99_999_999, 365*day-time.Millisecond), ratelimit.Per(100_000_000, time.Millisecond),
	} {
		require.NoError(t, build(rate, rate.Count), rate)
		require.NoError(t, build(rate, 1), rate)
	}
	for count := 1; count <= 10_000; count++ {
		require.NoError(t, build(ratelimit.Per(count, 30*day), count))
	}
	rng := model.Seeded(limitertest.Seed(t))
	refused := 0
	remedy := regexp.MustCompile(`lower the burst to at most (\d+)(?:, or raise the rate to at least (\d+) per (\S+))?$`)
	for range 2_000 {
		rate := ratelimit.Per(1+rng.IntN(1<<(1+rng.IntN(26))), time.Duration(1+rng.Int64N(int64(365*day/time.Millisecond)))*time.Millisecond)
		burst := 1 + rng.IntN(1e8)
		err := build(rate, burst)
		if err == nil {
			continue
		}
		refused++
		says := remedy.FindStringSubmatch(err.Error())
		require.NotNil(t, says, err)
		largest, _ := strconv.Atoi(says[1])
		require.NoError(t, build(rate, largest), err)
		require.Error(t, build(rate, largest+1), err)
		if says[2] != "" {
			lowest, _ := strconv.Atoi(says[2])
			require.Equal(t, fmt.Sprint(rate.Period), says[3])
			require.NoError(t, build(ratelimit.Per(lowest, rate.Period), burst), err)
			require.Error(t, build(ratelimit.Per(lowest-1, rate.Period), burst), err)
		}
	}
	require.Positive(t, refused)
}
