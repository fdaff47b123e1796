// Package redistest runs real Redis servers for tests, and breaks them on demand.
//
//	Start         one server: kill, restart, pause, passwords, TLS, a clock that can be stepped
//	Shared        one server for the whole test process, for tests that only need their own keys
//	StartCluster  three masters with a replica each; slots can be moved under live traffic
//	StartSentinel a master and a replica under three Sentinels
//	NewProxy      a TCP proxy in front of any of them: delays, lost replies, cut and hung connections
//	Through       a Dialer that leads clients of a Cluster or Sentinel through proxies
//	Executions    how many scripts a server has executed
//
// Everything is stopped by the test's cleanup, and on Linux the kernel kills the servers when the test process dies
// without one. Servers listen on the loopback interface only, on free ports, each in a directory of its own, so that
// any number of test processes can run side by side.
//
// A missing program skips the test, except when the environment says CI=true: there a test that cannot run has failed.
// REDISTEST_SERVER names another server program than redis-server, to run the same tests on other versions and forks; if
// it is not there, the test fails. docs/servers.md says how to get some.
package redistest
