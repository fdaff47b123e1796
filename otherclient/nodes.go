package otherclient

import (
	"context"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

const (
	slots      = 16_384
	nodesFresh = time.Minute // then the server is asked again
	nodesWait  = time.Second // for its answer
)

// nodes is which node of a Cluster has which slot. It only says which waiting calls are sent together: if it is out of date, the
// Conn still sends each command to the right node.
type nodes struct {
	last   atomic.Pointer[placement]
	asking atomic.Bool
}

// A placement is the Cluster's last answer, and when it was asked last.
type placement struct {
	asked time.Time
	node  [slots]uint16 // its index in ids, from 1; 0: not known
	ids   []*string     // equal pointers are one node, in each placement
}

// of returns a value that is the same for all slots of a node, or nil if the node is not known. It does not wait: when its
// knowledge is old, it asks the Cluster in the background.
func (n *nodes) of(conn Conn, slot int) any {
	p := n.last.Load()
	if (p == nil || time.Since(p.asked) > nodesFresh) && n.asking.CompareAndSwap(false, true) {
		go n.ask(conn)
	}
	if p == nil || p.node[slot] == 0 {
		return nil
	}
	return p.ids[p.node[slot]-1]
}

func (n *nodes) ask(conn Conn) {
	var next placement
	if last := n.last.Load(); last != nil {
		next = *last // which stays, if no answer comes
	}
	next.asked = time.Now()
	defer func() {
		_ = recover() // a panic of the Conn would end the process here
		n.last.Store(&next)
		n.asking.Store(false)
	}()
	ctx, cancel := context.WithTimeout(context.Background(), nodesWait)
	defer cancel()
	switch text := conn.Do(ctx, Command{Words: []string{"CLUSTER", "NODES"}}).Value.(type) {
	case string:
		next.read(text)
	case []byte:
		next.read(string(text))
	}
}

// read reads a reply to CLUSTER NODES, in which each node has a line:
//
//	<id> <address> <flags> <master> <ping> <pong> <epoch> <link> <slot> <slot>-<slot> [<slot>->-<importing node>] ...
func (p *placement) read(text string) {
	known := map[string]*string{}
	for _, id := range p.ids {
		known[*id] = id
	}
	p.ids, p.node = nil, [slots]uint16{}
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) < 9 || len(p.ids) == slots {
			continue // a replica, or a master without slots
		}
		id := known[fields[0]]
		if id == nil {
			own := strings.Clone(fields[0])
			id = &own
		}
		p.ids = append(p.ids, id)
		for _, field := range fields[8:] {
			first, last, isRange := strings.Cut(field, "-")
			if !isRange {
				last = first
			}
			from, err := strconv.ParseUint(first, 10, 14)
			to, err2 := strconv.ParseUint(last, 10, 14)
			if err != nil || err2 != nil {
				continue // a slot that is moving: [93-<-…]
			}
			for slot := from; slot <= to; slot++ {
				p.node[slot] = uint16(len(p.ids))
			}
		}
	}
}
