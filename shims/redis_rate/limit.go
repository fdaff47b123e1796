package redis_rate

import (
	"fmt"
	"time"

	"github.com/tryacquire/ratelimit"
)

// A Limit is Rate events per Period, and Burst at once.
type Limit struct {
	Rate   int
	Burst  int
	Period time.Duration
}

// String is a text such as "10 req/s (burst 10)".
func (l Limit) String() string {
	period := l.Period.String()
	switch l.Period {
	case time.Second:
		period = "s"
	case time.Minute:
		period = "m"
	case time.Hour:
		period = "h"
	}
	return fmt.Sprintf("%d req/%s (burst %d)", l.Rate, period, l.Burst)
}

// IsZero reports whether l is Limit{}.
func (l Limit) IsZero() bool { return l == Limit{} }

// PerSecond is n events per second, and n at once.
func PerSecond(n int) Limit { return per(n, time.Second) }

// PerMinute is n events per minute, and n at once.
func PerMinute(n int) Limit { return per(n, time.Minute) }

// PerHour is n events per hour, and n at once.
func PerHour(n int) Limit { return per(n, time.Hour) }

func per(n int, d time.Duration) Limit { return Limit{Rate: n, Burst: n, Period: d} }

func (l Limit) rate() ratelimit.Rate { return ratelimit.Per(l.Rate, l.Period) }
