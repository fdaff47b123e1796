// Package integration is what httplimit, grpclimit and connectlimit have in common: what they ask of
// a limiter, and how they read its answers and errors. The last two are modules of their own, so
// what they use of it stays compatible with their older releases.
package integration

import "github.com/tryacquire/ratelimit"

// MostPolicyName is how many bytes the name of a policy has at most.
const MostPolicyName = 128

// IsPrintable reports whether name is printable ASCII.
func IsPrintable(name string) bool {
	for i := range len(name) {
		if name[i] < ' ' || name[i] > '~' {
			return false
		}
	}
	return true
}

// IsPolicyName reports whether name can be that of a policy.
func IsPolicyName(name string) bool {
	return name != "" && len(name) <= MostPolicyName && IsPrintable(name)
}

// IsOutageDenial reports whether a Fallback has denied because of an outage.
func IsOutageDenial(r ratelimit.Result) bool { return !r.Allowed && r.Fallback && r.Limit == 0 }
