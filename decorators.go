package ratelimit

// checkCached refuses to put a DenyCache around l where a Shadow would miss calls, or where
// the cache would hold back a raised limit. docs/composing.md has the order that works.
func checkCached(l Limiter) error {
	for at := l; at != nil; at = kindOf(at).inside {
		switch at.(type) {
		case *DenyCache:
			return nil // it has been checked
		case *Shadow:
			return invalidConfig("NewDenyCache: there is a Shadow inside, whose trial would not be asked about calls that the cache denies; " +
				"put the DenyCache inside: NewShadow(cached, trial, report)")
		case *Choice:
			if at != l {
				return invalidConfig("NewDenyCache: there is a Choice inside a %T, so that the cache would not see which limiter denied, "+
					"and would hold back a raised limit; put the DenyCache directly around the Choice", l)
			}
		}
	}
	return nil
}

// behindCaches returns the T of l, which is a limiter on Redis or a DenyCache around one.
// through makes the T of a cache from the T of the limiter inside it. function and cannot are
// for errors, and ofAll is what to do with an All.
func behindCaches[T any](l Limiter, function, cannot, ofAll string, through func(*DenyCache, T) T) (T, error) {
	var none T
	if kindOf(l).absent {
		return none, invalidConfig("%s: the limiter is nil", function)
	}
	if c, ok := l.(*DenyCache); ok {
		if c.limiter == nil {
			return none, errUnmade
		}
		inner, err := behindCaches(c.limiter, function, cannot, ofAll, through)
		if err != nil {
			return none, err
		}
		return through(c, inner), nil
	}
	if t, ok := l.(T); ok {
		return t, nil
	}
	remedy := "give a limiter on Redis, or a DenyCache around one"
	if kindOf(l).role == several {
		remedy = ofAll
	}
	return none, invalidConfig("%s: a %T %s; %s", function, l, cannot, remedy)
}
