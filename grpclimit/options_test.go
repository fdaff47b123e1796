package grpclimit_test

import (
	"testing"

	"github.com/tryacquire/ratelimit/grpclimit"
	"github.com/tryacquire/ratelimit/internal/middlewaretest"
)

func TestOptions(t *testing.T) {
	middlewaretest.Options[grpclimit.Option, grpclimit.KeyFunc]{
		Constructors: map[string]middlewaretest.Constructor[grpclimit.Option, grpclimit.KeyFunc]{
			"NewServer": middlewaretest.Construct(grpclimit.NewServer),
			"NewClient": middlewaretest.Construct(grpclimit.NewClient),
			"NewTap":    middlewaretest.Construct(grpclimit.NewTap),
		},
		Key:        grpclimit.Everyone(),
		WithPolicy: grpclimit.WithPolicy, WithMaxWait: grpclimit.WithMaxWait, WithReceived: grpclimit.WithReceived, WithSent: grpclimit.WithSent,
		WithInFlight: grpclimit.WithInFlight, WithRetryAfter: grpclimit.WithRetryAfter, WithMaxPushback: grpclimit.WithMaxPushback,
		NoCost: grpclimit.WithCost(nil), NoSkip: grpclimit.WithSkip(nil),
		NoDenialHandler: grpclimit.WithDenialHandler(nil), NoErrorHandler: grpclimit.WithErrorHandler(nil),
	}.Test(t)
}
