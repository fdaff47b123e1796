package main

import (
	"io"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
)

// parseArgs is what the command line of replay asks for.
func parseArgs(args []string) (config, error) {
	f, fs := newReplayFlags(), pflag.NewFlagSet("replay", pflag.ContinueOnError)
	fs.SetOutput(io.Discard)
	f.define(fs)
	if err := fs.Parse(args); err != nil {
		return config{}, err
	}
	return f.config(fs.Args())
}

func TestParseArgs(t *testing.T) {
	perMinute := func(n int) ratelimit.Rate { return ratelimit.PerMinute(n) }
	bucket := func(n, burst int) limit { return limit{algorithm: tokenBucket, rate: perMinute(n), burst: burst} }
	for _, tt := range []struct {
		name string
		args []string
		want config
	}{
		{"nothing", nil,
			config{files: []string{"-"}, key: "ip", top: 10, standard: true, limits: []limit{bucket(20, 20)}}},
		{"a file", []string{"a.log"},
			config{files: []string{"a.log"}, key: "ip", top: 10, standard: true, limits: []limit{bucket(20, 20)}}},
		{"flags on all sides of the files", []string{"--rate", "10/m", "a.log", "--burst=7", "b.log", "--top", "3"},
			config{files: []string{"a.log", "b.log"}, key: "ip", top: 3, limits: []limit{bucket(10, 7)}}},
		{"files after two dashes", []string{"--key", "path", "--", "--rate", "b.log"},
			config{files: []string{"--rate", "b.log"}, key: "path", top: 10, standard: true, limits: []limit{bucket(20, 20)}}},
		{"stepped refill", []string{"--rate", "10/m", "--every", "6s"},
			config{files: []string{"-"}, key: "ip", top: 10, limits: []limit{
				{algorithm: tokenBucket, rate: perMinute(10), burst: 10, every: 6 * time.Second}}}},
		{"aligned refill", []string{"--rate", "10/h", "--burst", "30", "--every", "1h", "--align", "-2h", "--vs", "--align 0", "--vs", "fixed-window", "--vs", "leaky-bucket"},
			config{files: []string{"-"}, key: "ip", top: 10, limits: []limit{
				{algorithm: tokenBucket, rate: ratelimit.PerHour(10), burst: 30, every: time.Hour, aligned: true, offset: -2 * time.Hour},
				{algorithm: tokenBucket, rate: ratelimit.PerHour(10), burst: 30, every: time.Hour, aligned: true},
				{algorithm: fixedWindow, rate: ratelimit.PerHour(10), aligned: true, offset: -2 * time.Hour},
				{algorithm: leakyBucket, rate: ratelimit.PerHour(10), capacity: 10}}}},
		{"an aligned window beside a bucket", []string{"--algorithm", "fixed-window,token-bucket", "--align", "0"},
			config{files: []string{"-"}, key: "ip", top: 10, limits: []limit{
				{algorithm: fixedWindow, rate: perMinute(20), aligned: true}, {algorithm: tokenBucket, rate: perMinute(20), burst: 20}}}},
		{"leaky bucket", []string{"--algorithm", "leaky-bucket", "--rate", "10/90s", "--capacity", "3"},
			config{files: []string{"-"}, key: "ip", top: 10, limits: []limit{
				{algorithm: leakyBucket, rate: ratelimit.Per(10, 90*time.Second), capacity: 3}}}},
		{"fixed window", []string{"--algorithm", "fixed-window", "--limit", "100", "--window", "1d", "--align", "-2h"},
			config{files: []string{"-"}, key: "ip", top: 10, limits: []limit{
				{algorithm: fixedWindow, rate: ratelimit.Per(100, 24*time.Hour), aligned: true, offset: -2 * time.Hour}}}},
		{"sliding window", []string{"--algorithm", "sliding-window", "--rate", "60/h", "--storage", "List", "--buckets", "6"},
			config{files: []string{"-"}, key: "ip", top: 10, limits: []limit{
				{algorithm: slidingWindow, rate: ratelimit.PerHour(60), storage: ratelimit.StorageList, buckets: 6}}}},
		{"sliding window, exact", []string{"--algorithm", "sliding-window", "--storage", "zset"},
			config{files: []string{"-"}, key: "ip", top: 10, limits: []limit{
				{algorithm: slidingWindow, rate: perMinute(20), storage: ratelimit.StorageZSet}}}},
		{"sliding log", []string{"--algorithm", "sliding-log", "--rule", "10/s, 100/m", "--rule", "1000/d", "--resolution", "100ms"},
			config{files: []string{"-"}, key: "ip", top: 10, limits: []limit{
				{algorithm: slidingLog, rate: perMinute(20), resolution: 100 * time.Millisecond, rules: []ratelimit.Rule{
					{Limit: 10, Window: time.Second}, {Limit: 100, Window: time.Minute}, {Limit: 1000, Window: 24 * time.Hour}}}}}},
		{"two algorithms", []string{"--algorithm", "token-bucket, fixed-window", "--rate", "10/m", "--burst", "5"},
			config{files: []string{"-"}, key: "ip", top: 10, limits: []limit{
				bucket(10, 5), {algorithm: fixedWindow, rate: perMinute(10)}}}},
		{"two algorithms, rules for one of them", []string{"--algorithm", "sliding-log,fixed-window", "--rate", "10/m", "--rule", "5/s"},
			config{files: []string{"-"}, key: "ip", top: 10, limits: []limit{
				{algorithm: slidingLog, rate: perMinute(10), rules: []ratelimit.Rule{{Limit: 5, Window: time.Second}}},
				{algorithm: fixedWindow, rate: perMinute(10)}}}},
		{"vs another burst", []string{"--rate", "10/m", "--burst", "5", "--vs", "--burst 40"},
			config{files: []string{"-"}, key: "ip", top: 10, limits: []limit{bucket(10, 5), bucket(10, 40)}}},
		{"vs another rate", []string{"--limit", "10", "--window", "1m", "--burst", "5", "--vs", "--rate 7/m"},
			config{files: []string{"-"}, key: "ip", top: 10, limits: []limit{bucket(10, 5), bucket(7, 5)}}},
		{"vs another algorithm", []string{"--rate", "10/m", "--burst", "5", "--vs", "fixed-window --align 0"},
			config{files: []string{"-"}, key: "ip", top: 10, limits: []limit{
				bucket(10, 5), {algorithm: fixedWindow, rate: perMinute(10), aligned: true}}}},
		{"vs another algorithm by flag", []string{"--vs", "--algorithm leaky-bucket"},
			config{files: []string{"-"}, key: "ip", top: 10, limits: []limit{
				bucket(20, 20), {algorithm: leakyBucket, rate: perMinute(20), capacity: 20}}}},
		{"vs rules", []string{"--rate", "10/m", "--vs", "sliding-log --rule 5/s,7/m"},
			config{files: []string{"-"}, key: "ip", top: 10, limits: []limit{bucket(10, 10),
				{algorithm: slidingLog, rate: perMinute(20), rules: []ratelimit.Rule{{Limit: 5, Window: time.Second}, {Limit: 7, Window: time.Minute}}}}}},
		{"rules vs a rate", []string{"--algorithm", "sliding-log", "--rule", "5/s,7/m", "--vs", "token-bucket --rate 10/m"},
			config{files: []string{"-"}, key: "ip", top: 10, limits: []limit{
				{algorithm: slidingLog, rate: perMinute(20), rules: []ratelimit.Rule{{Limit: 5, Window: time.Second}, {Limit: 7, Window: time.Minute}}},
				bucket(10, 10)}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := parseArgs(tt.args)
			require.NoError(t, err)
			got.clients = clients{} // it has a function
			require.Equal(t, tt.want, got)
		})
	}
}

func TestParseArgsErrors(t *testing.T) {
	rates := "; write a count and a period, such as 10/m, 500/h or 10/90s"
	const rate = "ratelimit: invalid configuration: the rate"
	for _, tt := range []struct {
		args []string
		err  string
	}{
		{[]string{"--rate", "10"}, "--rate: " + rate + ` "10" has no period` + rates},
		{[]string{"--rate", "ten/m"}, "--rate: " + rate + ` "ten/m" has the count "ten", which is not a whole number` + rates},
		{[]string{"--rate", "0/m"}, "--rate: " + rate + "'s Count is 0; it must be at least 1"},
		{[]string{"--rate", "10/fortnight"}, "--rate: " + rate + ` "10/fortnight" has the period "fortnight", which is neither s, m, h, d nor a duration` + rates},
		{[]string{"--rate", "10/-1m"}, "--rate: " + rate + "'s Period is -1m0s; it must be at least 1ms"},
		{[]string{"--rate", "10/999999999d"}, "--rate: " + rate + ` "10/999999999d" has the period "999999999d", which is neither s, m, h, d nor a duration` + rates},
		{[]string{"--rate", "1/m", "--rate", "2/m"}, `invalid argument "2/m" for "--rate" flag: it is given twice`},
		{[]string{"--rate", "1/m", "--limit", "2"}, "--rate and --limit with --window say the same: leave one of them out"},
		{[]string{"--limit", "2"}, "--limit and --window belong together, as in --limit 100 --window 1h"},
		{[]string{"--window", "1m"}, "--limit and --window belong together, as in --limit 100 --window 1h"},
		{[]string{"--limit", "-2", "--window", "1m"}, `--limit "-2": it must be a whole number, 1 or more`},
		{[]string{"--limit", "2", "--window", "1 minute"}, `--window "1 minute": it is not a duration such as 90s, 5m, 1h30m or 1d`},
		{[]string{"--limit", "2", "--window", "0"}, `--window "0": it must be more than 0`},
		{[]string{"--burst", "many"}, `--burst "many": it must be a whole number, 1 or more`},
		{[]string{"--every", "-1s"}, `--every "-1s": it must be more than 0`},
		{[]string{"--align", "0"}, "--align is for fixed-window, and for token-bucket with --every, not for token-bucket: leave it out, or choose one of these"},
		{[]string{"--algorithm", "bucket"}, `--algorithm "bucket": choose one of token-bucket, leaky-bucket, fixed-window, sliding-window, sliding-log`},
		{[]string{"--algorithm", "fixed-window", "--burst", "3"}, "--burst is for token-bucket, not for fixed-window: leave it out, or choose --algorithm token-bucket"},
		{[]string{"--algorithm", "fixed-window,sliding-log", "--storage", "list"}, "--storage is for sliding-window, not for fixed-window or sliding-log: leave it out, or choose --algorithm sliding-window"},
		{[]string{"--algorithm", "sliding-window", "--storage", "tree"}, `--storage "tree": choose one of list, hash, zset`},
		{[]string{"--algorithm", "sliding-log", "--rule", "10/s,x"}, "--rule: " + rate + ` "x" has no period` + rates},
		{[]string{"--algorithm", "sliding-log", "--rule", "10/s", "--rate", "1/m"}, "--rule and --rate (or --limit) both give the limit: leave one of them out"},
		{[]string{"--algorithm", "sliding-log,token-bucket", "--rule", "10/s"}, "--rule is for sliding-log only: give token-bucket a --rate"},
		{[]string{"--algorithm", "sliding-log", "--rule", "10/s", "--vs", "token-bucket"}, `--vs "token-bucket": token-bucket takes no --rule: give it a --rate`},
		{[]string{"--vs", "bucket"}, `--vs "bucket": the algorithm "bucket" is not one of token-bucket, leaky-bucket, fixed-window, sliding-window, sliding-log`},
		{[]string{"--vs", "leaky-bucket fixed-window"}, `--vs "leaky-bucket fixed-window": it holds more than one algorithm: leaky-bucket, fixed-window`},
		{[]string{"--vs", "fixed-window --burst 3"}, `--vs "fixed-window --burst 3": --burst is for token-bucket, not for fixed-window: leave it out, or choose --algorithm token-bucket`},
		{[]string{"--vs", "--rate x"}, `--vs "--rate x": --rate: ` + rate + ` "x" has no period` + rates},
		{[]string{"--vs", "--top 3"}, `--vs "--top 3": unknown flag: --top`},
		{[]string{"--vs", "-h"}, `--vs "-h": --help does not belong here`},
		{[]string{"--key", "cookie"}, `--key "cookie": choose one of ip, ip+path, path, user-agent`},
		{[]string{"--top", "0"}, "--top 0: it must be 1 or more"},
		{[]string{"--ipv6-prefix", "0"}, "--ipv6-prefix or --trust: ratelimit: invalid configuration: httplimit: WithIPv6Prefix: 0 is not between 1 and 128"},
		{[]string{"--trust", "10.0.0.1"}, `--trust "10.0.0.1": it is no network such as 10.0.0.0/8, or 192.0.2.7/32 for a single address`},
		{[]string{"--sweep", "rate=1/m", "--rate", "2/m"}, `--sweep "rate=1/m": --rate is given too: leave one of them out`},
		{[]string{"--sweep", "rate=1/m", "--sweep", "rate=2/m"}, `--sweep "rate=2/m": --rate is given too: leave one of them out`},
		{[]string{"--sweep", "rate=1/m,x"}, "--rate: " + rate + ` "x" has no period` + rates},
		{[]string{"--sweep", "rates=1/m"}, `--sweep "rates=1/m": write for example rate=5/m,10/m,20/m; what can be swept: rate, limit, window, burst, every, capacity, align, buckets, rule, resolution`},
		{[]string{"--sweep", "rate=1/m", "--vs", "fixed-window"}, "--sweep and --vs both say what is compared: leave one of them out"},
		{[]string{"--sweep", "rate=1/m,2/m", "--algorithm", "token-bucket,leaky-bucket"}, "--sweep is for one --algorithm"},
		{[]string{"--sweep", "rate=1/m,2/m,3/m,4/m,5/m,6/m", "--sweep", "burst=1,2,3,4,5,6"}, "36 limits are compared: there can be 32 at most"},
		{[]string{"-", "a.log", "-"}, `standard input ("-") can be read only once`},
		{[]string{"--bust", "3"}, "unknown flag: --bust"},
		{[]string{"--rate"}, "flag needs an argument: --rate"},
	} {
		t.Run(tt.err, func(t *testing.T) {
			_, err := parseArgs(tt.args)
			require.EqualError(t, err, tt.err)
		})
	}
}

func TestParseArgsReturnsTheLibrarysErrors(t *testing.T) {
	for _, args := range [][]string{
		{"--algorithm", "sliding-window", "--storage", "zset", "--buckets", "5"},
		{"--algorithm", "sliding-log", "--rule", "10/s,5/s"},
		{"--algorithm", "fixed-window", "--rate", "10/1us"},
		{"--vs", "--every 1us"},
	} {
		_, err := parseArgs(args)
		require.ErrorIs(t, err, ratelimit.ErrInvalidConfig, args)
	}
}

// TestKeysHaveWords: every key can be reported.
func TestKeysHaveWords(t *testing.T) {
	for key := range keyers {
		require.Contains(t, keyWords, key)
	}
}

func TestLimitsInWords(t *testing.T) {
	for _, tt := range []struct {
		args []string
		want string
	}{
		{nil, "20 per minute, up to 20 at once"},
		{[]string{"--rate", "1200/90s", "--burst", "5", "--every", "3s"}, "1,200 per 90 seconds, up to 5 at once, refilled every 3 seconds"},
		{[]string{"--rate", "20/h", "--every", "1h", "--align", "0"}, "20 per hour, up to 20 at once, refilled every hour of the clock (UTC)"},
		{[]string{"--rate", "20/h", "--every", "1d", "--align", "-2h"}, "20 per hour, up to 20 at once, refilled every day of the clock (UTC, shifted by -2 hours)"},
		{[]string{"--algorithm", leakyBucket}, "drains 20 per minute, holds up to 20"},
		{[]string{"--algorithm", fixedWindow}, "at most 20 in a window of 1 minute that starts with the first request in it"},
		{[]string{"--algorithm", fixedWindow, "--align", "0"}, "at most 20 in each minute of the clock (UTC)"},
		{[]string{"--algorithm", fixedWindow, "--rate", "20/d", "--align", "-2h"}, "at most 20 in each day of the clock (UTC, shifted by -2 hours)"},
		{[]string{"--algorithm", slidingWindow}, "at most 20 in any minute, in 40 sub-windows (list)"},
		{[]string{"--algorithm", slidingWindow, "--storage", "zset", "--rate", "5/1.5s"}, "at most 5 in any 1.5s, exactly (zset)"},
		{[]string{"--algorithm", slidingLog, "--rule", "2/s,100/2h"}, "at most 2 in any second and 100 in any 2 hours"},
		{[]string{"--algorithm", slidingLog, "--resolution", "1s"}, "at most 20 in any minute, remembered to 1s"},
	} {
		cfg, err := parseArgs(tt.args)
		require.NoError(t, err)
		require.Equal(t, tt.want, cfg.limits[0].String())
	}
}
