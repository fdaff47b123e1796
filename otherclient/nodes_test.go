package otherclient

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// asked answers CLUSTER NODES, and counts how often it is asked.
type asked struct {
	reply func() Reply
	times int
}

func (a *asked) Do(_ context.Context, c Command) Reply {
	if len(c.Words) != 2 || c.Words[0] != "CLUSTER" || c.Words[1] != "NODES" || c.Keys != 0 {
		return Reply{Err: errors.New("another command")}
	}
	a.times++
	return a.reply()
}

func (a *asked) DoAll(context.Context, []Command) []Reply { panic("no calls are made") }
func (a *asked) DoEach(context.Context, Command) error    { panic("no calls are made") }
func (a *asked) Sharded() bool                            { return true }

const (
	twoMasters = `07c37df 127.0.0.1:30004@31004,host4 slave e7d1eec 0 1426238317239 4 connected
67ed2db 127.0.0.1:30002@31002 master - 0 1426238316232 2 connected 5461-10922 16383
292f8b3 127.0.0.1:30003@31003 master - 0 1426238318243 3 connected
e7d1eec 127.0.0.1:30001@31001,host1 myself,master - 0 0 1 connected 0-5460 [93->-292f8b3] [77-<-67ed2db] 10923-16382
`
	failedOver = `07c37df 127.0.0.1:30004@31004 myself,master - 0 0 5 connected 0-5460 10923-16382
67ed2db 127.0.0.1:30002@31002 master - 0 1426238316232 2 connected 5461-10922 16383
e7d1eec 127.0.0.1:30001@31001 master,fail - 1 1 1 disconnected
`
)

// TestTheNodeOfASlot: Server is the node that CLUSTER NODES names. It is asked in the background, once a minute while there are calls.
func TestTheNodeOfASlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conn := &asked{reply: func() Reply { return Reply{Value: twoMasters} }}
		c := New(conn).(*client)
		server := func(slot int) any {
			for key := 0; ; key++ {
				if text := time.Duration(key).String(); slotOf(text) == slot {
					s, err := c.Server(t.Context(), text)
					require.NoError(t, err)
					return s
				}
			}
		}
		require.Equal(t, 0, server(0), "not known yet: a part of the slots")
		synctest.Wait()
		first, second := server(0), server(5461)
		require.NotEqual(t, first, second)
		for slot, want := range map[int]any{93: first, 77: first, 5460: first, 10_922: second, 10_923: first, 16_382: first, 16_383: second} {
			require.Same(t, want, server(slot), slot)
		}
		require.Equal(t, 1, conn.times)

		time.Sleep(nodesFresh)
		server(0)
		synctest.Wait()
		require.Equal(t, 1, conn.times, "it is a minute old, and no older")
		time.Sleep(time.Nanosecond)
		conn.reply = func() Reply {
			time.Sleep(nodesWait)
			return Reply{Value: []byte(failedOver)}
		}
		asked := time.Now()
		require.Same(t, first, server(0))
		require.Zero(t, time.Since(asked), "the answer is not awaited")
		time.Sleep(nodesWait)
		synctest.Wait()
		require.Equal(t, 2, conn.times)
		require.Same(t, second, server(5461), "a node is the same in each answer")
		require.Same(t, server(0), server(16_382))
		require.NotSame(t, first, server(0))

		for i, reply := range []func() Reply{
			func() Reply { return Reply{Err: ServerError("NOPERM this user has no permissions")} },
			func() Reply { panic("a fault of the Conn") },
		} {
			time.Sleep(nodesFresh + time.Nanosecond)
			conn.reply = reply
			server(0)
			synctest.Wait()
			require.Equal(t, 3+i, conn.times)
			require.Same(t, second, server(5461), "what was known stays")
		}
		require.Equal(t, 4, conn.times, "who does not answer is not asked again at once")
	})
}

// TestNoNodes: a server that does not say which node has a slot.
func TestNoNodes(t *testing.T) {
	for _, reply := range []Reply{{Err: ServerError("ERR unknown subcommand")}, {Value: int64(1)}, {Value: "0 1 2 3 4 5 6 7 8-99999 - x -1 9-"}} {
		synctest.Test(t, func(t *testing.T) {
			conn := &asked{reply: func() Reply { return reply }}
			c := New(conn).(*client)
			for range 3 {
				s, err := c.Server(t.Context(), "123456789") // slot 12,739
				require.NoError(t, err)
				require.Equal(t, 24, s)
				synctest.Wait()
			}
			require.Equal(t, 1, conn.times)
		})
	}
}
