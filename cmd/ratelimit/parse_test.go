package main

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
)

// everyAddress is a client.
var everyAddress = ratelimit.Must(newClients(128, nil))

func TestParseLine(t *testing.T) {
	utc := time.Date(2015, 5, 17, 10, 5, 3, 0, time.UTC)
	tests := []struct {
		name, line                string
		client, path, agent, both string
		at                        time.Time
	}{
		{
			name:   "combined",
			line:   `192.0.2.1 - - [17/May/2015:10:05:03 +0000] "GET /a/b.png HTTP/1.1" 200 203 "http://x.test/" "Mozilla/5.0 (X11)"`,
			client: "192.0.2.1", path: "/a/b.png", agent: "Mozilla/5.0 (X11)", at: utc,
		},
		{
			name:   "common",
			line:   `192.0.2.1 - - [17/May/2015:10:05:03 +0000] "GET / HTTP/1.0" 304 -`,
			client: "192.0.2.1", path: "/", at: utc,
		},
		{
			name:   "a zone east and a query",
			line:   `192.0.2.1 - - [17/May/2015:12:05:03 +0200] "GET /a?b=/c?d HTTP/1.1" 200 1 "-" "x"`,
			client: "192.0.2.1", path: "/a", agent: "x", at: utc,
		},
		{
			name:   "a zone west of half an hour",
			line:   `192.0.2.1 - - [17/May/2015:06:35:03 -0330] "GET /a HTTP/1.1" 200 1 "-" "x"`,
			client: "192.0.2.1", path: "/a", agent: "x", at: utc,
		},
		{
			name:   "escaped quotes and backslashes",
			line:   `192.0.2.1 - - [17/May/2015:10:05:03 +0000] "GET /\"a\\ HTTP/1.1" 200 1 "\"r\"" "say \"hi\" \\"`,
			client: "192.0.2.1", path: `/\"a\\`, agent: `say \"hi\" \\`, at: utc,
		},
		{
			name:   "quotes that an old server left unescaped",
			line:   `192.0.2.1 - - [17/May/2015:10:05:03 +0000] "GET /a"b"c HTTP/1.1" 200 1 "r"r" "say "hi" x" "further field"`,
			client: "192.0.2.1", path: `/a"b"c`, agent: `say "hi`, at: utc,
		},
		{
			name:   "IPv6, in one form",
			line:   `2001:DB8:0:0::1 - - [17/May/2015:10:05:03 +0000] "GET /a HTTP/2.0" 200 1 "-" "x"`,
			client: "2001:db8::1", path: "/a", agent: "x", at: utc,
		},
		{
			name:   "IPv4 within IPv6",
			line:   `::ffff:192.0.2.1 - - [17/May/2015:10:05:03 +0000] "GET /a HTTP/2.0" 200 1 "-" "x"`,
			client: "192.0.2.1", path: "/a", agent: "x", at: utc,
		},
		{
			name:   "a host name, and a user with spaces and brackets",
			line:   `host.test - Ann [a] Smith [17/May/2015:10:05:03 +0000] "GET /a HTTP/2.0" 200 1 "-" "x"`,
			client: "host.test", path: "/a", agent: "x", at: utc,
		},
		{
			name:   "no request",
			line:   `192.0.2.1 - - [17/May/2015:10:05:03 +0000] "-" 408 0 "-" "-"`,
			client: "192.0.2.1", path: "-", agent: "-", at: utc,
		},
		{
			name:   "an empty request",
			line:   `192.0.2.1 - - [17/May/2015:10:05:03 +0000] "" 400 0 "-" "-"`,
			client: "192.0.2.1", path: "-", agent: "-", at: utc,
		},
		{
			name:   "a request that is not HTTP",
			line:   `192.0.2.1 - - [17/May/2015:10:05:03 +0000] "\x16\x03\x01 \x02" 400 226 "-" "-"`,
			client: "192.0.2.1", path: "-", agent: "-", at: utc,
		},
		{
			name:   "a path with spaces",
			line:   `192.0.2.1 - - [17/May/2015:10:05:03 +0000] "GET /a b c HTTP/1.1" 200 1 "-" "x"`,
			client: "192.0.2.1", path: "/a b c", agent: "x", at: utc,
		},
		{
			name:   "HTTP/0.9",
			line:   `192.0.2.1 - - [17/May/2015:10:05:03 +0000] "GET /a" 200 1 "-" "x"`,
			client: "192.0.2.1", path: "/a", agent: "x", at: utc,
		},
		{
			name:   "a proxy's request",
			line:   `192.0.2.1 - - [17/May/2015:10:05:03 +0000] "GET http://x.test/a?b HTTP/1.1" 200 1 "-" "x"`,
			client: "192.0.2.1", path: "/a", agent: "x", at: utc,
		},
		{
			name:   "a proxy's request without a path",
			line:   `192.0.2.1 - - [17/May/2015:10:05:03 +0000] "GET http://x.test?b=/ HTTP/1.1" 200 1 "-" "x"`,
			client: "192.0.2.1", path: "/", agent: "x", at: utc,
		},
		{
			name:   "a URL within a path",
			line:   `192.0.2.1 - - [17/May/2015:10:05:03 +0000] "GET /to/http://x.test/ HTTP/1.1" 200 1 "-" "x"`,
			client: "192.0.2.1", path: "/to/http://x.test/", agent: "x", at: utc,
		},
		{
			name:   "asterisk",
			line:   `192.0.2.1 - - [17/May/2015:10:05:03 +0000] "OPTIONS * HTTP/1.1" 200 1 "-" "x"`,
			client: "192.0.2.1", path: "*", agent: "x", at: utc,
		},
		{
			name:   "nothing after the request",
			line:   `192.0.2.1 - - [17/May/2015:10:05:03 +0000] "GET /a HTTP/1.1"`,
			client: "192.0.2.1", path: "/a", at: utc,
		},
		{
			name:   "cut within the user agent",
			line:   `192.0.2.1 - - [17/May/2015:10:05:03 +0000] "GET /a HTTP/1.1" 200 1 "-" "Mozi`,
			client: "192.0.2.1", path: "/a", agent: "Mozi", at: utc,
		},
		{
			name:   "cut within the referer",
			line:   `192.0.2.1 - - [17/May/2015:10:05:03 +0000] "GET /a HTTP/1.1" 200 1 "http://x`,
			client: "192.0.2.1", path: "/a", at: utc,
		},
		{
			name:   "fractions of a second",
			line:   `192.0.2.1 - - [17/May/2015:10:05:03.250 +0000] "GET /a HTTP/1.1" 200 1`,
			client: "192.0.2.1", path: "/a", at: utc.Add(250 * time.Millisecond),
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r, err := parseLine([]byte(tt.line))
			require.NoError(t, err)
			require.NoError(t, everyAddress.resolve(&r))
			require.Equal(t, tt.at, time.UnixMicro(r.at).UTC())
			require.Equal(t, tt.client, string(keyers["ip"](nil, r)))
			require.Equal(t, tt.path, string(keyers["path"](nil, r)))
			require.Equal(t, tt.agent, string(keyers["user-agent"](nil, r)))
			require.Equal(t, tt.client+" "+tt.path, string(keyers["ip+path"](nil, r)))
		})
	}
}

func TestParseLineKeepsTheZone(t *testing.T) {
	r, err := parseLine([]byte(`192.0.2.1 - - [17/May/2015:06:35:03 -0330] "GET /a HTTP/1.1" 200 1`))
	require.NoError(t, err)
	require.Equal(t, -(3*3600 + 1800), r.zone)
}

func TestParseLineErrors(t *testing.T) {
	for _, tt := range []struct{ name, line, err string }{
		{"nothing", ``, "it does not start with a client address"},
		{"one word", `hello`, "it does not start with a client address"},
		{"no client", ` - - [17/May/2015:10:05:03 +0000] "GET / HTTP/1.1" 200 1`, "it does not start with a client address"},
		{"a quoted first field", `"GET / HTTP/1.1" 200 1`, "it does not start with a client address"},
		{"prose", `the quick brown fox`, `no [time] followed by a "request"`},
		{"another format", `2015-05-17T10:05:03Z level=info msg="started [ok]"`, `no [time] followed by a "request"`},
		{"no request", `192.0.2.1 - - [17/May/2015:10:05:03 +0000]`, `no [time] followed by a "request"`},
		{"another time", `192.0.2.1 - - [2015-05-17T10:05:03Z] "GET / HTTP/1.1" 200 1`, `the time "2015-05-17T10:05:03Z" is not like 17/May/2015:10:05:03 +0000`},
		{"no zone", `192.0.2.1 - - [17/May/2015:10:05:03] "GET / HTTP/1.1" 200 1`, `the time "17/May/2015:10:05:03" is not like 17/May/2015:10:05:03 +0000`},
		{"no such day", `192.0.2.1 - - [31/Feb/2015:10:05:03 +0000] "GET / HTTP/1.1" 200 1`, `the time "31/Feb/2015:10:05:03 +0000" is not like 17/May/2015:10:05:03 +0000`},
		{"before 1970", `192.0.2.1 - - [31/Dec/1969:23:59:59 +0000] "GET / HTTP/1.1" 200 1`, `the time "31/Dec/1969:23:59:59 +0000" is not between 1970 and 2096`},
		{"far ahead", `192.0.2.1 - - [17/May/2115:10:05:03 +0000] "GET / HTTP/1.1" 200 1`, `the time "17/May/2115:10:05:03 +0000" is not between 1970 and 2096`},
		{"a request cut short", `192.0.2.1 - - [17/May/2015:10:05:03 +0000] "GET /abc`, "the quoted request has no end"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r, err := parseLine([]byte(tt.line))
			require.EqualError(t, err, tt.err)
			require.Zero(t, r)
		})
	}
}

func FuzzParseLine(f *testing.F) {
	for _, line := range []string{
		`192.0.2.1 - - [17/May/2015:10:05:03 +0000] "GET /a?b HTTP/1.1" 200 203 "http://x.test/" "Mozilla/5.0 (X11)"`,
		`2001:db8::1 - a [b] [17/May/2015:10:05:03 -0330] "GET \"/a\" HTTP/1.1" 200 - "-" "\\"`,
		`h - - [17/May/2015:10:05:03 +0000] "GET http://x.test HTTP/1.1"`,
		`h - - [17/May/2015:10:05:03 +0000] "\`,
		"\x1b[31m [ [ [",
		`www.test:443 192.0.2.1 - - [17/May/2015:10:05:03 +0000] "GET / HTTP/1.1" 200 1 "-" "x" "192.0.2.1, 10.0.0.1"`,
		`{"ts":1431857103.25,"request":{"remote_ip":"10.0.0.1","uri":"/a?b","headers":{"User-Agent":["x"],"X-Forwarded-For":["203.0.113.9"]}}}`,
	} {
		f.Add(line)
	}
	f.Fuzz(func(t *testing.T, line string) {
		r, err := parseLine([]byte(line))
		if err != nil {
			require.Zero(t, r)
			return
		}
		require.True(t, r.at >= earliest*1e6 && r.at < latest*1e6, "time %d", r.at)
		require.NotEmpty(t, r.client)
		require.True(t, strings.HasPrefix(line, "{") || !strings.Contains(string(r.client), " "))
		json := strings.HasPrefix(line, "{") // escapes, and what follows makes another text of it
		for _, part := range [][]byte{r.client, r.line, r.agent} {
			require.True(t, json || strings.Contains(line, string(part)))
		}
		if resolved := r; everyAddress.resolve(&resolved) == nil {
			require.NotEmpty(t, keyers["ip"](nil, resolved))
		}
		path := string(keyers["path"](nil, r))
		require.NotEmpty(t, path)
		require.NotContains(t, path, "?")
		require.LessOrEqual(t, len(shorten(keyers["ip+path"](nil, r))), maxKey)

		if json {
			return
		}
		// Whatever follows in the line changes neither the client nor the time.
		again, err := parseLine([]byte(line + ` "more`))
		require.NoError(t, err)
		require.Equal(t, r.at, again.at)
		require.Equal(t, r.client, again.client)
	})
}

func TestShortenKeepsLongKeysDistinct(t *testing.T) {
	long := strings.Repeat("a", maxKey)
	require.Equal(t, long, string(shorten([]byte(long))))
	b, c := shorten([]byte(long+"b")), shorten([]byte(long+"c"))
	require.NotEqual(t, string(b), string(c))
	require.Equal(t, string(b), string(shorten([]byte(long+"b"))))
	require.LessOrEqual(t, len(b), maxKey)
	require.Contains(t, string(b), "aaa…")
}
