package redistest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
)

const (
	// Ports are chosen below the range that kernels use for outgoing connections (from 32768 on Linux). A port in that
	// range could be taken by an outgoing connection while its server is down, and the server could not start again. Or
	// a client that dials the dead server could get the same port as its own, and be connected to itself.
	lowestPort = 10000
	portCount  = 12000
	// busOffset is a cluster node's bus port less its port. Bus ports are below the outgoing range as well.
	busOffset = 10000
	portTries = 200
)

var errNoPort = errors.New("redistest: found no free port")

func loopback(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

// claims are the sockets of claim, which the garbage collector would close.
var claims sync.Map

// claim takes a port for as long as this process runs, by the UDP port of the same number, which no server uses. So
// no other test takes the port of a server that was stopped and will start again; to a cluster, that server would be
// another node at the same address.
func claim(port int) bool {
	socket, err := net.ListenPacket("udp", loopback(port))
	if err == nil {
		claims.Store(port, socket)
	}
	return err == nil
}

// listen listens on a free loopback port.
func listen() (net.Listener, error) {
	for range portTries {
		port := lowestPort + rand.IntN(portCount)
		if !claim(port) {
			continue
		}
		if l, err := net.Listen("tcp", loopback(port)); err == nil {
			return l, nil
		}
	}
	return nil, errNoPort
}

// freePort returns a port that was free a moment ago. Another process may take it before a server does; callers then try
// again. With bus, the cluster bus port that belongs to it was free too.
func freePort(bus bool) (int, error) {
	for range portTries {
		l, err := listen()
		if err != nil {
			return 0, err
		}
		port := l.Addr().(*net.TCPAddr).Port
		if bus && !claim(port+busOffset) {
			err = errNoPort
		} else if bus {
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
