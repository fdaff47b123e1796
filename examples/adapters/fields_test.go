package adapters

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/dunglas/httpsfv"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/httplimit"
	"github.com/tryacquire/ratelimit/internal/testing/limitertest"
)

// The fields of httplimit, read by a parser of structured fields that others have written.

// A policy is a limit of an example.
type policy struct {
	name, unit string
	result     ratelimit.Result
}

// serve returns the answer of a service with these limits, one inside the other.
func serve(t *testing.T, policies ...policy) *httptest.ResponseRecorder {
	t.Helper()
	var h http.Handler = http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})
	for i := len(policies) - 1; i >= 0; i-- {
		p := policies[i]
		opts := []httplimit.Option{httplimit.WithPolicy(p.name)}
		if p.unit != "" {
			opts = append(opts, httplimit.WithUnit(p.unit))
		}
		h = ratelimit.Must(httplimit.New(&limitertest.Stub{Result: p.result}, httplimit.Everyone(), opts...))(h)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
	return w
}

// An item is a member of a list.
type item struct {
	name   string
	params map[string]any
}

// parse reads a field as RFC 9651 has it, without the parameters of names.
func parse(t *testing.T, lines []string, without ...string) (items []item) {
	t.Helper()
	list, err := httpsfv.UnmarshalList(lines)
	require.NoError(t, err, "%q", lines)
	for _, member := range list {
		one, ok := member.(httpsfv.Item)
		require.True(t, ok, "%q", lines)
		name, ok := one.Value.(string)
		require.True(t, ok, "not a String: %q", lines)
		i := item{name, map[string]any{}}
		for _, param := range one.Params.Names() {
			i.params[param], _ = one.Params.Get(param)
		}
		for _, param := range without {
			delete(i.params, param)
		}
		items = append(items, i)
	}
	return items
}

func left(limit int, window time.Duration, remaining int, reset time.Duration) ratelimit.Result {
	return ratelimit.Result{Allowed: true, Limit: limit, Window: window, Remaining: remaining, ResetAfter: reset}
}

// TestTheExamplesOfTheDraft: what the draft has in its examples is what a service sends that has the
// limits that they are about. Partition keys (pk) are left out: they would tell a client its key.
func TestTheExamplesOfTheDraft(t *testing.T) {
	const day = 24 * time.Hour
	for _, c := range []struct {
		field    string
		draft    string
		policies []policy
	}{
		{"RateLimit-Policy", `"burst";q=100;w=60,"daily";q=1000;w=86400`, []policy{{"burst", "", left(100, time.Minute, 1, 1)}, {"daily", "", left(1000, day, 1, 1)}}},
		{"RateLimit-Policy", `"default";q=100;w=10`, []policy{{"default", "", left(100, 10*time.Second, 1, 1)}}},
		{"RateLimit-Policy", `"permin";q=50;w=60,"perhr";q=1000;w=3600`, []policy{{"permin", "", left(50, time.Minute, 1, 1)}, {"perhr", "", left(1000, time.Hour, 1, 1)}}},
		{"RateLimit-Policy", `"peruser";q=100;w=60;pk=:cHsdsRa894==:`, []policy{{"peruser", "", left(100, time.Minute, 1, 1)}}},
		{"RateLimit-Policy", `"peruser";q=65535;qu="content-bytes";w=10;pk=:sdfjLJUOUH==:`, []policy{{"peruser", "content-bytes", left(65535, 10*time.Second, 1, 1)}}},
		{"RateLimit", `"default";r=50;t=30`, []policy{{"default", "", left(100, time.Minute, 50, 30*time.Second)}}},
		{"RateLimit", `"default";r=300000000;t=60;pk=:QXBwLTk5OQ==:`, []policy{{"default", "content-bytes", left(500_000_000, time.Minute, 300_000_000, time.Minute)}}},
		{"RateLimit", `"fixedwindow";r=99;t=50`, []policy{{"fixedwindow", "", left(100, time.Minute, 99, 50*time.Second)}}},
		{"RateLimit-Policy", `"fixedwindow";q=100;w=60`, []policy{{"fixedwindow", "", left(100, time.Minute, 99, 50*time.Second)}}},
		{"RateLimit-Policy", `"hour";q=1000;w=3600, "day";q=5000;w=86400`, []policy{{"hour", "", left(1000, time.Hour, 1, 1)}, {"day", "", left(5000, day, 100, 10*time.Hour)}}},
		{"RateLimit", `"dayLimit";r=100;t=36000`, []policy{{"dayLimit", "", left(5000, day, 100, 10*time.Hour)}}},
		{"RateLimit", `"default";r=0;t=5`, []policy{{"default", "", ratelimit.Result{Limit: 10, Window: time.Minute, RetryAfter: 5 * time.Second, ResetAfter: time.Minute}}}},
	} {
		w := serve(t, c.policies...)
		require.Equal(t, parse(t, []string{c.draft}, "pk"), parse(t, w.Header().Values(c.field)), c.draft)
	}

	// The problem types, as members: their order means nothing.
	limited := ratelimit.Result{Limit: 10, Window: time.Minute, RetryAfter: 5 * time.Second, ResetAfter: time.Minute}
	w := serve(t, policy{"default", "", limited})
	require.Equal(t, 429, w.Code)
	require.Equal(t, "5", w.Header().Get("Retry-After"))
	require.JSONEq(t, `{"type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
		"title": "Request cannot be satisfied as assigned quota has been exceeded", "status": 429,
		"violated-policies": ["default"]}`, w.Body.String())
}

// TestSeveralPoliciesInAProblem: the draft's "daily" and "bandwidth", by one middleware.
func TestSeveralPoliciesInAProblem(t *testing.T) {
	server := miniredis.RunT(t)
	server.SetTime(time.Unix(1_763_670_000, 0))
	client := redis.NewClient(&redis.Options{Addr: server.Addr()})
	t.Cleanup(func() { _ = client.Close() })
	daily := ratelimit.Must(ratelimit.NewFixedWindow(client, 1, 24*time.Hour, ratelimit.WithName("daily")))
	bandwidth := ratelimit.Must(ratelimit.NewTokenBucket(client, ratelimit.PerMinute(1), 1, ratelimit.WithName("bandwidth")))
	hourly := ratelimit.Must(ratelimit.NewFixedWindow(client, 9, time.Hour, ratelimit.WithName("hourly")))
	running := ratelimit.Must(ratelimit.NewInFlight(client, 5, time.Hour, ratelimit.WithName("running")))
	h := ratelimit.Must(httplimit.NewAll(
		httplimit.Limit(daily, httplimit.Everyone()),
		httplimit.Limit(bandwidth, httplimit.Everyone(), httplimit.WithUnit("content-bytes")),
		httplimit.Limit(hourly, httplimit.Everyone()),
		httplimit.InFlight(running, httplimit.Everyone()),
	))(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/", nil))
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
	require.Equal(t, 429, w.Code)
	var body map[string]any
	require.NoError(t, json.Unmarshal(w.Body.Bytes(), &body))
	require.Equal(t, map[string]any{
		"type":  "https://iana.org/assignments/http-problem-types#quota-exceeded",
		"title": "Request cannot be satisfied as assigned quota has been exceeded", "status": 429.0,
		"violated-policies": []any{"daily", "bandwidth"},
	}, body)
	require.Equal(t, []item{
		{"daily", map[string]any{"q": int64(1), "w": int64(86400)}},
		{"bandwidth", map[string]any{"q": int64(1), "qu": "content-bytes", "w": int64(60)}},
		{"hourly", map[string]any{"q": int64(9), "w": int64(3600)}},
		{"running", map[string]any{"q": int64(5), "qu": "concurrent-requests"}},
	}, parse(t, w.Header().Values("RateLimit-Policy")))
	require.Equal(t, []item{
		{"daily", map[string]any{"r": int64(0), "t": int64(86400)}},
		{"bandwidth", map[string]any{"r": int64(0), "t": int64(60)}},
		{"hourly", map[string]any{"r": int64(8), "t": int64(3600)}},
		{"running", map[string]any{"r": int64(5)}},
	}, parse(t, w.Header().Values("RateLimit")))
}

// TestRandomFieldsAreStructured: any name and any numbers.
func TestRandomFieldsAreStructured(t *testing.T) {
	seed := rand.Uint64()
	if given, err := strconv.ParseUint(os.Getenv("RATELIMIT_SEED"), 10, 64); err == nil {
		seed = given
	}
	t.Logf("RATELIMIT_SEED=%d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	text := func() string {
		var b strings.Builder
		for range 1 + random.IntN(40) {
			b.WriteByte(byte(' ' + random.IntN('~'-' '+1)))
		}
		return b.String()
	}
	for range 2000 {
		p := policy{name: text(), result: left(1+random.IntN(1e9), time.Second+time.Duration(random.Int64N(int64(time.Hour))), 0, time.Duration(random.Int64N(int64(time.Hour))))}
		p.result.Remaining = random.IntN(p.result.Limit + 1)
		want := map[string]any{"q": int64(p.result.Limit), "w": int64((p.result.Window + time.Second - 1) / time.Second)}
		if random.IntN(2) == 0 {
			p.unit = text()
			want["qu"] = p.unit
		}
		h := serve(t, p).Header()
		require.Equal(t, []item{{p.name, want}}, parse(t, h.Values("RateLimit-Policy")), fmt.Sprintf("%+v", p))
		require.Equal(t, []item{{p.name, map[string]any{
			"r": int64(p.result.Remaining), "t": int64((p.result.ResetAfter + time.Second - 1) / time.Second),
		}}}, parse(t, h.Values("RateLimit")), fmt.Sprintf("%+v", p))
	}
}
