package observe_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"strconv"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/observe"
)

// An admin page that shows which keys are denied most.
func ExampleTop() {
	top := ratelimit.Must(observe.NewTop(1000))
	limiter := ratelimit.Must(ratelimit.NewLocalTokenBucket(ratelimit.PerHour(1), 2,
		ratelimit.WithName("api"), ratelimit.WithObserver(top.Observe)))

	http.HandleFunc("/admin/limited", func(w http.ResponseWriter, r *http.Request) {
		n, _ := strconv.Atoi(r.FormValue("n"))
		_ = json.NewEncoder(w).Encode(top.Top(min(n, 100)))
	})

	for range 5 {
		_, _ = limiter.TryAcquire(context.Background(), "user:42")
		_, _ = limiter.TryAcquireN(context.Background(), "user:7", 2)
	}
	for _, k := range top.Top(10) {
		fmt.Printf("%s %s: %d denials, at most %d too many\n", k.Limiter, k.Key, k.Count, k.Error)
	}
	// Output:
	// api user:7: 4 denials, at most 0 too many
	// api user:42: 3 denials, at most 0 too many
}

// One line for a key in a minute, with a hash of the key.
func ExampleLog() {
	logger := slog.New(slog.NewTextHandler(os.Stdout, &slog.HandlerOptions{
		ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey || a.Key == "retry_after" {
				return slog.Attr{}
			}
			return a
		},
	}))
	denials := ratelimit.Must(observe.NewLog(logger, observe.WithKeys(observe.HashedKeys)))
	limiter := ratelimit.Must(ratelimit.NewLocalTokenBucket(ratelimit.PerHour(1), 1,
		ratelimit.WithName("api"), ratelimit.WithObserver(denials.Observe)))

	for range 100 {
		_, _ = limiter.TryAcquire(context.Background(), "user:42")
	}
	// Output:
	// level=WARN msg="rate limit exceeded" limiter=api source=local key.sha256=ea3fd43be1e57d62 n=1 limit=1 window=1h0m0s
}
