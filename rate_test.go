package ratelimit_test

import (
	"encoding/json"
	"flag"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/exact"
)

// TestALongerPeriodDividesARate: the shares of all instances together are the rate, whatever it is.
func TestALongerPeriodDividesARate(t *testing.T) {
	const instances = 4
	for _, count := range []int{1, 3, 7, 100} {
		start := time.Unix(0, 0)
		now := start
		share := ratelimit.Must(ratelimit.NewLocalTokenBucket(ratelimit.Per(count, instances*time.Minute), 1,
			ratelimit.WithClock(func() time.Time { return now })))
		allowed := 0
		for _, instance := range []string{"a", "b", "c", "d"} { // each on its own, as keys are
			for now = start; now.Sub(start) < 100*time.Minute; {
				result, err := share.TryAcquire(t.Context(), instance)
				require.NoError(t, err)
				if result.Allowed {
					allowed++
				} else {
					now = now.Add(result.RetryAfter)
				}
			}
		}
		require.InDelta(t, 100*count, allowed, instances, count) // and one burst of each
	}
}

func TestParseRate(t *testing.T) {
	for text, want := range map[string]struct {
		rate      ratelimit.Rate
		canonical string
	}{
		"5/s":             {ratelimit.PerSecond(5), "5/s"},
		"5/m":             {ratelimit.PerMinute(5), "5/m"},
		"5/h":             {ratelimit.PerHour(5), "5/h"},
		"5/d":             {ratelimit.Per(5, 24*time.Hour), "5/d"},
		"5/1s":            {ratelimit.PerSecond(5), "5/s"},
		"5/60s":           {ratelimit.PerMinute(5), "5/m"},
		"5/90s":           {ratelimit.Per(5, 90*time.Second), "5/1m30s"},
		"5/10m":           {ratelimit.Per(5, 10*time.Minute), "5/10m"},
		"5/12h":           {ratelimit.Per(5, 12*time.Hour), "5/12h"},
		"5/1h10m":         {ratelimit.Per(5, 70*time.Minute), "5/1h10m"},
		"5/1h0m5s":        {ratelimit.Per(5, time.Hour+5*time.Second), "5/1h0m5s"},
		"5/168h":          {ratelimit.Per(5, 7*24*time.Hour), "5/7d"},
		"5/30d":           {ratelimit.Per(5, 30*24*time.Hour), "5/30d"},
		"3/1.5ms":         {ratelimit.Per(3, 1500*time.Microsecond), "3/1.5ms"},
		"1000000000000/s": {ratelimit.PerSecond(exact.Permits), "1000000000000/s"},
	} {
		got, err := ratelimit.ParseRate(text)
		require.NoError(t, err, text)
		require.Equal(t, want.rate, got, text)
		require.Equal(t, want.canonical, got.String(), text)
	}
}

func TestParseRateSaysWhatToWrite(t *testing.T) {
	const remedy = "; write a count and a period, such as 10/m, 500/h or 10/90s"
	for text, want := range map[string]string{
		"":                       `the rate "" has no period` + remedy,
		"5":                      `the rate "5" has no period` + remedy,
		"5-M":                    `the rate "5-M" has no period` + remedy,
		"/m":                     `the rate "/m" has the count "", which is not a whole number` + remedy,
		"1.5/s":                  `the rate "1.5/s" has the count "1.5", which is not a whole number` + remedy,
		"5 /m":                   `the rate "5 /m" has the count "5 ", which is not a whole number` + remedy,
		"5/":                     `the rate "5/" has the period "", which is neither s, m, h, d nor a duration` + remedy,
		"5/M":                    `the rate "5/M" has the period "M", which is neither s, m, h, d nor a duration` + remedy,
		"5/month":                `the rate "5/month" has the period "month", which is neither s, m, h, d nor a duration` + remedy,
		"5/m/s":                  `the rate "5/m/s" has the period "m/s", which is neither s, m, h, d nor a duration` + remedy,
		"5/-1d":                  `the rate "5/-1d" has the period "-1d", which is neither s, m, h, d nor a duration` + remedy,
		"5/1.5d":                 `the rate "5/1.5d" has the period "1.5d", which is neither s, m, h, d nor a duration` + remedy,
		"5/106752d":              `the rate "5/106752d" has the period "106752d", which is neither s, m, h, d nor a duration` + remedy,
		"0/m":                    "the rate's Count is 0; it must be at least 1",
		"-5/m":                   "the rate's Count is -5; it must be at least 1",
		"1000000000001/m":        "the rate's Count is 1000000000001; it must be at most 1000000000000; count in a larger unit",
		"5/0":                    "the rate's Period is 0s; it must be at least 1ms",
		"5/999us":                "the rate's Period is 999µs; it must be at least 1ms",
		"5/-1m":                  "the rate's Period is -1m0s; it must be at least 1ms",
		"5/1000000.5us":          "the rate's Period is 1.0000005s; it must be a whole number of microseconds",
		"5/106751d":              "the rate's Period is 2562024h0m0s; it must be at most 625499h56m53.685248s",
		"99999999999999999999/s": `the rate "99999999999999999999/s" has the count "99999999999999999999", which is not a whole number` + remedy,
	} {
		got, err := ratelimit.ParseRate(text)
		require.ErrorIs(t, err, ratelimit.ErrInvalidConfig, text)
		require.EqualError(t, err, "ratelimit: invalid configuration: "+want, text)
		require.Zero(t, got, text)
	}
	_, err := ratelimit.ParseRate(strings.Repeat("x", 1_000_000))
	require.Less(t, len(err.Error()), 300, "a text of any length fits into a log")
}

// TestRateInConfigurations: as a field of JSON, as a map's key, and as a flag.
func TestRateInConfigurations(t *testing.T) {
	type config struct {
		Rate  ratelimit.Rate            `json:"rate,omitzero"`
		Plans map[string]ratelimit.Rate `json:"plans,omitempty"`
	}
	in := config{ratelimit.PerMinute(5), map[string]ratelimit.Rate{"free": ratelimit.Per(100, 24*time.Hour)}}
	text, err := json.Marshal(in)
	require.NoError(t, err)
	require.JSONEq(t, `{"rate": "5/m", "plans": {"free": "100/d"}}`, string(text))
	var out config
	require.NoError(t, json.Unmarshal(text, &out))
	require.Equal(t, in, out)

	text, err = json.Marshal(config{})
	require.NoError(t, err)
	require.Equal(t, "{}", string(text))

	require.ErrorIs(t, json.Unmarshal([]byte(`{"rate": "7-M"}`), &out), ratelimit.ErrInvalidConfig)
	require.Equal(t, in, out, "after an error the rate is as it was")

	_, err = json.Marshal(struct{ Rate ratelimit.Rate }{ratelimit.PerSecond(0)})
	require.ErrorIs(t, err, ratelimit.ErrInvalidConfig)
	require.ErrorContains(t, err, "the rate's Count is 0; it must be at least 1")

	flags := flag.NewFlagSet("", flag.ContinueOnError)
	var rate ratelimit.Rate
	flags.TextVar(&rate, "rate", ratelimit.PerSecond(10), "")
	require.Equal(t, "10/s", flags.Lookup("rate").DefValue)
	require.NoError(t, flags.Parse([]string{"-rate", "500/h"}))
	require.Equal(t, ratelimit.PerHour(500), rate)
}

func TestARateThatIsNoneHasAString(t *testing.T) {
	for want, rate := range map[string]ratelimit.Rate{
		"0/0s": {}, "-1/-1m": {Count: -1, Period: -time.Minute}, "1/1ns": {Count: 1, Period: 1}, "1/-1d": {Count: 1, Period: -24 * time.Hour},
	} {
		require.Equal(t, want, rate.String())
	}
}

// FuzzParseRate: a text gives a rate that has the text of its String and that limiters accept, or
// an error that wraps ErrInvalidConfig.
func FuzzParseRate(f *testing.F) {
	for _, text := range []string{"5/m", "5-M", "1/1h0m5s", "1000000000/1ms", "5/26062d", "0/d", "+5/s", "5/1e3s", "5/.5s", "5/µs"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		rate, err := ratelimit.ParseRate(text)
		if err != nil {
			require.ErrorIs(t, err, ratelimit.ErrInvalidConfig)
			require.Zero(t, rate)
			return
		}
		require.True(t, rate.Count > 0 && rate.Count <= exact.Permits && rate.Period >= time.Millisecond, rate)
		canonical, err := rate.MarshalText()
		require.NoError(t, err)
		again, err := ratelimit.ParseRate(string(canonical))
		require.NoError(t, err)
		require.Equal(t, rate, again)
		_, err = ratelimit.NewLocalTokenBucket(rate, 1)
		require.NoError(t, err)
	})
}

// FuzzRateText: every rate that limiters accept has a text that gives the same rate.
func FuzzRateText(f *testing.F) {
	f.Add(5, int64(time.Minute))
	f.Add(1_000_000_000, int64(1<<51)*int64(time.Microsecond))
	f.Add(0, int64(math.MinInt64))
	f.Fuzz(func(t *testing.T, count int, period int64) {
		rate := ratelimit.Per(count, time.Duration(period))
		text, err := rate.MarshalText()
		if err != nil {
			require.ErrorIs(t, err, ratelimit.ErrInvalidConfig)
			return
		}
		again, err := ratelimit.ParseRate(string(text))
		require.NoError(t, err)
		require.Equal(t, rate, again)
	})
}
