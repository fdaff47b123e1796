package main

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
)

const stamp = `[17/May/2015:10:05:03 +0000] "GET /a?b HTTP/1.1" 200 1`

// TestClients: the client is never another address than the one that httplimit would limit; a line that does
// not show it is an error.
func TestClients(t *testing.T) {
	for _, tt := range []struct {
		name, line       string
		trust            []string
		client, err      string
		format           string
		path, agent, key string
	}{
		{name: "common", line: `192.0.2.1 - - ` + stamp, client: "192.0.2.1", format: formatCommon},
		{name: "a /64", line: `2001:db8::7 - - ` + stamp, client: "2001:db8::/64", format: formatCommon},
		{name: "NAT64", line: `64:ff9b::192.0.2.1 - - ` + stamp, client: "192.0.2.1", format: formatCommon},
		{name: "a port", line: `192.0.2.1:443 - - ` + stamp, client: "192.0.2.1", format: formatCommon},
		{name: "IPv6 and a port", line: `[2001:db8::7]:443 - - ` + stamp, client: "2001:db8::/64", format: formatCommon},
		{name: "brackets", line: `[2001:db8::7] - - ` + stamp, client: "2001:db8::/64", format: formatCommon},
		{name: "a host", line: `Host-1.test - - ` + stamp, client: "Host-1.test", format: formatCommon},
		{name: "a virtual host", line: `www.test:443 192.0.2.1 - - ` + stamp, client: "192.0.2.1", format: formatVhost},
		{name: "a virtual host without a port", line: `www.test 2001:db8::7 - - ` + stamp, client: "2001:db8::/64", format: formatVhost},
		{name: "a virtual host that is an address", line: `192.0.2.9:443 192.0.2.1 - - ` + stamp, client: "192.0.2.1", format: formatVhost},
		{name: "a virtual host and a host", line: `www.test:443 host.test - - ` + stamp, err: "it does not start with a client address"},
		{name: "no client", line: `- - - ` + stamp, err: "it does not start with a client address"},
		{name: "a list", line: `192.0.2.1, 10.0.0.1 - - ` + stamp, err: "it starts with a list of addresses; log the connection's address there, and X-Forwarded-For behind the user agent"},
		{name: "a list without a space", line: `192.0.2.1,10.0.0.1 - - ` + stamp, err: "it does not start with a client address"},

		{name: "forwarded, and nobody trusted", line: `10.0.0.1 - - ` + stamp + ` "-" "x" "192.0.2.1"`, client: "10.0.0.1", format: formatCommon},
		{name: "forwarded", line: `10.0.0.1 - - ` + stamp + ` "-" "x" "192.0.2.1"`, trust: []string{"10.0.0.0/8"}, client: "192.0.2.1", format: formatCommon},
		{name: "forwarded twice", line: `10.0.0.1 - - ` + stamp + ` "-" "x" "203.0.113.9, 192.0.2.1, 10.0.0.2"`, trust: []string{"10.0.0.0/8"}, client: "192.0.2.1", format: formatCommon},
		{name: "forwarded by a stranger", line: `198.51.100.1 - - ` + stamp + ` "-" "x" "192.0.2.1"`, trust: []string{"10.0.0.0/8"}, client: "198.51.100.1", format: formatCommon},
		{name: "not forwarded", line: `10.0.0.1 - - ` + stamp + ` "-" "x" "-"`, trust: []string{"10.0.0.0/8"}, client: "10.0.0.1", format: formatCommon},
		{name: "forwarded is not logged", line: `10.0.0.1 - - ` + stamp + ` "-" "x"`, trust: []string{"10.0.0.0/8"}, err: "it comes from a network of --trust, and X-Forwarded-For is not behind its user agent"},
		{name: "forwarded is not logged, IPv6", line: `fd00::1 - - ` + stamp + ` "-" "x"`, trust: []string{"fd00::/8"}, err: "it comes from a network of --trust, and X-Forwarded-For is not behind its user agent"},
		{name: "forwarded nonsense", line: `10.0.0.1 - - ` + stamp + ` "-" "x" "unknown"`, trust: []string{"10.0.0.0/8"}, err: `the request's key is malformed: X-Forwarded-For has "unknown" where the proxy 10.0.0.1 should have written an IP address`},
		{name: "forwarded, of a virtual host", line: `www.test:80 10.0.0.1 - - ` + stamp + ` "-" "x" "192.0.2.1"`, trust: []string{"10.0.0.0/8"}, client: "192.0.2.1", format: formatVhost},

		{
			name: "JSON of nginx", line: `{"time_iso8601":"2015-05-17T12:05:03+02:00","remote_addr":"192.0.2.1","request":"GET /a?b HTTP/1.1","http_user_agent":"x"}`,
			client: "192.0.2.1", format: "JSON, clients from remote_addr", agent: "x",
		},
		{
			name: "JSON of Caddy", line: `{"ts":1431857103.25,"request":{"remote_ip":"10.0.0.1","uri":"/a?b","headers":{"User-Agent":["x"],"X-Forwarded-For":["203.0.113.9", "192.0.2.1"]}}}`,
			trust: []string{"10.0.0.0/8"}, client: "192.0.2.1", format: "JSON, clients from request.remote_ip", agent: "x",
		},
		{
			name: "JSON of Traefik", line: `{"ClientHost":"2001:db8::7","RequestPath":"/a?b","StartUTC":"2015-05-17T10:05:03.5Z","request_User-Agent":"x"}`,
			client: "2001:db8::/64", format: "JSON, clients from ClientHost", agent: "x",
		},
		{
			name: "JSON with the time of common logs, and milliseconds", line: `{"time_local":"17/May/2015:10:05:03 +0000","client_ip":"192.0.2.1","path":"/a"}`,
			client: "192.0.2.1", format: "JSON, clients from client_ip",
		},
		{name: "JSON in milliseconds", line: `{"timestamp":1431857103000,"ip":"192.0.2.1","url":"/a"}`, client: "192.0.2.1", format: "JSON, clients from ip"},
		{name: "JSON cut short", line: `{"timestamp":14318`, err: "it is no object of JSON"},
		{name: "JSON without a client", line: `{"timestamp":1431857103000,"url":"/a"}`, err: "no field has the client's address: " + strings.Join(jsonClients, ", ")},
		{name: "JSON without a time", line: `{"ip":"192.0.2.1"}`, err: "no field has the time: " + strings.Join(jsonTimes, ", ")},
		{name: "JSON of another time", line: `{"ip":"192.0.2.1","time":"noon"}`, err: `time: the time "noon" is not like 17/May/2015:10:05:03 +0000`},
		{name: "JSON far ahead", line: `{"ip":"192.0.2.1","ts":99999999999}`, err: `ts: the time "99999999999" is not between 1970 and 2096`},
		{name: "JSON of a socket", line: `{"ip":"unix:","ts":1431857103}`, err: "it does not start with a client address"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c, err := newClients(64, tt.trust)
			require.NoError(t, err)
			for range 2 { // the second time it is known
				r, err := parseLine([]byte(tt.line))
				if err == nil {
					err = c.resolve(&r)
				}
				if tt.err != "" {
					require.EqualError(t, err, tt.err)
					continue
				}
				require.NoError(t, err)
				require.Equal(t, tt.client, string(keyers["ip"](nil, r)))
				require.Equal(t, tt.format, r.format)
				require.Equal(t, "/a", string(keyers["path"](nil, r)))
				require.Equal(t, time.Date(2015, 5, 17, 10, 5, 3, 0, time.UTC), time.UnixMicro(r.at).UTC().Truncate(time.Second))
				if tt.agent != "" {
					require.Equal(t, tt.agent, string(r.agent))
				}
			}
		})
	}
}

func TestIPv6Prefix(t *testing.T) {
	for bits, want := range map[int]string{48: "2001:db8:1::/48", 56: "2001:db8:1::/56", 128: "2001:db8:1:2::7"} {
		c, err := newClients(bits, nil)
		require.NoError(t, err)
		r := request{client: []byte("2001:db8:1:2::7")}
		require.NoError(t, c.resolve(&r))
		require.Equal(t, want, string(r.client))
	}
}

// TestKnownAddressesAreBounded: the memory does not grow with the log.
func TestKnownAddressesAreBounded(t *testing.T) {
	c := ratelimit.Must(newClients(64, nil))
	for i := range maxKnown + 10 {
		r := request{client: []byte{'h', 'a' + byte(i%26), 'a' + byte(i/26%26), 'a' + byte(i/676%26), 'a' + byte(i/17576%26)}}
		require.NoError(t, c.resolve(&r))
	}
	require.LessOrEqual(t, len(c.known), maxKnown)
}

// TestFormatsAreReported: what is not common or combined, and what was left out.
func TestFormatsAreReported(t *testing.T) {
	got := runOn(t, strings.Join([]string{
		`192.0.2.1 - - ` + stamp,
		`www.test:443 192.0.2.1 - - ` + stamp,
		`www.test:443 192.0.2.1 - - ` + stamp,
		`{"ts":1431857103,"ip":"192.0.2.1"}`,
		`192.0.2.1, 10.0.0.1 - - ` + stamp,
	}, "\n"))
	require.Equal(t, exitDone, got.code)
	require.True(t, strings.HasPrefix(got.stdout, `Replayed standard input: 4 requests from 1 client
Formats of lines: 2 common or combined behind a virtual host; 1 JSON, clients from ip; 1 common or combined
made from 2015-05-17 10:05:03 +0000 to 2015-05-17 10:05:03 +0000 (within one second)
Left out 1 line that cannot be read:
  line 5: it starts with a list of addresses; log the connection's address there,`), got.stdout)
}

// TestSweep: the limits of a row, in rising order.
func TestSweep(t *testing.T) {
	var log strings.Builder
	for _, at := range handLog {
		log.WriteString(logLine("192.0.2.1", at))
	}
	got := runOn(t, log.String(), "--sweep", "rate=60/h,3/m,2/m", "--sweep", "burst=4,3")
	require.Equal(t, result{exitDone, `Replayed standard input: 13 requests from 1 client
made from 2015-05-17 12:00:30 +0000 to 2015-05-17 12:03:00 +0000 (2 minutes 30 seconds)

The limits to pick from, for each client:
  60/h burst 3: 60 per hour, up to 3 at once
  60/h burst 4: 60 per hour, up to 4 at once
  2/m burst 3: 2 per minute, up to 3 at once
  2/m burst 4: 2 per minute, up to 4 at once
  3/m burst 3: 3 per minute, up to 3 at once
  3/m burst 4: 3 per minute, up to 4 at once

                requests  allowed  denied  share denied  clients denied
  60/h burst 3        13        5       8        61.5 %          1 of 1
  60/h burst 4        13        6       7        53.8 %          1 of 1
  2/m burst 3         13        8       5        38.5 %          1 of 1
  2/m burst 4         13        9       4        30.8 %          1 of 1
  3/m burst 3         13       10       3        23.1 %          1 of 1
  3/m burst 4         13       11       2        15.4 %          1 of 1

To see which clients are denied and when, replay one of these limits, or write a page (--html).
`, ""}, got)
}

// TestThreeLimits have a column each.
func TestThreeLimits(t *testing.T) {
	got := runOn(t, goldenLog(), "--algorithm", "token-bucket,fixed-window", "--rate", "3/m", "--vs", "--burst 1", "--top", "1")
	require.Equal(t, exitDone, got.code, got.stderr)
	require.Contains(t, got.stdout, `
                  requests  allowed  denied  share denied  clients denied
  token-bucket A        19       14       5        26.3 %          2 of 3
  fixed-window          19       13       6        31.6 %          2 of 3
  token-bucket C        19        9      10        52.6 %          2 of 3

Not decided alike by all: 9 of 19 requests (47.4 %)

The clients denied most (1 of 2; --top shows more):
  denied by  requests  token-bucket A  fixed-window  token-bucket C
  192.0.2.1        13               3             4               6
`)
}

// TestReplayInJSON: the numbers of the report.
func TestReplayInJSON(t *testing.T) {
	got := runOn(t, goldenLog(), "--rate", "3/m", "--json", "--top", "1")
	require.Equal(t, exitDone, got.code, got.stderr)
	var d map[string]any
	require.NoError(t, json.Unmarshal([]byte(got.stdout), &d))
	require.Positive(t, d["took_seconds"])
	require.Len(t, d["buckets"], 151)
	delete(d, "took_seconds")
	delete(d, "buckets")
	written, err := json.Marshal(d)
	require.NoError(t, err)
	require.JSONEq(t, `{
		"sources": ["standard input"], "formats": [{"name": "common or combined", "lines": 19}], "key": "client",
		"lines": 20, "requests": 19, "skipped": 1, "keys": 3, "sweep": false, "decided_differently": 0, "bucket_seconds": 1,
		"samples_skipped": [{"source": "standard input", "line": 14, "reason": "no [time] followed by a \"request\"", "text": "# rotated"}],
		"first": "2015-05-17T12:00:30Z", "last": "2015-05-17T12:03:00Z",
		"limits": [{"label": "token-bucket", "text": "3 per minute, up to 3 at once", "flags": "--algorithm token-bucket --rate 3/m --burst 3", "allowed": 14, "denied": 5, "keys_denied": 2}],
		"keys_denied_most": [{"key": "192.0.2.1", "requests": 13, "denied": [3]}], "keys_denied_beyond": 1,
		"minutes_denied_most": [{"minute": "2015-05-17T12:02:00Z", "requests": 9, "denied": [3]}], "minutes_denied_beyond": 2,
		"minutes_busiest": [{"minute": "2015-05-17T12:02:00Z", "requests": 9, "denied": [3]}], "minutes_beyond": 3
	}`, string(written))

	got = runOn(t, "", "--json")
	require.Equal(t, exitDone, got.code)
	require.NotContains(t, got.stdout, "null")
}

// TestFlagsMakeTheLimitAgain: those that a report names.
func TestFlagsMakeTheLimitAgain(t *testing.T) {
	for _, args := range []string{
		"--rate 10/m", "--rate 10/90s --burst 3 --every 9s", "--algorithm leaky-bucket --rate 7/h --capacity 3", "--algorithm fixed-window --rate 5/d --align -2h",
		"--algorithm fixed-window --rate 5/s", "--algorithm sliding-window --rate 5/m --storage zset", "--algorithm sliding-window --rate 5/m --buckets 6 --storage list",
		"--algorithm sliding-log --rule 20/m,500/h --resolution 100ms",
	} {
		want, err := parseArgs(strings.Fields(args))
		require.NoError(t, err)
		got, err := parseArgs(strings.Fields(want.limits[0].flags()))
		require.NoError(t, err, want.limits[0].flags())
		require.Equal(t, want.limits, got.limits)
	}
}

// BenchmarkReplay is a log of 100,000 lines from some 10,000 clients, from text to report.
func BenchmarkReplay(b *testing.B) {
	const lines = 100_000
	var log strings.Builder
	for i := range lines {
		n := i * 48271 % 2147483647 % 10_000
		client := "198.51." + itoa(n/100) + "." + itoa(n%100)
		log.WriteString(client + " - - [" + logStart.Add(time.Duration(i/5)*time.Second).Format("02/Jan/2006:15:04:05 -0700") +
			`] "GET /item/` + itoa(i%1000) + `?page=2 HTTP/1.1" 200 5120 "https://example.org/" "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36"` + "\n")
	}
	cfg, err := parseArgs([]string{"--rate", "10/m", "--burst", "20"})
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		p := program{stdin: strings.NewReader(log.String()), tempDir: b.TempDir(), chunkBytes: defaultChunkBytes}
		found, err := p.replay(b.Context(), cfg)
		if err != nil || found.requests != lines {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(lines)*float64(b.N)/b.Elapsed().Seconds(), "lines/s")
}
