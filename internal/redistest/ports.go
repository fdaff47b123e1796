package redistest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
)

const (
	// Ports are drawn from below the range that kernels give to outgoing connections (from 32768 on Linux). A port
	// that the kernel chose itself could be taken by any outgoing connection while its server is down, so that the
	// server could not come back; or a client that dials the dead server could be given that very port as its own,
	// and find itself connected to itself.
	lowestPort = 10000
	portCount  = 12000
	// busOffset is where a cluster node's bus port lies, from its port; it stays below the outgoing range as well.
	busOffset = 10000
	portTries = 200
)

var errNoPort = errors.New("redistest: found no free port")

func loopback(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

// listen listens on a free loopback port.
func listen() (net.Listener, error) {
	for range portTries {
		if l, err := net.Listen("tcp", loopback(lowestPort+rand.IntN(portCount))); err == nil {
			return l, nil
		}
	}
	return nil, errNoPort
}

// freePort returns a port that was free a moment ago. Somebody else may take it before a server does, so that callers
// start again when the server finds it taken. With bus, the cluster bus port that belongs to it was free too.
func freePort(bus bool) (int, error) {
	for range portTries {
		l, err := listen()
		if err != nil {
			return 0, err
		}
		port := l.Addr().(*net.TCPAddr).Port
		if bus {
			var b net.Listener
			if b, err = net.Listen("tcp", loopback(port+busOffset)); err == nil {
				err = b.Close()
			}
		}
		if closeErr := l.Close(); closeErr != nil {
			return 0, fmt.Errorf("redistest: %w", closeErr)
		}
		if err == nil {
			return port, nil
		}
	}
	return 0, errNoPort
}
