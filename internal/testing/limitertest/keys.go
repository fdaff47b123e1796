package limitertest

import "github.com/tryacquire/ratelimit"

// Keys are the keys of an algorithm.
type Keys struct {
	Tenants bool // each is a limit, and one of those who share it
}

// Of is the key for what tests call key. Different keys share nothing.
func (k Keys) Of(key string) string {
	if k.Tenants {
		return "{" + key + "}:tenant"
	}
	return key
}

// Ending is a key that ends as given, and is named by it: what tests take any text for.
func (k Keys) Ending(key string) string {
	if k.Tenants {
		return "{limits}" + key
	}
	return key
}

// Forget deletes all that is held under a key of a test.
func (k Keys) Forget(l ratelimit.Limiter, key string) error {
	if k.Tenants {
		if err := l.Reset(ctx, "{"+key+"}"); err != nil {
			return err
		}
	}
	return l.Reset(ctx, k.Of(key))
}
