// Package middlewaretest has the tests that httplimit, grpclimit and connectlimit share: what they
// promise alike, each with types of its own.
//
//	Keys    the key functions of each of the three
//	Options the constructors of grpclimit and connectlimit
//	Calls   the conformance suite, by calls that go through grpclimit or connectlimit
package middlewaretest
