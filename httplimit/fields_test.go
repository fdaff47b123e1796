package httplimit_test

import (
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/httplimit"
	"github.com/tryacquire/ratelimit/internal/testing/limitertest"
)

// fieldsOf returns the fields of the response where the limiter answers result.
func fieldsOf(t *testing.T, result ratelimit.Result, opts ...httplimit.Option) http.Header {
	t.Helper()
	w := serve(t, &limitertest.Stub{Result: result}, newRequest("GET", "/"), opts...)
	for _, name := range []string{"Content-Type", "Cache-Control", "X-Content-Type-Options"} {
		w.Header().Del(name)
	}
	return w.Header()
}

func allowed(limit int, window time.Duration, remaining int, reset time.Duration) ratelimit.Result {
	return ratelimit.Result{Allowed: true, Limit: limit, Window: window, Remaining: remaining, ResetAfter: reset}
}

func denied(limit int, window time.Duration, remaining int, retry, reset time.Duration) ratelimit.Result {
	return ratelimit.Result{Limit: limit, Window: window, Remaining: remaining, RetryAfter: retry, ResetAfter: reset}
}

func TestDraft11HasExactValues(t *testing.T) {
	const year = 365 * 24 * time.Hour
	most := min(int64(math.MaxInt), 999_999_999_999_999) // that the fields can hold
	for name, c := range map[string]struct {
		result             ratelimit.Result
		bucket             bool
		policy, rate, wait string
	}{
		"a window":                         {result: allowed(10, time.Minute, 9, 60*time.Second), policy: `"api";q=10;w=60`, rate: `"api";r=9;t=60`},
		"a window, 1 µs less":              {result: allowed(10, time.Minute, 9, 60*time.Second-time.Microsecond), policy: `"api";q=10;w=60`, rate: `"api";r=9;t=60`},
		"a window, 1 ns less than a whole": {result: allowed(10, time.Minute, 9, 59*time.Second+1), policy: `"api";q=10;w=60`, rate: `"api";r=9;t=60`},
		"a window, a whole second":         {result: allowed(10, time.Minute, 0, 59*time.Second), policy: `"api";q=10;w=60`, rate: `"api";r=0;t=59`},
		"a window that is over":            {result: allowed(10, time.Minute, 10, 0), policy: `"api";q=10;w=60`, rate: `"api";r=10;t=0`},
		"w is 1":                           {result: allowed(5, time.Second, 4, time.Second), policy: `"api";q=5;w=1`, rate: `"api";r=4;t=1`},
		"w is left out below a second":     {result: allowed(5, time.Second-time.Microsecond, 4, time.Millisecond), policy: `"api";q=5`, rate: `"api";r=4;t=1`},
		"w is rounded up":                  {result: allowed(5, time.Second+time.Microsecond, 4, time.Second+1), policy: `"api";q=5;w=2`, rate: `"api";r=4;t=2`},
		"71 years":                         {result: allowed(1e9, 71*year, 1e9, 71*year), policy: `"api";q=1000000000;w=2239056000`, rate: `"api";r=1000000000;t=2239056000`},

		"a bucket, full":                  {bucket: true, result: allowed(20, 2*time.Second, 20, 0), policy: `"api";q=20;w=2`, rate: `"api";r=20;t=2`},
		"a bucket, 11 of 20 are 1.1 s":    {bucket: true, result: allowed(20, 2*time.Second, 11, 900*time.Millisecond), policy: `"api";q=20;w=2`, rate: `"api";r=11;t=2`},
		"a bucket, 10 of 20 are 1 s":      {bucket: true, result: allowed(20, 2*time.Second, 10, time.Second), policy: `"api";q=20;w=2`, rate: `"api";r=10;t=1`},
		"a bucket, at least 1":            {bucket: true, result: allowed(20, 2*time.Second, 0, 2*time.Second), policy: `"api";q=20;w=2`, rate: `"api";r=0;t=1`},
		"a bucket, 1 of 7 in a minute":    {bucket: true, result: allowed(7, time.Minute, 1, 52*time.Second), policy: `"api";q=7;w=60`, rate: `"api";r=1;t=9`},
		"a bucket, a third of a ns above": {bucket: true, result: allowed(3, 3*time.Second+1, 1, 2*time.Second), policy: `"api";q=3;w=4`, rate: `"api";r=1;t=2`},
		"a bucket of 71 years":            {bucket: true, result: allowed(1e9, 71*year, 1e9-1, time.Second), policy: `"api";q=1000000000;w=2239056000`, rate: `"api";r=999999999;t=2239055998`},

		"denied":                   {result: denied(5, 5*time.Second, 0, time.Second, 5*time.Second), policy: `"api";q=5;w=5`, rate: `"api";r=0;t=1`, wait: "1"},
		"denied, 1 µs more":        {result: denied(5, 5*time.Second, 0, time.Second+time.Microsecond, 5*time.Second), policy: `"api";q=5;w=5`, rate: `"api";r=0;t=2`, wait: "2"},
		"denied, 1 µs":             {result: denied(5, 5*time.Second, 0, time.Microsecond, 5*time.Second), policy: `"api";q=5;w=5`, rate: `"api";r=0;t=1`, wait: "1"},
		"denied, the cost was 4":   {result: denied(5, 5*time.Second, 3, 800*time.Millisecond, 1900*time.Millisecond), policy: `"api";q=5;w=5`, rate: `"api";r=3;t=1`, wait: "1"},
		"a bucket denies":          {bucket: true, result: denied(5, time.Hour, 0, 719*time.Second+1, time.Hour), policy: `"api";q=5;w=3600`, rate: `"api";r=0;t=720`, wait: "720"},
		"denied, and no wait said": {result: denied(5, time.Second, 0, 0, 0), policy: `"api";q=5;w=1`, rate: `"api";r=0;t=1`, wait: "1"},
		"no limit":                 {result: ratelimit.Result{Allowed: true}},
		"nothing is allowed":       {result: ratelimit.Result{RetryAfter: time.Second, ResetAfter: time.Second}, wait: "1"},

		// No limiter of ours answers so.
		"a foreign limiter's numbers": {bucket: true, result: allowed(math.MaxInt, math.MaxInt64, -1, -1), policy: fmt.Sprintf(`"api";q=%d;w=9223372037`, most), rate: `"api";r=0;t=1`},
		"more left than the limit":    {bucket: true, result: allowed(1, math.MaxInt64, math.MaxInt, 0), policy: `"api";q=1;w=9223372037`, rate: fmt.Sprintf(`"api";r=%d;t=9223372037`, most)},
	} {
		t.Run(name, func(t *testing.T) {
			opts := []httplimit.Option{httplimit.WithPolicy("api")}
			if c.bucket {
				opts = append(opts, httplimit.WithBucket())
			}
			want := http.Header{}
			for name, value := range map[string]string{"RateLimit-Policy": c.policy, "RateLimit": c.rate, "Retry-After": c.wait} {
				if value != "" {
					want.Set(name, value)
				}
			}
			require.Equal(t, want, fieldsOf(t, c.result, opts...))
		})
	}
}

// TestFieldsAreStructured reads random fields back.
func TestFieldsAreStructured(t *testing.T) {
	random := rand.New(rand.NewPCG(limitertest.Seed(t), 0))
	for range limitertest.Rounds(100_000, 2_000) {
		name := make([]byte, 1+random.IntN(20))
		for i := range name {
			name[i] = byte(' ' + random.IntN('~'-' '+1))
			if random.IntN(4) == 0 {
				name[i] = `"\`[random.IntN(2)]
			}
		}
		r := ratelimit.Result{
			Allowed: random.IntN(2) == 0, Limit: 1 + random.IntN(1e9), Window: time.Duration(random.Int64N(int64(24 * time.Hour))),
			RetryAfter: 1 + time.Duration(random.Int64N(int64(time.Hour))), ResetAfter: time.Duration(random.Int64N(int64(time.Hour))),
		}
		r.Remaining = random.IntN(r.Limit + 1)
		bucket := random.IntN(2) == 0
		opts := []httplimit.Option{httplimit.WithPolicy(string(name))}
		if bucket {
			opts = append(opts, httplimit.WithBucket())
		}
		h := fieldsOf(t, r, opts...)

		// The model, in rational numbers.
		ceil := func(n ...int64) int64 {
			x := new(big.Int).Mul(big.NewInt(n[0]), big.NewInt(n[1]))
			d := new(big.Int).Mul(big.NewInt(n[2]), big.NewInt(1e9))
			q, rest := new(big.Int).DivMod(x, d, new(big.Int))
			return q.Int64() + int64(rest.Sign())
		}
		policy := map[string]int64{"q": int64(r.Limit)}
		if r.Window >= time.Second {
			policy["w"] = ceil(int64(r.Window), 1, 1)
		}
		window := ceil(int64(r.ResetAfter), 1, 1)
		switch {
		case !r.Allowed:
			window = ceil(int64(r.RetryAfter), 1, 1)
		case bucket:
			window = max(1, ceil(int64(r.Remaining), int64(r.Window), int64(r.Limit)))
		}
		for field, parameters := range map[string]map[string]int64{
			"RateLimit-Policy": policy,
			"RateLimit":        {"r": int64(r.Remaining), "t": window},
		} {
			items, err := parseStructured(strings.Join(h.Values(field), ","))
			require.NoError(t, err, h)
			require.Equal(t, []structuredItem{{string(name), parameters}}, items, "%+v", r)
		}
	}
}

func TestXRateLimit(t *testing.T) {
	for _, c := range []struct {
		result ratelimit.Result
		want   http.Header
	}{
		{allowed(10, time.Minute, 9, 59*time.Second+1), http.Header{
			"X-Ratelimit-Limit": {"10"}, "X-Ratelimit-Remaining": {"9"}, "X-Ratelimit-Reset": {"60"},
		}},
		{denied(10, time.Minute, 0, 3*time.Second, time.Minute), http.Header{
			"X-Ratelimit-Limit": {"10"}, "X-Ratelimit-Remaining": {"0"}, "X-Ratelimit-Reset": {"3"}, "Retry-After": {"3"},
		}},
		{ratelimit.Result{Allowed: true}, http.Header{}},
	} {
		require.Equal(t, c.want, fieldsOf(t, c.result, httplimit.WithFields(httplimit.XRateLimit())))
	}
	both := fieldsOf(t, allowed(10, time.Minute, 9, time.Minute), httplimit.WithFields(httplimit.Draft11(), httplimit.XRateLimit()))
	require.Equal(t, http.Header{
		"Ratelimit-Policy": {`"default";q=10;w=60`}, "Ratelimit": {`"default";r=9;t=60`},
		"X-Ratelimit-Limit": {"10"}, "X-Ratelimit-Remaining": {"9"}, "X-Ratelimit-Reset": {"60"},
	}, both)
	require.Equal(t, http.Header{"Retry-After": {"3"}}, fieldsOf(t, denied(10, time.Minute, 0, 3*time.Second, time.Minute), httplimit.WithFields()))
}

func TestFieldsOfOnesOwn(t *testing.T) {
	own, err := httplimit.NewFields(func(h http.Header, d httplimit.Decision) {
		h.Set("quota-left", d.Policy)
	}, "quota-left")
	require.NoError(t, err)
	require.Equal(t, http.Header{"Quota-Left": {"default"}}, fieldsOf(t, ratelimit.Result{Allowed: true}, httplimit.WithFields(own)))

	for _, name := range []string{"", "a b", "a:", "a\n", "é", "\"a\""} {
		_, err := httplimit.NewFields(func(http.Header, httplimit.Decision) {}, "fine", name)
		require.ErrorIs(t, err, ratelimit.ErrInvalidConfig, name)
	}
	_, err = httplimit.NewFields(nil)
	require.ErrorIs(t, err, ratelimit.ErrInvalidConfig)
}

// TestWhichLimitersAreBuckets: only those of package ratelimit are known.
func TestWhichLimitersAreBuckets(t *testing.T) {
	type halves struct{ *ratelimit.TokenBucket }
	client, rate := limitertest.OnMiniredis(t).Client, ratelimit.PerSecond(1)
	token := ratelimit.Must(ratelimit.NewTokenBucket(client, rate, 30))
	for _, test := range []struct {
		limiter ratelimit.Limiter
		want    bool
	}{
		{token, true},
		{ratelimit.Must(ratelimit.NewLeakyBucket(client, rate, 3)), true},
		{ratelimit.Must(ratelimit.NewLocalTokenBucket(rate, 3)), true},
		{ratelimit.Must(ratelimit.NewFixedWindow(client, 3, time.Second)), false},
		{ratelimit.Must(ratelimit.NewAll(token)), false},
		{ratelimit.Must(ratelimit.NewFallback(token, ratelimit.AllowAll())), false},
		{halves{token}, false},
	} {
		var got []bool
		own := ratelimit.Must(httplimit.NewFields(func(_ http.Header, d httplimit.Decision) { got = append(got, d.Bucket) }))
		h := ratelimit.Must(httplimit.New(test.limiter, httplimit.Everyone(), httplimit.WithFields(own)))(served)
		do(h, newRequest("GET", "/"))
		require.Equal(t, []bool{test.want}, got, "%T", test.limiter)
	}
}

// TestBrowsersMayReadTheFields: only a request with an Origin comes from one.
func TestBrowsersMayReadTheFields(t *testing.T) {
	from := newRequest("GET", "/")
	from.Header.Set("Origin", "https://example.com")
	own, err := httplimit.NewFields(func(http.Header, httplimit.Decision) {}, "quota-left")
	require.NoError(t, err)
	for _, c := range []struct {
		want string
		opts []httplimit.Option
	}{
		{"Ratelimit, Ratelimit-Policy, Retry-After", nil},
		{"X-Ratelimit-Limit, X-Ratelimit-Remaining, X-Ratelimit-Reset, Quota-Left, Retry-After", []httplimit.Option{httplimit.WithFields(httplimit.XRateLimit(), own)}},
		{"Retry-After", []httplimit.Option{httplimit.WithFields()}},
	} {
		for _, result := range []ratelimit.Result{allowed(1, time.Second, 0, time.Second), denied(1, time.Second, 0, 1, 1)} {
			w := serve(t, &limitertest.Stub{Result: result}, from, c.opts...)
			require.Equal(t, []string{c.want}, w.Header().Values("Access-Control-Expose-Headers"))
		}
	}
	w := serve(t, &limitertest.Stub{Result: denied(1, time.Second, 0, 1, 1)}, newRequest("GET", "/"))
	require.Empty(t, w.Header().Values("Access-Control-Expose-Headers"))
}
