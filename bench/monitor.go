package main

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"
)

// monitored returns the commands that clients send while f runs, as the server
// received them: whatever the library, and with the arguments that it really
// sends.
func monitored(ctx context.Context, b *testbed, f func() error) ([][]string, error) {
	conn, err := net.Dial("tcp", b.server.Addr())
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
		return nil, err
	}
	if _, err := conn.Write([]byte("MONITOR\r\n")); err != nil {
		return nil, err
	}
	lines := bufio.NewReader(conn)
	if _, err := lines.ReadString('\n'); err != nil { // +OK
		return nil, err
	}
	if err := f(); err != nil {
		return nil, err
	}
	const end = "end of the recording"
	if err := b.admin.Echo(ctx, end).Err(); err != nil {
		return nil, err
	}
	var commands [][]string
	for {
		line, err := lines.ReadString('\n')
		if err != nil {
			return nil, fmt.Errorf("MONITOR: %w", err)
		}
		args, sent, err := parseMonitor(line)
		if err != nil {
			return nil, err
		}
		if len(args) == 2 && args[1] == end {
			return commands, nil
		}
		if sent {
			commands = append(commands, args)
		}
	}
}

// parseMonitor reads a line such as
//
//	+1700000000.123456 [0 127.0.0.1:6379] "GET" "key"
//
// and reports whether a client sent it. What a script calls has "lua" in place
// of the address.
func parseMonitor(line string) (args []string, sent bool, err error) {
	_, rest, ok := strings.Cut(line, " [")
	origin, rest, ok2 := strings.Cut(rest, "] ")
	if !ok || !ok2 {
		return nil, false, fmt.Errorf("MONITOR: %q", line)
	}
	rest = strings.TrimSpace(rest)
	for rest != "" {
		quoted, err := strconv.QuotedPrefix(rest)
		if err != nil {
			return nil, false, fmt.Errorf("MONITOR: %q: %w", rest, err)
		}
		arg, err := strconv.Unquote(quoted)
		if err != nil {
			return nil, false, fmt.Errorf("MONITOR: %s: %w", quoted, err)
		}
		args = append(args, arg)
		rest = strings.TrimSpace(rest[len(quoted):])
	}
	return args, !strings.HasSuffix(origin, " lua"), nil
}
