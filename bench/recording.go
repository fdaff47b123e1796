package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
)

// A recording is a command that a limiter sent, with the places of its keys, so
// that it can be sent again for others.
type recording struct {
	args   []string
	places []int // of arguments with a user's name
}

const userLength = len("user:0000000")

func newRecording(args []string) recording {
	r := recording{args: args}
	for i, arg := range args {
		if strings.Contains(arg, "user:") {
			r.places = append(r.places, i)
		}
	}
	return r
}

// command is the recorded one for the users first, first+1, …
func (r recording) command(first, users int) []any {
	command := make([]any, len(r.args))
	for i, arg := range r.args {
		command[i] = arg
	}
	for i, place := range r.places {
		arg := r.args[place]
		at := strings.Index(arg, "user:")
		command[place] = arg[:at] + user((first+i)%users) + arg[at+userLength:]
	}
	return command
}

// record returns the script execution that decides for one user. Its key has
// been asked for before, so that the script is known.
func record(ctx context.Context, b *testbed, decide decide) (recording, error) {
	if _, err := decide(ctx, user(0)); err != nil {
		return recording{}, err
	}
	commands, err := monitored(ctx, b, func() error {
		_, err := decide(ctx, user(0))
		return err
	})
	if err != nil {
		return recording{}, err
	}
	commands = slices.DeleteFunc(commands, func(args []string) bool { return !namesUser(args) })
	if len(commands) != 1 || !isExecution(commands[0]) {
		return recording{}, fmt.Errorf("a decision was not one execution but %d commands: %.200q", len(commands), commands)
	}
	return newRecording(commands[0]), nil
}

// namesUser distinguishes a decision's commands from those of a new connection or of a
// cluster.
func namesUser(args []string) bool { return strings.Contains(strings.Join(args, " "), "user:") }

func isExecution(args []string) bool { return len(args) > 3 && strings.EqualFold(args[0], "evalsha") }

// recordMerged returns the largest execution of calls made at the same time,
// one for each of the users.
func recordMerged(ctx context.Context, b *testbed, decide decide, users []int) (recording, error) {
	commands, err := monitored(ctx, b, func() error {
		start := make(chan struct{})
		errs := make(chan error, len(users))
		var wg sync.WaitGroup
		for _, u := range users {
			key := user(u)
			wg.Go(func() {
				<-start
				_, err := decide(ctx, key)
				errs <- err
			})
		}
		close(start)
		wg.Wait()
		for range users {
			if err := <-errs; err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return recording{}, err
	}
	var largest []string
	for _, args := range commands {
		if isExecution(args) && len(args) >= len(largest) {
			largest = args
		}
	}
	return newRecording(largest), nil
}
