package connectlimit_test

import (
	"testing"

	"github.com/tryacquire/ratelimit/connectlimit"
	"github.com/tryacquire/ratelimit/internal/testing/integrationtest"
)

func TestOptions(t *testing.T) {
	integrationtest.Options[connectlimit.Option, connectlimit.KeyFunc]{
		Constructors: map[string]integrationtest.Constructor[connectlimit.Option, connectlimit.KeyFunc]{
			"NewServer": integrationtest.Construct(connectlimit.NewServer),
			"NewClient": integrationtest.Construct(connectlimit.NewClient),
		},
		Key:        connectlimit.Everyone(),
		WithPolicy: connectlimit.WithPolicy, WithMaxWait: connectlimit.WithMaxWait, WithReceived: connectlimit.WithReceived, WithSent: connectlimit.WithSent,
		WithInFlight: connectlimit.WithInFlight, WithRetryAfter: connectlimit.WithRetryAfter, WithMaxPushback: connectlimit.WithMaxPushback, WithRetrySpread: connectlimit.WithRetrySpread, WithOutageRetryAfter: connectlimit.WithOutageRetryAfter,
		NoCost: connectlimit.WithCost(nil), NoSkip: connectlimit.WithSkip(nil),
		NoDenialHandler: connectlimit.WithDenialHandler(nil), NoErrorHandler: connectlimit.WithErrorHandler(nil),
	}.Test(t)
}
