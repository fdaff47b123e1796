// Package otherclient makes a client of limiters of a Redis client of another library than go-redis. Modules rueidisclient
// and valkeyclient use it; for a third library, implement [Conn], some fifty lines, and run package clienttest on it.
//
//	limiter, err := ratelimit.NewTokenBucket(otherclient.New(conn), ratelimit.PerSecond(10), 20)
//
// Limiters on such a client do all that they do with go-redis: waiting calls are sent together, and each is executed at most
// once. On a Cluster, the Conn sends each command to the node that has the slot of its keys, and follows redirections (MOVED,
// ASK); limiters take no notice of them.
package otherclient

import (
	"context"
)

// A Conn is what a Redis client has to do. Its methods are called from many goroutines at once. They return when the
// context ends, and keep nothing of a command after that.
type Conn interface {
	// Do sends a command and returns its reply. The command is executed at most once: Do does not send it again when the
	// reply is lost or late. It may do so after a redirection by a Cluster, and where nothing was sent.
	Do(ctx context.Context, c Command) Reply

	// DoAll sends all commands in as few round trips as it can, and returns as many replies, in the same order. Each has a
	// value or an error of its own: when a connection breaks, those whose replies have come keep them. What holds for Do
	// holds for each command.
	DoAll(ctx context.Context, commands []Command) []Reply

	// DoEach sends the command, which has no keys, to each server that has keys, and returns an error if one of them failed.
	DoEach(ctx context.Context, c Command) error

	// Sharded reports whether keys of different slots may be on different servers, as on a Cluster. It is asked when a limiter
	// is made.
	Sharded() bool
}

// A Command is the words of a command. The keys among them are Words[Key : Key+Keys]; all are in one slot, unless the caller of
// the limiter has made a mistake, and on a server alone. The words are any bytes.
type Command struct {
	Words []string
	Key   int
	Keys  int
}

// A Reply has the value of a command, or the reason why there is none.
type Reply struct {
	// Value is an int64, a []int64, a string or a []byte, as the server replied; an array may also be a []any of int64.
	Value any

	// Err is a [ServerError] if the server replied with an error; any other error means that there is no reply, or that nothing was
	// sent.
	Err error
}

// A ServerError is an error that the server replied with, from its first word on: "NOSCRIPT No matching script". Nothing else tells a
// mistake, a damaged key and a script that has to be sent from an outage.
type ServerError string

func (e ServerError) Error() string { return string(e) }

// RedisError makes it a redis.Error of go-redis.
func (e ServerError) RedisError() {}
