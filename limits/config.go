package limits

import (
	"time"

	"github.com/tryacquire/ratelimit"
)

// A config is what a file says. It holds values only, so that two of them can be compared.
type config struct {
	limits map[string]limit
}

// A limit is what the file says about one name, with everything else in the file that it depends on.
type limit struct {
	prefix  string
	rule    rule            // of keys that have no plan
	plans   map[string]rule // of keys that have one
	all     []string        // the names of the limits that it is made of
	parts   []limit         // those limits
	outage  *outage         // nil: an outage is an error
	cache   *cache          // nil: none
	probing breaker         // if there is an outage policy
}

// holds reports whether the limit is of permits that are held.
func (l limit) holds() bool { return l.rule.algorithm == inFlight }

// A rule is a limit, or that of one plan.
type rule struct {
	constant    string // unlimited or denied
	algorithm   string
	name        string // of the limiter
	rates       []ratelimit.Rate
	size        int // burst, capacity or limit
	headroom    int
	refillEvery time.Duration
	aligned     bool
	align       time.Duration
	storage     string
	subWindows  int
	resolution  time.Duration
	every       string
	firstDay    string
	day         int
	zone        string
	lease       time.Duration
}

const (
	unlimited   = "unlimited"
	denied      = "denied"
	lastAnswers = "last_answers"
)

// An outage says what happens when Redis does not answer.
type outage struct {
	fallback  string // allow, deny or local
	instances int
	begin     string // full, empty or last_answers
	budget    time.Duration
}

// A breaker is that of Redis, for all limits.
type breaker struct {
	failures   int
	probeEvery time.Duration
}

// A cache is what a DenyCache has.
type cache struct {
	maxKeys   int
	maxDenial time.Duration
}
