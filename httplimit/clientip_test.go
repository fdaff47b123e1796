package httplimit_test

import (
	"net/http"
	"net/netip"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/httplimit"
)

func prefixes(s ...string) []netip.Prefix {
	var all []netip.Prefix
	for _, p := range s {
		all = append(all, netip.MustParsePrefix(p))
	}
	return all
}

func clientIP(t testing.TB, trusted []netip.Prefix, opts ...httplimit.ClientIPOption) httplimit.KeyFunc {
	t.Helper()
	key, err := httplimit.ClientIP(trusted, opts...)
	require.NoError(t, err)
	return key
}

var proxies = prefixes("10.0.0.0/8", "2001:db8:ffff::/48")

// TestForgedAddresses: proxies at 10.0.0.0/8 and 2001:db8:ffff::/48 append to X-Forwarded-For, or
// to Forwarded. Whatever a client sends, the key is its own address.
func TestForgedAddresses(t *testing.T) {
	for name, c := range map[string]struct {
		peer      string
		xff       []string
		forwarded []string
		want      string // "": ErrBadKey
	}{
		"no proxy":                          {peer: "203.0.113.7:1234", want: "ip:203.0.113.7"},
		"no proxy, forged":                  {peer: "203.0.113.7:1234", xff: []string{"192.0.2.1"}, forwarded: []string{"for=192.0.2.1"}, want: "ip:203.0.113.7"},
		"no proxy, forged as trusted":       {peer: "203.0.113.7:1234", xff: []string{"192.0.2.1, 10.0.0.1"}, forwarded: []string{"for=10.0.0.1"}, want: "ip:203.0.113.7"},
		"one proxy":                         {peer: "10.0.0.1:1", xff: []string{"203.0.113.7"}, forwarded: []string{"for=203.0.113.7"}, want: "ip:203.0.113.7"},
		"forged on the left":                {peer: "10.0.0.1:1", xff: []string{"192.0.2.1, 203.0.113.7"}, forwarded: []string{"for=192.0.2.1, for=203.0.113.7"}, want: "ip:203.0.113.7"},
		"forged as trusted on the left":     {peer: "10.0.0.1:1", xff: []string{"10.9.9.9, 203.0.113.7"}, forwarded: []string{"for=10.9.9.9,for=203.0.113.7"}, want: "ip:203.0.113.7"},
		"forged in a line of its own":       {peer: "10.0.0.1:1", xff: []string{"192.0.2.1", "203.0.113.7"}, forwarded: []string{"for=192.0.2.1", "for=203.0.113.7"}, want: "ip:203.0.113.7"},
		"garbage on the left is not parsed": {peer: "10.0.0.1:1", xff: []string{"\x00{}|,,;\"", "\",203.0.113.7"}, forwarded: []string{"\x00{}|,,;\"", "\"\\\",for=203.0.113.7"}, want: "ip:203.0.113.7"},
		"two proxies":                       {peer: "10.0.0.1:1", xff: []string{"203.0.113.7, 10.0.0.2"}, forwarded: []string{"for=203.0.113.7, for=10.0.0.2"}, want: "ip:203.0.113.7"},
		"two proxies, two lines, forged":    {peer: "10.0.0.1:1", xff: []string{"192.0.2.1,203.0.113.7", "10.0.0.2"}, forwarded: []string{"for=192.0.2.1,for=203.0.113.7", "for=10.0.0.2"}, want: "ip:203.0.113.7"},
		"three lines":                       {peer: "10.0.0.1:1", xff: []string{"192.0.2.1", "203.0.113.7", "10.0.0.2,10.0.0.3"}, forwarded: []string{"for=192.0.2.1", "for=203.0.113.7", "for=10.0.0.2,for=10.0.0.3"}, want: "ip:203.0.113.7"},
		"a proxy that is not trusted":       {peer: "10.0.0.1:1", xff: []string{"192.0.2.1, 198.51.100.1, 10.0.0.2"}, forwarded: []string{"for=192.0.2.1,for=198.51.100.1,for=10.0.0.2"}, want: "ip:198.51.100.1"},
		"all are trusted":                   {peer: "10.0.0.1:1", xff: []string{"10.0.0.3, 10.0.0.2"}, forwarded: []string{"for=10.0.0.3, for=10.0.0.2"}, want: "ip:10.0.0.3"},
		"a trusted proxy asks itself":       {peer: "10.0.0.1:1", want: "ip:10.0.0.1"},
		"IPv6":                              {peer: "[2001:db8:ffff::1]:1", xff: []string{"2001:db8:1:2:3:4:5:6"}, forwarded: []string{`for="[2001:db8:1:2:3:4:5:6]"`}, want: "ip:2001:db8:1:2::/64"},
		"IPv6 with a port":                  {peer: "[2001:db8:ffff::1]:1", xff: []string{"[2001:db8:1:2:3:4:5:6]:443"}, forwarded: []string{`for="[2001:db8:1:2:3:4:5:6]:443"`}, want: "ip:2001:db8:1:2::/64"},
		"IPv6 in brackets":                  {peer: "[2001:db8:ffff::1]:1", xff: []string{"[2001:db8:1:2::9]"}, forwarded: []string{`for=[2001:db8:1:2::9]`}, want: "ip:2001:db8:1:2::/64"},
		"IPv6, the last of its /64":         {peer: "[2001:db8:1:2:ffff:ffff:ffff:ffff]:1", want: "ip:2001:db8:1:2::/64"},
		"IPv6, the next /64":                {peer: "[2001:db8:1:3::]:1", want: "ip:2001:db8:1:3::/64"},
		"IPv6 with a zone":                  {peer: "[fe80::1%eth0]:1", want: "ip:fe80::/64"},
		"IPv4 with a port":                  {peer: "10.0.0.1:1", xff: []string{"203.0.113.7:5678"}, forwarded: []string{`for="203.0.113.7:5678"`}, want: "ip:203.0.113.7"},
		"IPv4 in IPv6 form":                 {peer: "10.0.0.1:1", xff: []string{"::ffff:203.0.113.7"}, forwarded: []string{`for="[::ffff:203.0.113.7]"`}, want: "ip:203.0.113.7"},
		"IPv4 in IPv6 form, in hexadecimal": {peer: "10.0.0.1:1", xff: []string{"::ffff:cb00:7107"}, forwarded: []string{`for="[::ffff:cb00:7107]"`}, want: "ip:203.0.113.7"},
		"a proxy as IPv4 in IPv6 form":      {peer: "[::ffff:10.0.0.1]:1", xff: []string{"203.0.113.7, ::ffff:10.0.0.2"}, forwarded: []string{`for=203.0.113.7,for="[::ffff:10.0.0.2]"`}, want: "ip:203.0.113.7"},
		"spaces and tabs":                   {peer: "10.0.0.1:1", xff: []string{" 203.0.113.7 \t,\t 10.0.0.2 "}, forwarded: []string{" for=203.0.113.7 \t;\tproto=https ,\t for=10.0.0.2 "}, want: "ip:203.0.113.7"},
		"a network beside the trusted one":  {peer: "11.0.0.0:1", xff: []string{"192.0.2.1"}, forwarded: []string{"for=192.0.2.1"}, want: "ip:11.0.0.0"},
		"the last of the trusted network":   {peer: "10.255.255.255:1", xff: []string{"192.0.2.1"}, forwarded: []string{"for=192.0.2.1"}, want: "ip:192.0.2.1"},
		"unknown":                           {peer: "10.0.0.1:1", xff: []string{"192.0.2.1, unknown"}, forwarded: []string{"for=192.0.2.1, for=unknown"}},
		"obfuscated":                        {peer: "10.0.0.1:1", xff: []string{"192.0.2.1, _hidden"}, forwarded: []string{"for=192.0.2.1, for=_hidden"}},
		"empty":                             {peer: "10.0.0.1:1", xff: []string{""}, forwarded: []string{""}},
		"empty at the end":                  {peer: "10.0.0.1:1", xff: []string{"192.0.2.1,"}, forwarded: []string{"for=192.0.2.1,"}},
		"an empty line at the end":          {peer: "10.0.0.1:1", xff: []string{"192.0.2.1", " "}, forwarded: []string{"for=192.0.2.1", " "}},
		"a leading zero":                    {peer: "10.0.0.1:1", xff: []string{"192.0.2.01"}, forwarded: []string{"for=192.0.2.01"}},
		"a port that is none":               {peer: "10.0.0.1:1", xff: []string{"192.0.2.1:65536"}, forwarded: []string{`for="192.0.2.1:65536"`}},
		"IPv4 in brackets":                  {peer: "10.0.0.1:1", xff: []string{"[192.0.2.1]"}, forwarded: []string{`for="[192.0.2.1]"`}},
		"0.0.0.0":                           {peer: "10.0.0.1:1", xff: []string{"0.0.0.0"}, forwarded: []string{`for="[::ffff:0.0.0.0]"`}},
		"a name":                            {peer: "10.0.0.1:1", xff: []string{"localhost"}, forwarded: []string{"for=localhost"}},
		"two addresses without a comma":     {peer: "10.0.0.1:1", xff: []string{"192.0.2.1 203.0.113.7"}, forwarded: []string{"for=192.0.2.1;for=203.0.113.7"}},
		"garbage behind a trusted address":  {peer: "10.0.0.1:1", xff: []string{"192.0.2.1, {}, 10.0.0.2"}, forwarded: []string{"for=192.0.2.1, for={}, for=10.0.0.2"}},
	} {
		t.Run(name, func(t *testing.T) {
			for header, key := range map[string]httplimit.KeyFunc{
				"X-Forwarded-For": clientIP(t, proxies),
				"Forwarded":       clientIP(t, proxies, httplimit.WithForwarded()),
			} {
				r := newRequest("GET", "/")
				r.RemoteAddr = c.peer
				// The other header is the client's own.
				r.Header["X-Forwarded-For"], r.Header["Forwarded"] = []string{"192.0.2.99"}, []string{"for=192.0.2.99"}
				delete(r.Header, header)
				if lines := map[string][]string{"X-Forwarded-For": c.xff, "Forwarded": c.forwarded}[header]; lines != nil {
					r.Header[header] = lines
				}
				got, err := key(r)
				require.Equal(t, c.want, got, header)
				if c.want != "" {
					require.NoError(t, err, header)
				} else {
					require.ErrorIs(t, err, httplimit.ErrBadKey, header)
					require.NotErrorIs(t, err, httplimit.ErrNoKey, header)
				}
			}
		})
	}
}

// TestForwarded: what only its syntax has.
func TestForwarded(t *testing.T) {
	key := clientIP(t, proxies, httplimit.WithForwarded())
	for element, want := range map[string]string{
		`for=203.0.113.7;proto=http;by=10.0.0.1`:                   "ip:203.0.113.7",
		`proto=http;FOR=203.0.113.7`:                               "ip:203.0.113.7",
		`for="203.0.113.7:_x"`:                                     "ip:203.0.113.7", // an obfuscated port
		`for="203.0.113.7:_A.b-9_"`:                                "ip:203.0.113.7",
		`for="[2001:db8:1:2::9]:_x"`:                               "ip:2001:db8:1:2::/64",
		`for="203.0.113.7:_"`:                                      "",
		`for="203.0.113.7:_x y"`:                                   "",
		`for="203.0.113.7:80:_x"`:                                  "",
		`for="203.0.113.7:_x:_y"`:                                  "",
		`for="2001:db8:1:2::9:_x"`:                                 "", // no brackets
		`for="[203.0.113.7]:_x"`:                                   "",
		`for="unknown:_x"`:                                         "",
		`for="_hidden:_x"`:                                         "",
		`For="203.0.113.7"`:                                        "ip:203.0.113.7",
		`for=192.0.2.1, host="a,for=192.0.2.2,";for=203.0.113.7`:   "ip:203.0.113.7", // a client chooses the host
		`for=192.0.2.1, for=203.0.113.7;host="\",for=192.0.2.2"`:   "ip:203.0.113.7",
		`for=192.0.2.1, for=203.0.113.7;host="\\\",for=192.0.2.2"`: "ip:203.0.113.7",
		`for=192.0.2.1, for=203.0.113.7;host="a\\"`:                "ip:203.0.113.7",
		`for=203.0.113.7;host=";for=192.0.2.2"`:                    "ip:203.0.113.7",
		`for="192.0.2.1, for=203.0.113.7`:                          "ip:203.0.113.7", // a quote that the client left open
		`host="a,for=192.0.2.2`:                                    "ip:192.0.2.2",   // one that nobody closed
		`proto=http`:                                               "",
		`for`:                                                      "",
		`for=`:                                                     "",
		`for=""`:                                                   "",
		`for="203.0.113.7`:                                         "",
		`for =203.0.113.7`:                                         "",
		`for= 203.0.113.7`:                                         "",
		`for=203.0.113.7;`:                                         "",
		`for=203.0.113.7;For=203.0.113.8`:                          "",
		`203.0.113.7`:                                              "",
		`xfor=203.0.113.7`:                                         "",
	} {
		r := newRequest("GET", "/")
		r.RemoteAddr = "10.0.0.1:1"
		r.Header["Forwarded"] = []string{element}
		got, err := key(r)
		require.Equal(t, want, got, element)
		require.Equal(t, want == "", err != nil, element)
		if err != nil {
			require.ErrorIs(t, err, httplimit.ErrBadKey, element)
		}
	}
}

// TestAnIPv4AddressInside: a client that has an IPv4 address inside of an IPv6 address is that IPv4
// address. By its /64, everybody behind a translator would be one client, and a network of 6to4
// would be 65,536.
func TestAnIPv4AddressInside(t *testing.T) {
	for peer, want := range map[string]string{
		"64:ff9b::cb00:7107":                   "ip:203.0.113.7", // NAT64, RFC 6052
		"64:ff9b::203.0.113.8":                 "ip:203.0.113.8",
		"64:ff9b::1:cb00:7107":                 "ip:64:ff9b::/64", // not in the /96
		"64:ff9b:1::cb00:7107":                 "ip:64:ff9b:1::cb00:7107",
		"64:ff9b:1:cb00:71:700::":              "ip:64:ff9b:1:cb00:71:700::", // RFC 8215, at another place
		"64:ff9b:2::cb00:7107":                 "ip:64:ff9b:2::/64",
		"2002:cb00:7107::1":                    "ip:203.0.113.7", // 6to4, RFC 3056
		"2002:cb00:7107:ffff:1:2:3:4":          "ip:203.0.113.7",
		"2003:cb00:7107:ffff:1:2:3:4":          "ip:2003:cb00:7107:ffff::/64",
		"2001:0:4136:e378:8000:63bf:34ff:8ef8": "ip:203.0.113.7", // all bits of it turned: Teredo, RFC 4380
		"2001:1:4136:e378:8000:63bf:34ff:8ef8": "ip:2001:1:4136:e378::/64",
		"::203.0.113.7":                        "ip:203.0.113.7",
		"::ffff:0:203.0.113.7":                 "ip:203.0.113.7", // translated, RFC 2765
		"::1":                                  "ip:::/64",
		"::2":                                  "ip:::/64",
		"::1:203.0.113.7":                      "ip:::/64",
		"64:ff9b::":                            "ip:64:ff9b::/64", // 0.0.0.0/8 is nobody's
		"2002::1":                              "ip:2002::/64",
		"2001:0:4136:e378:8000:63bf:ffff:ffff": "ip:2001:0:4136:e378::/64",
		"2001:db8:1:203::203.0.113.7":          "ip:2001:db8:1:203::/64",
	} {
		r := newRequest("GET", "/")
		r.RemoteAddr = netip.AddrPortFrom(netip.MustParseAddr(peer), 1).String()
		got, err := clientIP(t, nil)(r)
		require.NoError(t, err, peer)
		require.Equal(t, want, got, peer)

		// Each address on its own, or large groups, change nothing about the IPv4 address.
		for _, bits := range []int{16, 128} {
			got, err = clientIP(t, nil, httplimit.WithIPv6Prefix(bits))(r)
			require.NoError(t, err, peer)
			if netip.MustParsePrefix("64:ff9b:1::/48").Contains(netip.MustParseAddr(peer)) || !strings.Contains(want, "/") {
				require.Equal(t, want, got, "%s by /%d", peer, bits)
			} else {
				require.NotContains(t, got, ".", "%s by /%d", peer, bits)
			}
		}
	}

	// It is the client's for the key alone: who trusts 10.0.0.0/8 does not trust a translator.
	r := newRequest("GET", "/")
	r.RemoteAddr, r.Header["X-Forwarded-For"] = "[64:ff9b::10.0.0.1]:1", []string{"203.0.113.7"}
	got, err := clientIP(t, proxies)(r)
	require.NoError(t, err)
	require.Equal(t, "ip:10.0.0.1", got)
	got, err = clientIP(t, prefixes("64:ff9b::10.0.0.0/104"))(r)
	require.NoError(t, err)
	require.Equal(t, "ip:203.0.113.7", got)
}

// TestTheProxysOwnHeader: one address in one line, and only from a proxy that is trusted.
func TestTheProxysOwnHeader(t *testing.T) {
	key := clientIP(t, proxies, httplimit.WithClientHeader("cf-connecting-ip"))
	for name, c := range map[string]struct {
		peer  string
		lines []string
		want  string // "": ErrBadKey
	}{
		"IPv4":                       {"10.0.0.1:1", []string{"203.0.113.7"}, "ip:203.0.113.7"},
		"with a port, and spaces":    {"10.0.0.1:1", []string{" 203.0.113.7:443\t"}, "ip:203.0.113.7"},
		"IPv6":                       {"[2001:db8:ffff::1]:1", []string{"2001:db8:1:2:3:4:5:6"}, "ip:2001:db8:1:2::/64"},
		"NAT64":                      {"10.0.0.1:1", []string{"64:ff9b::203.0.113.7"}, "ip:203.0.113.7"},
		"an address that is trusted": {"10.0.0.1:1", []string{"10.9.9.9"}, "ip:10.9.9.9"},
		"not from a proxy":           {"203.0.113.9:1", []string{"192.0.2.1"}, "ip:203.0.113.9"},
		"no header":                  {"10.0.0.1:1", nil, ""},
		"two lines":                  {"10.0.0.1:1", []string{"192.0.2.1", "203.0.113.7"}, ""},
		"a list":                     {"10.0.0.1:1", []string{"192.0.2.1, 203.0.113.7"}, ""},
		"empty":                      {"10.0.0.1:1", []string{""}, ""},
		"no address":                 {"10.0.0.1:1", []string{"unknown"}, ""},
	} {
		r := newRequest("GET", "/")
		r.RemoteAddr = c.peer
		r.Header["X-Forwarded-For"], r.Header["Forwarded"] = []string{"192.0.2.99"}, []string{"for=192.0.2.99"}
		if c.lines != nil {
			r.Header["Cf-Connecting-Ip"] = c.lines
		}
		got, err := key(r)
		require.Equal(t, c.want, got, name)
		if c.want != "" {
			require.NoError(t, err, name)
			continue
		}
		require.ErrorIs(t, err, httplimit.ErrBadKey, name)
		require.ErrorContains(t, err, "Cf-Connecting-Ip has", name)
		require.ErrorContains(t, err, "10.0.0.1 should have written", name)
	}
}

func TestIPv4Prefixes(t *testing.T) {
	for bits, want := range map[int]string{1: "ip:128.0.0.0/1", 8: "ip:203.0.0.0/8", 24: "ip:203.0.113.0/24", 31: "ip:203.0.113.6/31", 32: "ip:203.0.113.7"} {
		key := clientIP(t, nil, httplimit.WithIPv4Prefix(bits), httplimit.WithIPv6Prefix(128))
		for peer, want := range map[string]string{
			"203.0.113.7:1": want, "[::ffff:203.0.113.7]:1": want, "[64:ff9b::203.0.113.7]:1": want, "[2001:db8::1]:1": "ip:2001:db8::1",
		} {
			r := newRequest("GET", "/")
			r.RemoteAddr = peer
			got, err := key(r)
			require.NoError(t, err)
			require.Equal(t, want, got)
		}
	}
}

func TestIPv6Prefixes(t *testing.T) {
	for bits, want := range map[int]string{
		1: "ip:::/1", 48: "ip:2001:db8:1::/48", 56: "ip:2001:db8:1:200::/56", 64: "ip:2001:db8:1:203::/64", 127: "ip:2001:db8:1:203::4/127", 128: "ip:2001:db8:1:203::5",
	} {
		key := clientIP(t, nil, httplimit.WithIPv6Prefix(bits))
		for peer, want := range map[string]string{"[2001:db8:1:203::5]:1": want, "[::ffff:203.0.113.7]:1": "ip:203.0.113.7", "203.0.113.7:1": "ip:203.0.113.7"} {
			r := newRequest("GET", "/")
			r.RemoteAddr = peer
			got, err := key(r)
			require.NoError(t, err)
			require.Equal(t, want, got)
		}
	}
}

func TestClientIPRefusesWhatCannotWork(t *testing.T) {
	for name, c := range map[string]struct {
		trusted []netip.Prefix
		opts    []httplimit.ClientIPOption
		message string
	}{
		"no prefix":                   {trusted: []netip.Prefix{{}}, message: "trusted network 1, invalid Prefix, is not valid"},
		"all of IPv4":                 {trusted: prefixes("10.0.0.0/8", "0.0.0.0/0"), message: "trusted network 2, 0.0.0.0/0, would trust every address"},
		"all of IPv6":                 {trusted: prefixes("::/0"), message: "would trust every address"},
		"all of mapped IPv4":          {trusted: prefixes("::ffff:0.0.0.0/96"), message: "would trust every address"},
		"more than mapped":            {trusted: prefixes("::ffff:10.0.0.0/95"), message: "is partly IPv4 in IPv6 form"},
		"no bits":                     {opts: []httplimit.ClientIPOption{httplimit.WithIPv6Prefix(0)}, message: "WithIPv6Prefix: 0 is not between 1 and 128"},
		"too many bits":               {opts: []httplimit.ClientIPOption{httplimit.WithIPv6Prefix(129)}, message: "WithIPv6Prefix: 129 is not between 1 and 128"},
		"no IPv4 bits":                {opts: []httplimit.ClientIPOption{httplimit.WithIPv4Prefix(0)}, message: "WithIPv4Prefix: 0 is not between 1 and 32"},
		"too many IPv4 bits":          {opts: []httplimit.ClientIPOption{httplimit.WithIPv4Prefix(33)}, message: "WithIPv4Prefix: 33 is not between 1 and 32"},
		"no name of a header":         {trusted: proxies, opts: []httplimit.ClientIPOption{httplimit.WithClientHeader("a b")}, message: `WithClientHeader: "a b" is not the name of a header`},
		"a list as a header":          {trusted: proxies, opts: []httplimit.ClientIPOption{httplimit.WithClientHeader("x-forwarded-for")}, message: "x-forwarded-for is a list"},
		"another list as a header":    {trusted: proxies, opts: []httplimit.ClientIPOption{httplimit.WithClientHeader("Forwarded")}, message: "give WithForwarded"},
		"two headers":                 {trusted: proxies, opts: []httplimit.ClientIPOption{httplimit.WithClientHeader("X-Real-IP"), httplimit.WithForwarded()}, message: "only one header is read"},
		"a header from nobody":        {opts: []httplimit.ClientIPOption{httplimit.WithClientHeader("X-Real-IP")}, message: "WithClientHeader: no network is trusted"},
		"no option":                   {opts: []httplimit.ClientIPOption{nil}, message: "option 1 is nil"},
		"a header that is never read": {opts: []httplimit.ClientIPOption{httplimit.WithForwarded()}, message: "no network is trusted"},
	} {
		key, err := httplimit.ClientIP(c.trusted, c.opts...)
		require.Nil(t, key, name)
		require.ErrorIs(t, err, ratelimit.ErrInvalidConfig, name)
		require.ErrorContains(t, err, c.message, name)
	}

	// Host bits and mapped prefixes mean what they should.
	key := clientIP(t, prefixes("::ffff:10.1.2.3/104"))
	r := newRequest("GET", "/")
	r.RemoteAddr, r.Header["X-Forwarded-For"] = "10.9.9.9:1", []string{"203.0.113.7"}
	got, err := key(r)
	require.NoError(t, err)
	require.Equal(t, "ip:203.0.113.7", got)

	// So does a proxy whose address has a zone.
	r.RemoteAddr = "[fe80::1%eth0]:1"
	got, err = clientIP(t, prefixes("fe80::/10"))(r)
	require.NoError(t, err)
	require.Equal(t, "ip:203.0.113.7", got)
	r.RemoteAddr = "10.9.9.9:1"

	// The caller's slice may change.
	trusted := prefixes("10.0.0.0/8")
	key = clientIP(t, trusted)
	trusted[0] = netip.MustParsePrefix("192.0.2.0/24")
	got, err = key(r)
	require.NoError(t, err)
	require.Equal(t, "ip:203.0.113.7", got)
}

func TestAConnectionWithoutAnAddress(t *testing.T) {
	for _, peer := range []string{"", "@", "/run/app.sock", "pipe", "203.0.113.7:x", "[::1", ":80", "0.0.0.0:1", strings.Repeat("a", 1000)} {
		r := newRequest("GET", "/")
		r.RemoteAddr = peer
		key, err := clientIP(t, proxies)(r)
		require.Empty(t, key)
		require.ErrorIs(t, err, ratelimit.ErrInvalidConfig, peer)
		require.Less(t, len(err.Error()), 250)
	}
	r := newRequest("GET", "/")
	r.RemoteAddr, r.Header["X-Forwarded-For"] = "10.0.0.1:1", []string{strings.Repeat("a", 1000)}
	_, err := clientIP(t, proxies)(r)
	require.ErrorIs(t, err, httplimit.ErrBadKey)
	require.Less(t, len(err.Error()), 250)
}

var ipKey = regexp.MustCompile(`^ip:([0-9.]+|[0-9a-f:]+/64)$`)

// FuzzClientIP: there is a key in its one form, or an error; and what stands left of the address
// that a proxy has appended changes nothing.
func FuzzClientIP(f *testing.F) {
	for _, s := range []string{"", "192.0.2.1", "for=192.0.2.1", `for="[::1]:80";by=_x`, `"`, `\"`, `for="a\",for=10.0.0.1`, "10.0.0.2", "::ffff:10.0.0.1", "fe80::1%{a}", ",", "\x00"} {
		f.Add("10.0.0.1:1", s, s)
		f.Add(s, s, "203.0.113.7")
	}
	keys := map[string]httplimit.KeyFunc{
		"X-Forwarded-For": clientIP(f, proxies),
		"Forwarded":       clientIP(f, proxies, httplimit.WithForwarded()),
	}
	f.Fuzz(func(t *testing.T, peer, first, second string) {
		for header, key := range keys {
			r := &http.Request{Header: http.Header{header: {first, second}}, RemoteAddr: peer}
			got, err := key(r)
			if (err == nil) != ipKey.MatchString(got) || err != nil && got != "" {
				t.Fatalf("%s: key %q, error %v", header, got, err)
			}
			if first == "" {
				continue
			}
			appended := map[string]string{"X-Forwarded-For": "203.0.113.7", "Forwarded": "for=203.0.113.7;proto=https"}[header]
			for _, lines := range [][]string{{first, second, appended}, {first + "," + appended}, {first, second + ", " + appended}} {
				r.RemoteAddr, r.Header[header] = "10.0.0.1:1", lines
				if got, err := key(r); got != "ip:203.0.113.7" || err != nil {
					t.Fatalf("%s %q: key %q, error %v", header, lines, got, err)
				}
			}
		}
	})
}
