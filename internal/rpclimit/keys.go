package rpclimit

import (
	"context"
	"net/http"

	"github.com/tryacquire/ratelimit/httplimit"
)

// User is the KeyFunc User of both packages.
func User[C any](user func(context.Context) string) (func(context.Context, C) (string, error), error) {
	key, err := httplimit.User(user)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, _ C) (string, error) {
		return key(new(http.Request).WithContext(ctx))
	}, nil
}

// Combined makes one key function of several, as package httplimit does: how is its Join or
// FirstOf. The call is in the context of the request on the way there.
func Combined[C any, K ~func(context.Context, C) (string, error)](how func(...httplimit.KeyFunc) (httplimit.KeyFunc, error), keys []K) (K, error) {
	adapted := make([]httplimit.KeyFunc, len(keys))
	for i, key := range keys {
		if key != nil {
			adapted[i] = func(r *http.Request) (string, error) {
				call, _ := r.Context().Value(callKey{}).(C)
				return key(r.Context(), call)
			}
		}
	}
	key, err := how(adapted...)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, call C) (string, error) {
		return key(new(http.Request).WithContext(context.WithValue(ctx, callKey{}, call)))
	}, nil
}

type callKey struct{}
