package redistest

import (
	"context"
	"net"
)

// Through returns a Dialer for the options of a client that gets the addresses of its servers from the servers, as
// ClusterClient and the failover client do. The Dialer connects to each server through its proxy, if it has one.
func Through(proxies ...*Proxy) func(ctx context.Context, network, addr string) (net.Conn, error) {
	at := map[string]string{}
	for _, p := range proxies {
		at[p.target] = p.addr
	}
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		if proxy, ok := at[addr]; ok {
			addr = proxy
		}
		d := net.Dialer{Timeout: callDeadline}
		return d.DialContext(ctx, network, addr)
	}
}
