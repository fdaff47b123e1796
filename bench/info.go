package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"
)

// A tally is what a server has done since it was started.
type tally struct {
	commands map[string]commandStat
	cpu      float64 // microseconds of the process, in user and system mode
	changes  int     // of the data
	memory   int     // bytes in use
}

// A commandStat is one command's line of INFO commandstats. Commands that a
// script calls are counted on their own and in the script's time.
type commandStat struct {
	calls int
	usec  int
}

func takeTally(ctx context.Context, c *redis.Client) (tally, error) {
	text, err := c.Info(ctx, "commandstats", "cpu", "persistence", "memory").Result()
	if err != nil {
		return tally{}, fmt.Errorf("INFO: %w", err)
	}
	return parseTally(text)
}

func parseTally(text string) (tally, error) {
	t := tally{commands: map[string]commandStat{}}
	for line := range strings.Lines(text) {
		name, value, ok := strings.Cut(strings.TrimSpace(line), ":")
		if !ok {
			continue
		}
		var err error
		switch {
		case strings.HasPrefix(name, "cmdstat_"):
			var s commandStat
			s, err = parseCommandStat(value)
			t.commands[strings.TrimPrefix(name, "cmdstat_")] = s
		case name == "used_cpu_user" || name == "used_cpu_sys":
			var seconds float64
			seconds, err = strconv.ParseFloat(value, 64)
			t.cpu += seconds * 1e6
		case name == "rdb_changes_since_last_save":
			t.changes, err = strconv.Atoi(value)
		case name == "used_memory":
			t.memory, err = strconv.Atoi(value)
		}
		if err != nil {
			return tally{}, fmt.Errorf("INFO: %s: %w", line, err)
		}
	}
	return t, nil
}

// parseCommandStat reads "calls=2,usec=30,usec_per_call=15.00,…".
func parseCommandStat(text string) (commandStat, error) {
	var s commandStat
	for field := range strings.SplitSeq(text, ",") {
		name, value, _ := strings.Cut(field, "=")
		var err error
		switch name {
		case "calls":
			s.calls, err = strconv.Atoi(value)
		case "usec":
			s.usec, err = strconv.Atoi(value)
		}
		if err != nil {
			return commandStat{}, err
		}
	}
	return s, nil
}

// since is what was done after start.
func (t tally) since(start tally) tally {
	d := tally{
		commands: map[string]commandStat{},
		cpu:      t.cpu - start.cpu, changes: t.changes - start.changes, memory: t.memory - start.memory,
	}
	for name, s := range t.commands {
		before := start.commands[name]
		d.commands[name] = commandStat{s.calls - before.calls, s.usec - before.usec}
	}
	return d
}

// scripts is the time of all script executions.
func (t tally) scripts() float64 { return t.usec("evalsha", "eval") }

func (t tally) usec(commands ...string) float64 {
	sum := 0
	for _, name := range commands {
		sum += t.commands[name].usec
	}
	return float64(sum)
}
