// Package redistest runs real Redis servers for tests, and breaks them on demand.
//
//	Start         one server: kill, restart, pause, passwords, TLS, a clock that can be stepped
//	Shared        one server for the whole test process, for tests that only need their own keys
//	StartCluster  three masters with a replica each; slots can be moved under live traffic
//	StartSentinel a master and a replica under three Sentinels
//	NewProxy      a TCP proxy in front of any of them: delays, lost replies, cut and hung connections
//	Through       a Dialer that connects clients of a Cluster or Sentinel through proxies
//	Executions    how many scripts a server has executed
//
// The test's cleanup stops everything. On Linux the kernel kills the servers if the test process dies without its
// cleanup. Servers listen on the loopback interface only, on free ports, each in a directory of its own, so that any
// number of test processes can run side by side.
//
// If a program is missing, the test is skipped; with CI=true in the environment it fails. REDISTEST_SERVER names another
// server program than redis-server, to run the same tests on other versions and forks; if that program is missing, the
// test fails. docs/servers.md says how to get such programs.
package redistest
