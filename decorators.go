package ratelimit

// checkCached refuses to put a DenyCache around l where a Shadow would miss calls, or where
// the cache would hold back a raised limit. docs/composing.md has the order that works.
func checkCached(l Limiter) error {
	for at := any(l); at != nil; at = kindOf(at).inside {
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
