package otellimit_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	exporter "go.opentelemetry.io/otel/exporters/prometheus"
	sdk "go.opentelemetry.io/otel/sdk/metric"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/testing/limitertest"
	"github.com/tryacquire/ratelimit/internal/testing/raceflag"
	"github.com/tryacquire/ratelimit/otellimit"
)

// A service has metrics that Prometheus can scrape.
type service struct {
	*otellimit.Metrics
	url string
}

func newService(t *testing.T) *service {
	registry := prometheus.NewRegistry()
	reader, err := exporter.New(exporter.WithRegisterer(registry))
	require.NoError(t, err)
	m, err := otellimit.New(otellimit.WithMeterProvider(sdk.NewMeterProvider(sdk.WithReader(reader))))
	require.NoError(t, err)
	server := httptest.NewServer(promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	t.Cleanup(server.Close)
	return &service{m, server.URL}
}

// scrape is what Prometheus gets, and what it reads in that.
func (s *service) scrape(t *testing.T) (string, map[string]*dto.MetricFamily) {
	t.Helper()
	response, err := http.Get(s.url)
	require.NoError(t, err)
	text, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	require.NoError(t, response.Body.Close())
	require.Equal(t, http.StatusOK, response.StatusCode)
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(text))
	require.NoError(t, err)
	return string(text), families
}

// users are keys that Redis decides on, and strangers keys that it cannot decide on any more.
var users, strangers = 2000, 3000

func init() {
	if raceflag.Enabled {
		users = 200 // miniredis is slow then
	}
}

// exercise makes calls of every kind, of thousands of users, on limiters that report to s. It
// returns how often the callers were allowed and denied.
func exercise(t *testing.T, s *service) (allowed, denied int) {
	server := miniredis.RunT(t)
	client := redis.NewClient(&redis.Options{Addr: server.Addr()})
	t.Cleanup(func() { _ = client.Close() })
	watched := ratelimit.WithObserver(s.Observe)
	api := ratelimit.Must(ratelimit.NewTokenBucket(client, ratelimit.PerHour(1), 2, ratelimit.WithName("api"), watched))
	breaker := &ratelimit.Breaker{Failures: 1, ProbeEvery: time.Hour, Name: "redis"}
	limiter := ratelimit.Must(ratelimit.NewFallback(ratelimit.Must(ratelimit.NewDenyCache(api, watched)),
		ratelimit.AllowAll(), ratelimit.WithBreaker(breaker), watched))
	var mu sync.Mutex
	var callers sync.WaitGroup
	for c := range 20 {
		callers.Go(func() {
			for i := c; i < users; i += 20 {
				for range 4 {
					r, err := limiter.TryAcquire(ctx, fmt.Sprint("user:", i))
					if err != nil {
						t.Error(err)
					}
					mu.Lock()
					if r.Allowed {
						allowed++
					} else {
						denied++
					}
					mu.Unlock()
				}
			}
		})
	}
	callers.Wait()

	jobs := ratelimit.Must(ratelimit.NewInFlight(client, 5, time.Minute, ratelimit.WithName("jobs"), watched))
	hold, _, err := jobs.TryAcquireN(ctx, "user:secret", 3)
	require.NoError(t, err)
	require.NotNil(t, hold)
	other, _, err := jobs.TryAcquire(ctx, "user:secret")
	require.NoError(t, err)
	require.NoError(t, other.Release(ctx))
	_, err = ratelimit.Wait(ctx, api, "user:secret")
	require.NoError(t, err)
	ticket, _, err := api.Estimate(ctx, "user:secret", 1)
	require.NoError(t, err)
	require.NoError(t, ticket.Settle(ctx, 0))
	require.Error(t, ticket.Settle(ctx, 0))
	s.Observe(ctx, ratelimit.Observation{Limiter: "api", Call: "lease", Outcome: ratelimit.OutcomeDone, Source: ratelimit.SourceRedis, N: 9, Taken: 8})

	server.Close()
	for i := range strangers {
		r, err := limiter.TryAcquire(ctx, fmt.Sprint("user:stranger:", i))
		require.NoError(t, err)
		require.True(t, r.Fallback)
	}
	return allowed, denied
}

// valueOf is the sum of a counter or gauge over the points with these labels.
func valueOf(f *dto.MetricFamily, pairs ...string) float64 {
	sum := 0.0
	for _, m := range f.GetMetric() {
		labels := map[string]string{}
		for _, l := range m.GetLabel() {
			labels[l.GetName()] = l.GetValue()
		}
		matches := true
		for i := 0; i < len(pairs); i += 2 {
			matches = matches && labels[pairs[i]] == pairs[i+1]
		}
		if matches {
			sum += m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	return sum
}

func TestScrape(t *testing.T) {
	s := newService(t)
	allowed, denied := exercise(t, s)
	require.Equal(t, []int{2 * users, 2 * users}, []int{allowed, denied})
	text, families := s.scrape(t)

	const policy, result, source = "ratelimit_policy", "ratelimit_result", "ratelimit_source"
	decisions := families["ratelimit_decisions_total"]
	for _, test := range []struct {
		want  int
		pairs []string
	}{
		{2*users + 2, []string{policy, "api", result, "allowed", source, "redis"}}, // and the wait and the estimate
		{users, []string{policy, "api", result, "denied", source, "redis"}},
		{users, []string{policy, "api", result, "denied", source, "memory"}},
		{strangers, []string{policy, "api", result, "allowed", source, "fallback"}},
		{strangers - 1, []string{policy, "api", "ratelimit_fallback_reason", "breaker_open"}},
		{1, []string{policy, "api", result, "failed", source, "redis", "error_type", "connection"}},
		{2, []string{policy, "jobs", result, "allowed", source, "redis"}},
		{4*users + strangers + 5, nil},
	} {
		require.EqualValues(t, test.want, valueOf(decisions, test.pairs...), "%v", test.pairs)
	}
	require.EqualValues(t, 4*users+strangers+5, valueOf(families["ratelimit_duration_seconds"]))
	require.EqualValues(t, 3*users+5, valueOf(families["ratelimit_batch_size"]))
	require.EqualValues(t, 1, valueOf(families["ratelimit_wait_duration_seconds"]))
	require.EqualValues(t, 3, valueOf(families["ratelimit_in_flight"], policy, "jobs"))
	require.EqualValues(t, 2, valueOf(families["ratelimit_breaker_state"], policy, "redis"), "open")
	require.EqualValues(t, 1, valueOf(families["ratelimit_breaker_changes_total"], policy, "redis", "ratelimit_breaker_state", "open"))
	require.EqualValues(t, 1, valueOf(families["ratelimit_operations_total"], "ratelimit_operation", "settle", result, "failed", "error_type", "settled"))
	require.EqualValues(t, 2*users+2+strangers+4, valueOf(families["ratelimit_permits_total"]))
	require.EqualValues(t, 8, valueOf(families["ratelimit_slices_total"], "ratelimit_operation", "lease"))

	t.Run("no key is a label", func(t *testing.T) {
		require.NotContains(t, text, "user")
		require.NotContains(t, text, "secret")
		known := map[string][]string{
			policy: {"api", "jobs", "redis"}, result: {"allowed", "denied", "failed", "done"}, source: {"none", "redis", "memory", "fallback"},
			"ratelimit_operation": {"settle", "release", "lease"}, "ratelimit_breaker_state": {"open"},
			"ratelimit_fallback_reason": {"connection", "breaker_open"}, "error_type": {"connection", "settled"},
			"otel_scope_name": {otellimit.ScopeName}, "otel_scope_version": {""}, "otel_scope_schema_url": {""},
		}
		series := 0
		for name, f := range families {
			if !strings.HasPrefix(name, "ratelimit_") {
				continue
			}
			series += len(f.GetMetric())
			for _, m := range f.GetMetric() {
				for _, l := range m.GetLabel() {
					require.Contains(t, known, l.GetName(), name)
					require.Contains(t, known[l.GetName()], l.GetValue(), "%s of %s", l.GetName(), name)
				}
			}
		}
		require.Less(t, series, 40)
	})
	t.Run("promlint", func(t *testing.T) {
		problems, err := promlint.New(strings.NewReader(text)).Lint()
		require.NoError(t, err)
		require.Empty(t, problems)
	})
	t.Run("dashboard", func(t *testing.T) { checkDashboard(t, families) })
}

var (
	selector = regexp.MustCompile(`([a-zA-Z_:][a-zA-Z0-9_:]*)\{([^}]*)\}`)
	matcher  = regexp.MustCompile(`([a-zA-Z_][a-zA-Z0-9_]*)(=~|!=|!~|=)"`)
	grouping = regexp.MustCompile(`\bby \(([^)]*)\)`)
	rule     = regexp.MustCompile("(?s)```promql\n(.*?)```")
	legend   = regexp.MustCompile(`\{\{([^}]*)\}\}`)
	bare     = regexp.MustCompile(`\bratelimit_[a-z_]*`)
)

// checkDashboard checks that every metric and every label that the dashboard and the guide
// query is one that the scrape has.
func checkDashboard(t *testing.T, families map[string]*dto.MetricFamily) {
	// labels are those of each series, such as ratelimit_duration_seconds_bucket.
	labels := map[string]map[string]bool{}
	for name, f := range families {
		all := map[string]bool{}
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				all[l.GetName()] = true
			}
		}
		if f.GetType() != dto.MetricType_HISTOGRAM {
			labels[name] = all
			continue
		}
		labels[name+"_sum"], labels[name+"_count"] = all, all
		labels[name+"_bucket"] = maps.Clone(all)
		labels[name+"_bucket"]["le"] = true
	}
	text, err := os.ReadFile("dashboard.json")
	require.NoError(t, err)
	var dashboard struct {
		Title      string
		UID        string
		Templating struct {
			List []struct {
				Name, Type string
				Query      json.RawMessage
			}
		}
		Panels []struct {
			ID      int
			Title   string
			Type    string
			GridPos struct{ X, Y, W, H int }
			Targets []struct{ RefID, Expr, LegendFormat string }
		}
	}
	require.NoError(t, json.Unmarshal(text, &dashboard))
	require.Equal(t, []string{"Rate limits", "ratelimit"}, []string{dashboard.Title, dashboard.UID})
	require.Len(t, dashboard.Templating.List, 2)
	var query struct{ Query string }
	require.NoError(t, json.Unmarshal(dashboard.Templating.List[1].Query, &query))
	require.Equal(t, "label_values(ratelimit_decisions_total{}, ratelimit_policy)", query.Query)

	queried := map[string]bool{}
	check := func(expr string) {
		t.Helper()
		found := selector.FindAllStringSubmatch(expr, -1)
		require.NotEmpty(t, found, expr)
		for _, s := range found {
			has := labels[s[1]]
			require.NotNil(t, has, "%s is not in the scrape: %s", s[1], expr)
			queried[strings.TrimSuffix(strings.TrimSuffix(strings.TrimSuffix(s[1], "_bucket"), "_sum"), "_count")] = true
			for _, m := range matcher.FindAllStringSubmatch(s[2], -1) {
				require.True(t, has[m[1]], "%s has no label %s: %s", s[1], m[1], expr)
			}
			for _, g := range grouping.FindAllStringSubmatch(expr, -1) {
				for _, label := range strings.Split(g[1], ", ") {
					require.True(t, has[label], "%s has no label %s: %s", s[1], label, expr)
				}
			}
		}
		rest := grouping.ReplaceAllString(selector.ReplaceAllString(expr, ""), "")
		require.Empty(t, bare.FindAllString(rest, -1), "a metric without a selector: %s", expr)
	}
	guide, err := os.ReadFile("../docs/observing.md")
	require.NoError(t, err)
	rules := rule.FindAllStringSubmatch(string(guide), -1)
	require.Len(t, rules, 3)
	for _, r := range rules {
		check(r[1])
	}
	clear(queried)
	ids, places := map[int]bool{}, map[[2]int]bool{}
	for _, p := range dashboard.Panels {
		require.False(t, ids[p.ID], "two panels are number %d", p.ID)
		require.False(t, places[[2]int{p.GridPos.X, p.GridPos.Y}], "two panels have the place of %q", p.Title)
		ids[p.ID], places[[2]int{p.GridPos.X, p.GridPos.Y}] = true, true
		require.NotEmpty(t, p.Targets, p.Title)
		for _, target := range p.Targets {
			check(target.Expr)
			for _, l := range legend.FindAllStringSubmatch(target.LegendFormat, -1) {
				require.Contains(t, target.Expr, l[1], "the legend of %q", p.Title)
			}
		}
	}
	var unused []string
	for name := range families {
		if strings.HasPrefix(name, "ratelimit_") && !queried[name] {
			unused = append(unused, name)
		}
	}
	require.Empty(t, slices.Sorted(slices.Values(unused)), "the dashboard shows all metrics")
}

func TestTheTextOfAnErrorIsNoLabel(t *testing.T) {
	s := newService(t)
	down := &limitertest.Stub{Answer: func(_ context.Context, key string, _ int) (r ratelimit.Result, _ error) {
		return r, errors.New("secret: " + key) // without a type that is known
	}}
	f := ratelimit.Must(ratelimit.NewFallback(down, down, ratelimit.WithObserver(s.Observe)))
	for i := range 100 {
		_, err := f.TryAcquire(ctx, fmt.Sprint("user:", i))
		require.ErrorContains(t, err, "secret")
	}
	text, families := s.scrape(t)
	require.NotContains(t, text, "secret")
	require.EqualValues(t, 100, valueOf(families["ratelimit_decisions_total"], "error_type", "_OTHER", "ratelimit_fallback_reason", "_OTHER"))
}
