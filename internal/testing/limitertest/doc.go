// Package limitertest is what the tests of this module share: the limiters to test, the places to test them in, and a
// clock.
//
//	Variants   the ways to limit to 3 a second, with the answers that each must give
//	Families   random configurations of each limiter, with the models that they must agree with
//	Privileges the limiters by the commands that a Redis user needs for them
//	Stages     the servers, the fake one and the clients that the conformance suite runs on
//	Clock      a clock that a test sets
//	Stub       a limiter whose answers a test sets; package fakes has it, and stand-ins for clients
//
// It uses the exported surface of ratelimit only. The tests that use it are in packages such as ratelimit_test: a test in
// package ratelimit itself could not import it, because that would be an import cycle.
package limitertest
