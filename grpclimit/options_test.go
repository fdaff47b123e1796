package grpclimit_test

import (
	"testing"

	"github.com/tryacquire/ratelimit/grpclimit"
	"github.com/tryacquire/ratelimit/internal/testing/integrationtest"
)

func TestOptions(t *testing.T) {
	integrationtest.Options[grpclimit.Option, grpclimit.KeyFunc]{
		Constructors: map[string]integrationtest.Constructor[grpclimit.Option, grpclimit.KeyFunc]{
			"NewServer": integrationtest.Construct(grpclimit.NewServer),
			"NewClient": integrationtest.Construct(grpclimit.NewClient),
			"NewTap":    integrationtest.Construct(grpclimit.NewTap),
		},
		Key:        grpclimit.Everyone(),
		WithPolicy: grpclimit.WithPolicy, WithMaxWait: grpclimit.WithMaxWait, WithReceived: grpclimit.WithReceived, WithSent: grpclimit.WithSent,
		WithInFlight: grpclimit.WithInFlight, WithRetryAfter: grpclimit.WithRetryAfter, WithMaxPushback: grpclimit.WithMaxPushback, WithRetrySpread: grpclimit.WithRetrySpread, WithOutageRetryAfter: grpclimit.WithOutageRetryAfter,
		NoCost: grpclimit.WithCost(nil), NoSkip: grpclimit.WithSkip(nil),
		NoDenialHandler: grpclimit.WithDenialHandler(nil), NoErrorHandler: grpclimit.WithErrorHandler(nil),
	}.Test(t)
}
