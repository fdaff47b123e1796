// Package integrationtest has the tests that httplimit, grpclimit and connectlimit share: of what they
// promise alike, each with types of its own. The types and functions are parameters.
//
//	Keys                  the key functions of all three
//	Options               the constructors of grpclimit and connectlimit, and their options
//	Calls                 the conformance suite, by calls through grpclimit or connectlimit
//	Waits                 calls of grpclimit and connectlimit that wait for their permits
//	Failures              the errors of grpclimit and connectlimit without a decision
//	DeadlinesAreNoOutages deadlines, in all three
package integrationtest
