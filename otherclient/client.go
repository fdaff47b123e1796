package otherclient

import (
	"context"
	"fmt"
	"strconv"

	"github.com/redis/go-redis/v9"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/identity"
	"github.com/tryacquire/ratelimit/internal/redisclient"
	"github.com/tryacquire/ratelimit/internal/redisexec"
)

// New returns a client for limiters. Give all limiters of one Conn the same client: their calls are sent together. Of a nil
// Conn it returns nil, which constructors refuse.
func New(conn Conn) ratelimit.Client {
	if identity.IsNil(conn) {
		return nil
	}
	return &client{conn: conn}
}

type client struct {
	conn  Conn
	nodes nodes
}

var _ redisclient.Merging = (*client)(nil)

func (c *client) Process(ctx context.Context, cmd redis.Cmder) error {
	command, err := commandOf(cmd, make([]string, len(cmd.Args())))
	if err != nil {
		cmd.SetErr(err)
		return err
	}
	return answer(cmd, c.conn.Do(ctx, command))
}

func (c *client) ProcessAll(ctx context.Context, cmds []redis.Cmder) error {
	commands, size := make([]Command, len(cmds)), 0
	for _, cmd := range cmds {
		size += len(cmd.Args())
	}
	words := make([]string, size)
	for i, cmd := range cmds {
		n := len(cmd.Args())
		var err error
		if commands[i], err = commandOf(cmd, words[:n:n]); err != nil {
			return err // the package's own commands have no such words
		}
		words = words[n:]
	}
	replies := c.conn.DoAll(ctx, commands)
	if len(replies) != len(cmds) {
		return fmt.Errorf("otherclient: DoAll returned %d replies to %d commands", len(replies), len(cmds))
	}
	var first error
	for i, cmd := range cmds {
		if err := answer(cmd, replies[i]); err != nil && first == nil {
			first = err
		}
	}
	return first
}

func (c *client) ProcessOnEach(ctx context.Context, cmd func() redis.Cmder) error {
	one := cmd()
	command, err := commandOf(one, make([]string, len(one.Args())))
	if err != nil {
		return err
	}
	return c.conn.DoEach(ctx, command)
}

func (c *client) Several() bool { return c.conn.Sharded() }

// Server stands for the node that has the key's slot. Until that is known, it stands for some neighbouring slots: a Cluster gives
// its nodes ranges of slots, so that most groups have one node, and a node that hangs holds up few others.
func (c *client) Server(_ context.Context, key string) (any, error) {
	const neighbours = slots / 32
	slot := slotOf(key)
	if node := c.nodes.of(c.conn, slot); node != nil {
		return node, nil
	}
	return slot / neighbours, nil
}

// commandOf is the words of a command, and where its keys are. The words are stored in words.
func commandOf(cmd redis.Cmder, words []string) (Command, error) {
	for i, arg := range cmd.Args() {
		var err error
		if words[i], err = word(arg); err != nil {
			return Command{}, fmt.Errorf("otherclient: word %d of %s: %w", i+1, cmd.Name(), err)
		}
	}
	c := Command{Words: words}
	switch cmd.Name() {
	case "evalsha", "eval": // the script, the number of keys, the keys
		if len(words) < 3 {
			return Command{}, fmt.Errorf("otherclient: %s without a number of keys", cmd.Name())
		}
		n, err := strconv.Atoi(words[2])
		if err != nil || n < 0 || n > len(words)-3 {
			return Command{}, fmt.Errorf("otherclient: %s has %q keys", cmd.Name(), words[2])
		}
		c.Key, c.Keys = 3, n
	case "unlink":
		c.Key, c.Keys = 1, len(words)-1
	case "script":
	default:
		return Command{}, fmt.Errorf("otherclient: %s is no command of a limiter; send it with the library's own client", cmd.Name())
	}
	return c, nil
}

// word is an argument as go-redis would send it, for those types that limiters use.
func word(arg any) (string, error) {
	switch v := arg.(type) {
	case string:
		return v, nil
	case *string:
		return *v, nil
	case []byte:
		return string(v), nil // a copy: the bytes are used again
	case int:
		return strconv.Itoa(v), nil
	case *int:
		return strconv.Itoa(*v), nil
	case int64:
		return strconv.FormatInt(v, 10), nil
	case *int64:
		return strconv.FormatInt(*v, 10), nil
	}
	return "", fmt.Errorf("a %T", arg)
}

// answer gives cmd its reply.
func answer(cmd redis.Cmder, r Reply) error {
	err := r.Err
	if err == nil {
		err = setValue(cmd, r.Value)
	}
	if err != nil {
		cmd.SetErr(err)
	}
	return err
}

func setValue(cmd redis.Cmder, value any) error {
	if once, ok := cmd.(*redisexec.Once); ok {
		cmd = once.Cmder
	}
	switch cmd := cmd.(type) {
	case *redis.IntCmd:
		if v, ok := value.(int64); ok {
			cmd.SetVal(v)
			return nil
		}
	case *redis.IntSliceCmd:
		if v, ok := integers(value); ok {
			cmd.SetVal(v)
			return nil
		}
	case *redis.StringCmd:
		switch v := value.(type) {
		case string:
			cmd.SetVal(v)
			return nil
		case []byte:
			cmd.SetVal(string(v))
			return nil
		}
	}
	return fmt.Errorf("otherclient: the reply to %s is a %T, where a %T expects another type", cmd.Name(), value, cmd)
}

func integers(value any) ([]int64, bool) {
	switch v := value.(type) {
	case []int64:
		return v, true
	case []any:
		all := make([]int64, len(v))
		for i, one := range v {
			n, ok := one.(int64)
			if !ok {
				return nil, false
			}
			all[i] = n
		}
		return all, true
	}
	return nil, false
}
