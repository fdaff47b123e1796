package httplimit

import (
	"net/http"
	"net/netip"
	"slices"
	"strings"
)

// ClientIP limits by the client's address, with keys such as "ip:192.0.2.7" and
// "ip:2001:db8:1:2::/64". An IPv6 client can choose among the addresses of a /64, so the whole
// /64 is one client; see [WithIPv6Prefix]. An IPv4 address in IPv6 form (::ffff:192.0.2.7) is the
// IPv4 address. A client whose IPv6 address has an IPv4 address inside has the key of that IPv4 address:
// NAT64's 64:ff9b::/96, 6to4, Teredo, and the forms ::192.0.2.7 and ::ffff:0:192.0.2.7. In 64:ff9b:1::/48, of
// local translators, each address is one client. A translator with a prefix of the network's own looks
// like any /64.
//
// trusted are the networks of the proxies in front of the service, and nothing else: a client
// that sends from a trusted network chooses the key. Without any, the address is that of the
// connection (r.RemoteAddr), and no header counts. With them, and if the connection comes from
// one, X-Forwarded-For is read from the right, through all its lines: each trusted proxy has appended the
// address from which it was called, and the first address that is not trusted is the client's. The client
// itself may have written anything to the left of that, which is not even parsed. If all addresses are trusted,
// the leftmost is the client. Proxies that write Forwarded (RFC 7239) need [WithForwarded], those that write one
// address into a header of their own [WithClientHeader].
//
// [ErrBadKey] is the error for anything but an address where a trusted proxy should have written
// one, such as "unknown", an obfuscated name, or nothing. An r.RemoteAddr that is no address, as on a Unix
// socket, is an error that wraps ratelimit.ErrInvalidConfig; set it before, in a middleware of
// your own.
//
// ClientIP's own error wraps ratelimit.ErrInvalidConfig: a prefix that is not valid, or that
// trusts every address, or an option that cannot work.
func ClientIP(trusted []netip.Prefix, opts ...ClientIPOption) (KeyFunc, error) {
	c := &clientIP{ipv4Bits: 32, ipv6Bits: 64}
	for i, p := range trusted {
		folded, err := foldPrefix(p)
		if err != nil {
			return nil, invalidConfig("ClientIP: trusted network %d, %v, %v", i+1, p, err)
		}
		c.trusted = append(c.trusted, folded)
	}
	for i, o := range opts {
		if o == nil {
			return nil, invalidConfig("ClientIP: option %d is nil", i+1)
		}
		if err := o(c); err != nil {
			return nil, err
		}
	}
	switch {
	case c.forwarded && c.header != "":
		return nil, invalidConfig("WithForwarded and WithClientHeader: only one header is read; give one of them")
	case len(c.trusted) > 0:
	case c.forwarded:
		return nil, invalidConfig("WithForwarded: %s", nobodyTrusted)
	case c.header != "":
		return nil, invalidConfig("WithClientHeader: %s", nobodyTrusted)
	}
	return c.key, nil
}

const nobodyTrusted = "no network is trusted, so that no header counts; give ClientIP the networks of the proxies"

// A ClientIPOption is [WithForwarded], [WithClientHeader], [WithIPv4Prefix] or [WithIPv6Prefix].
type ClientIPOption func(*clientIP) error

// WithForwarded reads the header Forwarded (RFC 7239) instead of X-Forwarded-For. Only one of
// the two is ever read: a proxy that writes one passes on the other as the client sent it.
func WithForwarded() ClientIPOption {
	return func(c *clientIP) error {
		c.forwarded = true
		return nil
	}
}

// WithClientHeader reads the client's address from a header that the proxy in front of the service sets itself, such as
// CF-Connecting-IP, True-Client-IP or X-Real-IP, instead of X-Forwarded-For. It counts only if the connection
// comes from a trusted network; it has one line with one address, otherwise the error is [ErrBadKey]. The proxy must
// replace what a client has sent under this name, and no client may reach a trusted network around the proxy:
// otherwise it chooses its key. Where a second proxy stands between, that one is what has to be trusted.
func WithClientHeader(name string) ClientIPOption {
	return func(c *clientIP) error {
		canonical, err := headerName("WithClientHeader", name)
		if err != nil {
			return err
		}
		switch canonical {
		case "X-Forwarded-For":
			return invalidConfig("WithClientHeader: %s is a list that each proxy appends to, and read without this option", name)
		case "Forwarded":
			return invalidConfig("WithClientHeader: Forwarded is a list that each proxy appends to; give WithForwarded")
		}
		c.header = canonical
		return nil
	}
}

// WithIPv4Prefix groups IPv4 clients by the first bits of their address; each address is one client if not given. A
// company or a mobile network has many people behind one address, so a shorter prefix limits strangers together: it is for
// clients that change their address within a network. bits is 1 to 32.
func WithIPv4Prefix(bits int) ClientIPOption {
	return func(c *clientIP) error {
		if bits < 1 || bits > 32 {
			return invalidConfig("WithIPv4Prefix: %d is not between 1 and 32", bits)
		}
		c.ipv4Bits = bits
		return nil
	}
}

// WithIPv6Prefix groups IPv6 clients by the first bits of their address, 64 if not given. Many
// providers give each customer a /56 or a /48; a customer of theirs with a limit by /64 has 256 or
// 65,536 times the limit. 128 limits each address on its own, of which one host has 2⁶⁴. bits is 1 to 128.
func WithIPv6Prefix(bits int) ClientIPOption {
	return func(c *clientIP) error {
		if bits < 1 || bits > 128 {
			return invalidConfig("WithIPv6Prefix: %d is not between 1 and 128", bits)
		}
		c.ipv6Bits = bits
		return nil
	}
}

type clientIP struct {
	trusted   []netip.Prefix
	forwarded bool
	header    string // canonical; "": none
	ipv4Bits  int
	ipv6Bits  int
}

// foldPrefix brings p into the form of the addresses with which it is compared: without host bits, and as
// IPv4 if p is IPv4 in IPv6 form.
func foldPrefix(p netip.Prefix) (netip.Prefix, error) {
	switch {
	case !p.IsValid():
		return p, errNoPrefix
	case p.Addr().Is4In6() && p.Bits() < 96:
		return p, errPartlyMapped
	case p.Addr().Is4In6():
		p = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
	}
	if p.Bits() == 0 {
		return p, errAllTrusted
	}
	return p.Masked(), nil
}

func (c *clientIP) key(r *http.Request) (string, error) {
	peer, ok := parseHost(r.RemoteAddr)
	if !ok {
		return "", invalidConfig("ClientIP: the connection's address %q is no IP address; set r.RemoteAddr in a middleware outside", shorten(r.RemoteAddr))
	}
	client := peer
	if c.trusts(peer) {
		var err error
		switch {
		case c.header != "":
			client, err = c.single(peer, r.Header[c.header])
		case c.forwarded:
			client, err = c.walk(peer, r.Header["Forwarded"], "Forwarded", cutForwarded, parseForwarded)
		default:
			client, err = c.walk(peer, r.Header["X-Forwarded-For"], "X-Forwarded-For", cutList, parseHost)
		}
		if err != nil {
			return "", err
		}
	}
	return c.keyOf(client), nil
}

func (c *clientIP) trusts(a netip.Addr) bool {
	for _, p := range c.trusted {
		if p.Contains(a) {
			return true
		}
	}
	return false
}

// walk goes from the peer leftwards through the elements of a header, as long as the address
// that it has come to is trusted: that one has written the next element.
func (c *clientIP) walk(
	peer netip.Addr, lines []string, name string,
	cut func(line string) (rest, last string, more bool), parse func(string) (netip.Addr, bool),
) (netip.Addr, error) {
	client := peer
	for _, line := range slices.Backward(lines) {
		for more := true; more; {
			var last string
			line, last, more = cut(line)
			last = strings.Trim(last, " \t")
			addr, ok := parse(last)
			if !ok {
				return netip.Addr{}, badKey("%s has %q where the proxy %v should have written an IP address", name, shorten(last), client)
			}
			if client = addr; !c.trusts(client) {
				return client, nil
			}
		}
	}
	return client, nil
}

// single reads the one address of the proxy's own header.
func (c *clientIP) single(peer netip.Addr, lines []string) (netip.Addr, error) {
	if len(lines) != 1 {
		return netip.Addr{}, badKey("%s has %d lines where the proxy %v should have written one", c.header, len(lines), peer)
	}
	value := strings.Trim(lines[0], " \t")
	client, ok := parseHost(value)
	if !ok {
		return netip.Addr{}, badKey("%s has %q where the proxy %v should have written an IP address", c.header, shorten(value), peer)
	}
	return client, nil
}

func (c *clientIP) keyOf(a netip.Addr) string {
	var space [64]byte
	b := append(space[:0], "ip:"...)
	a = embedded(a)
	bits := c.ipv6Bits
	switch {
	case a.Is4():
		bits = c.ipv4Bits
	case localNAT64.Contains(a):
		bits = 128
	}
	if bits == a.BitLen() {
		return string(a.AppendTo(b))
	}
	p, _ := a.Prefix(bits) // the bits were checked
	return string(p.AppendTo(b))
}

// parseHost reads an address, with or without a port: 192.0.2.7, 192.0.2.7:443, 2001:db8::1,
// [2001:db8::1], [2001:db8::1]:443. The zone is dropped: no prefix contains an address with one.
func parseHost(s string) (netip.Addr, bool) {
	var a netip.Addr
	var err error
	switch {
	case strings.HasPrefix(s, "["):
		if strings.HasSuffix(s, "]") {
			a, err = netip.ParseAddr(s[1 : len(s)-1])
			if err == nil && a.Is4() {
				return netip.Addr{}, false
			}
			break
		}
		var p netip.AddrPort
		p, err = netip.ParseAddrPort(s)
		a = p.Addr()
	case strings.Count(s, ":") == 1:
		var p netip.AddrPort
		p, err = netip.ParseAddrPort(s)
		a = p.Addr()
	default:
		a, err = netip.ParseAddr(s)
	}
	a = a.Unmap().WithZone("")
	return a, err == nil && !a.IsUnspecified()
}

// cutList cuts the last element off a list that is separated by commas.
func cutList(line string) (rest, last string, more bool) {
	if i := strings.LastIndexByte(line, ','); i >= 0 {
		return line[:i], line[i+1:], true
	}
	return "", line, false
}

// cutForwarded does so with the elements of Forwarded, where a comma may stand in quotes. It
// goes from the right, so that a quote that the client has left open on the left does not
// swallow what proxies have appended.
func cutForwarded(line string) (rest, last string, more bool) {
	i := lastUnquoted(line, ',')
	if i < 0 {
		return "", line, false
	}
	return line[:i], line[i+1:], true
}

// lastUnquoted is the index of the last separator outside of quotes, or -1.
func lastUnquoted(s string, separator byte) int {
	if i := strings.LastIndexByte(s, separator); strings.IndexByte(s[i+1:], '"') < 0 {
		return i // no quote behind it
	}
	quoted := false
	for i := len(s) - 1; i >= 0; i-- {
		switch {
		case s[i] == '"' && quoted && i > 0 && s[i-1] == '\\':
			// It is escaped: before the quote that opens stands "=".
		case s[i] == '"':
			quoted = !quoted
		case s[i] == separator && !quoted:
			return i
		}
	}
	return -1
}

// parseForwarded reads the address in one element of Forwarded, such as
// for="[2001:db8::1]:443";proto=https. It must have exactly one "for".
func parseForwarded(element string) (addr netip.Addr, found bool) {
	for more := true; more; {
		pair := element
		i := lastUnquoted(element, ';')
		if more = i >= 0; more {
			element, pair = element[:i], element[i+1:]
		}
		name, value, ok := strings.Cut(strings.Trim(pair, " \t"), "=")
		if !ok {
			return netip.Addr{}, false
		}
		if !strings.EqualFold(name, "for") {
			continue
		}
		if found {
			return netip.Addr{}, false
		}
		if addr, found = parseNode(value); !found {
			return netip.Addr{}, false
		}
	}
	return addr, found
}

// parseNode reads the value of "for". RFC 7239 wants IPv6 in brackets and quotes, and a port in
// quotes; proxies leave out either, and what is meant is clear all the same. The port may be
// obfuscated, as in 203.0.113.7:_x.
func parseNode(value string) (netip.Addr, bool) {
	if len(value) >= 2 && value[0] == '"' && value[len(value)-1] == '"' {
		value = value[1 : len(value)-1]
	}
	if host, port, found := strings.Cut(value, ":_"); found {
		if !isObfuscated(port) {
			return netip.Addr{}, false
		}
		value = host + ":65535" // any port, but with five digits, which no part of an IPv6 address has
	}
	return parseHost(value)
}

// isObfuscated reports whether s is what stands behind the underscore of an obfuscated port.
func isObfuscated(s string) bool {
	return s != "" && strings.Trim(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-") == ""
}

// shorten cuts what a client may have chosen, so that it cannot flood a log.
func shorten(s string) string {
	const most = 64
	if len(s) <= most {
		return s
	}
	return s[:most] + "…"
}
