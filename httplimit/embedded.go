package httplimit

import "net/netip"

// Where an IPv6 address has an IPv4 address inside. That one is the client: a translator puts all
// the IPv4 clients behind it into one /64, and each owner of an IPv4 address has a /48 of 6to4.
var embeddings = []struct {
	prefix netip.Prefix
	at     int  // the first of the four bytes
	turned bool // all of their bits
}{
	{prefix: netip.MustParsePrefix("64:ff9b::/96"), at: 12},            // NAT64, RFC 6052
	{prefix: netip.MustParsePrefix("2002::/16"), at: 2},                // 6to4, RFC 3056
	{prefix: netip.MustParsePrefix("2001::/32"), at: 12, turned: true}, // Teredo, RFC 4380
	{prefix: netip.MustParsePrefix("::/96"), at: 12},                   // IPv4-compatible, RFC 4291
	{prefix: netip.MustParsePrefix("::ffff:0:0:0/96"), at: 12},         // IPv4-translated, RFC 2765
}

// localNAT64 is for the translators of a network, each of which puts the IPv4 address where it
// likes (RFC 8215). The rest of the address is fixed, so an address is one client.
var localNAT64 = netip.MustParsePrefix("64:ff9b:1::/48")

// embedded returns the IPv4 address inside of a, or a. It is for the key, and not for trust: a
// service that trusts an IPv4 network does not trust the clients that can send from an IPv6
// address with it inside.
func embedded(a netip.Addr) netip.Addr {
	if a.Is4() {
		return a
	}
	for _, e := range embeddings {
		if !e.prefix.Contains(a) {
			continue
		}
		b := a.As16()
		four := [4]byte(b[e.at : e.at+4])
		if e.turned {
			for i := range four {
				four[i] = ^four[i]
			}
		}
		if four[0] == 0 { // 0.0.0.0/8 is no host: ::1, for example
			return a
		}
		return netip.AddrFrom4(four)
	}
	return a
}
