package simulate_test

import (
	"fmt"
	"time"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/simulate"
)

// What would two limits have done to six requests within a minute?
func Example() {
	begin := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	requests := []time.Duration{0, 0, 0, 20 * time.Second, 40 * time.Second, 45 * time.Second}
	for _, algorithm := range []simulate.Algorithm{
		simulate.TokenBucket{Rate: ratelimit.PerMinute(3), Burst: 3},
		simulate.FixedWindow{Limit: 3, Window: time.Minute},
	} {
		limiter, err := simulate.New(algorithm)
		if err != nil {
			fmt.Println(err)
			return
		}
		denied := 0
		for _, after := range requests {
			result, err := limiter.TryAcquire(begin.Add(after), "192.0.2.1")
			if err != nil {
				fmt.Println(err)
				return
			}
			if !result.Allowed {
				denied++
			}
		}
		fmt.Printf("%T: %d of %d denied\n", algorithm, denied, len(requests))
	}
	// Output:
	// simulate.TokenBucket: 1 of 6 denied
	// simulate.FixedWindow: 3 of 6 denied
}
