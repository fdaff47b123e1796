package main

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"strings"

	"github.com/tryacquire/ratelimit/httplimit"
)

// Clients say which client made a request, as httplimit.ClientIP does in front of a service: the same
// function reads the addresses.
type clients struct {
	key     httplimit.KeyFunc
	trusted []netip.Prefix

	known map[string]string // the clients of addresses as the log has them
}

// maxKnown is how many addresses are remembered.
const maxKnown = 1 << 16

func newClients(ipv6Bits int, trusted []string) (clients, error) {
	c := clients{known: map[string]string{}}
	for _, text := range trusted {
		p, err := netip.ParsePrefix(text)
		if err != nil {
			return clients{}, fmt.Errorf("--trust %q: it is no network such as 10.0.0.0/8, or 192.0.2.7/32 for a single address", text)
		}
		c.trusted = append(c.trusted, p)
	}
	var err error
	if c.key, err = httplimit.ClientIP(c.trusted, httplimit.WithIPv6Prefix(ipv6Bits)); err != nil {
		return clients{}, fmt.Errorf("--ipv6-prefix or --trust: %w", err)
	}
	return c, nil
}

var errNoForwarded = errors.New("it comes from a network of --trust, and X-Forwarded-For is not behind its user agent")

// resolve replaces the client of r as the log has it by the one that is limited.
func (c clients) resolve(r *request) error {
	if client, ok := c.known[string(r.client)]; ok && r.forwarded == nil {
		r.client = append(r.client[:0:0], client...)
		return nil
	}
	client, err := c.clientOf(r)
	if err != nil {
		return err
	}
	if r.forwarded == nil {
		if len(c.known) >= maxKnown {
			clear(c.known)
		}
		c.known[string(r.client)] = client
	}
	r.client = []byte(client)
	return nil
}

func (c clients) clientOf(r *request) (string, error) {
	peer := string(bytes.Trim(r.client, "[]"))
	if bytes.Count(r.client, []byte(":")) > 0 { // [2001:db8::1]:443
		peer = string(r.client)
	}
	if !isAddress(r.client) {
		if isHost(peer) { // a server that looks names up
			return peer, nil
		}
		return "", errNoClient
	}
	if addr, err := netip.ParseAddr(peer); err == nil && addr.Zone() == "" {
		peer = netip.AddrPortFrom(addr, 1).String() // what a server sees
	}
	q := &http.Request{RemoteAddr: peer, Header: http.Header{}}
	if len(c.trusted) > 0 && r.forwarded != nil {
		if list := string(r.forwarded); list != "-" && list != "" {
			q.Header["X-Forwarded-For"] = []string{list}
		}
	}
	key, err := c.key(q)
	if err != nil {
		return "", errors.New(strings.TrimPrefix(err.Error(), "httplimit: "))
	}
	client := strings.TrimPrefix(key, "ip:")
	if len(c.trusted) > 0 && r.forwarded == nil && c.trusts(client) {
		return "", errNoForwarded
	}
	return client, nil
}

// trusts reports whether a client is in one of the networks of --trust.
func (c clients) trusts(client string) bool {
	addr, err := netip.ParseAddr(client)
	if p, e := netip.ParsePrefix(client); e == nil {
		addr, err = p.Addr(), nil
	}
	for _, p := range c.trusted {
		if err == nil && p.Contains(addr) {
			return true
		}
	}
	return false
}

// isAddress reports whether a field is an address, with or without a port.
func isAddress(b []byte) bool {
	if len(b) == 0 || len(b) > 64 || !addressBegins(b[0]) {
		return false
	}
	text := string(b)
	if _, err := netip.ParseAddr(strings.Trim(text, "[]")); err == nil {
		return true
	}
	_, err := netip.ParseAddrPort(text)
	return err == nil
}

func addressBegins(c byte) bool {
	return '0' <= c && c <= '9' || 'a' <= c && c <= 'f' || 'A' <= c && c <= 'F' || c == ':' || c == '['
}

// isHost reports whether a field can be the name of a host.
func isHost(s string) bool {
	for i := range len(s) {
		c := s[i]
		if (c < '0' || c > '9') && (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && c != '-' && c != '.' && c != '_' {
			return false
		}
	}
	return s != "" && s != "-"
}
