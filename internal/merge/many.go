package merge

import (
	"context"

	"github.com/tryacquire/ratelimit/internal/redisexec"
)

// A Call is one of several that [Merger.AcquireMany] makes.
type Call struct {
	Key string
	N   int
}

// An Outcome is the answer to one of them. Reply needs no Done.
type Outcome struct {
	Reply redisexec.Reply
	Err   error
}

// AcquireMany makes calls that do not wait for others, in one round trip where they are for
// one server: in executions that each cost a bounded time, in a pipeline. Where keys may be
// on several servers there is a pipeline for each thousand calls. Calls for one key
// are decided in their order. It returns the context's error for all of them as soon as ctx
// ends.
func (m *Merger) AcquireMany(ctx context.Context, calls []Call) []Outcome {
	batches, slots := m.batches(ctx, calls)
	_, err := redisexec.Await(ctx, func() (redisexec.Reply, error) {
		m.sender.sendInTurn(ctx, batches)
		return redisexec.Reply{}, nil
	})
	outcomes := make([]Outcome, len(calls))
	for i := range outcomes {
		if err != nil {
			outcomes[i].Err, outcomes[i].Reply.Batch = err, &slots[i].batch.sent
		} else {
			outcomes[i].Reply, outcomes[i].Err = slots[i].reply()
		}
	}
	return outcomes
}

// batches puts the calls into batches.
func (m *Merger) batches(ctx context.Context, calls []Call) ([]*batch, []slot) {
	var batches []*batch
	var open *batch
	last := map[lastKey]int{}
	slots := make([]slot, len(calls))
	for i, c := range calls {
		var ok bool
		if open != nil {
			slots[i], ok = open.add(ctx, m.limit, c.Key, take(c.N), noDeadline, last)
		}
		if !ok {
			clear(last)
			open = newBatch()
			open.apart = m.sender.pipelined.Load()
			batches = append(batches, open)
			slots[i], _ = open.add(ctx, m.limit, c.Key, take(c.N), noDeadline, last)
		}
	}
	for _, b := range batches {
		b.sent.Calls = b.calls
	}
	return batches, slots
}

// sendInTurn executes batches in their order: in one pipeline, if their keys are on one
// server and the client has pipelines.
func (s *sender) sendInTurn(ctx context.Context, batches []*batch) {
	if len(batches) == 1 || s.pipelined.Load() || s.pipelines == nil {
		for _, b := range batches {
			s.sendWith(ctx, b)
		}
		return
	}
	defer func() {
		err := redisexec.Unfinished(recover())
		for _, b := range batches {
			b.fail(err)
		}
	}()
	commands, keys := make([]command, len(batches)), make([][]int, len(batches))
	for i, b := range batches {
		keys[i] = b.pendingKeys()
		exec := b.limits[0].Exec // they are of one limiter
		c, err := exec.CommandMany(exec.Many, len(keys[i]), func(j int) (*string, any) {
			return &b.runs[keys[i][j]].key, b.requests(keys[i][j])
		})
		if err != nil { // the caller's clock is out of range
			for _, b := range batches {
				b.fail(err)
			}
			return
		}
		commands[i] = command{c, i}
	}
	s.sendCommands(ctx, commands, func(i int, words []int64, err error) {
		s.settle(ctx, batches[i], keys[i], words, err)
	})
}
