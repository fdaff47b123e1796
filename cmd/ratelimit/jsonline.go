package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// The names under which servers write what a request needs, in the order in which they are looked for. A dot
// leads into an object.
var (
	jsonClients   = []string{"remote_addr", "request.remote_ip", "remote_ip", "client_ip", "ClientHost", "ClientAddr", "clientip", "remoteIp", "httpRequest.remoteIp", "downstream_remote_address", "client.ip", "source.ip", "client", "ip"}
	jsonTimes     = []string{"time_iso8601", "time_local", "@timestamp", "timestamp", "StartUTC", "start_time", "time", "ts", "msec"}
	jsonForwarded = []string{"http_x_forwarded_for", "x_forwarded_for", "forwarded_for", "request.headers.X-Forwarded-For", "request_X-Forwarded-For", "X-Forwarded-For"}
	jsonAgents    = []string{"http_user_agent", "user_agent", "userAgent", "request.headers.User-Agent", "request_User-Agent", "httpRequest.userAgent", "agent"}
	jsonPaths     = []string{"request_uri", "request.uri", "RequestPath", "uri", "path", "url", "httpRequest.requestUrl"}
)

// parseJSON reads a line of a log in JSON. Its format names the fields that were used, because a log may
// have several that could be the client.
func parseJSON(b []byte) (request, error) {
	var fields map[string]any
	if err := json.Unmarshal(b, &fields); err != nil {
		return request{}, errors.New("it is no object of JSON")
	}
	var r request
	client, name := jsonText(fields, jsonClients)
	if client == "" {
		return request{}, fmt.Errorf("no field has the client's address: %s", strings.Join(jsonClients, ", "))
	}
	when, timeName := jsonText(fields, jsonTimes)
	if when == "" {
		return request{}, fmt.Errorf("no field has the time: %s", strings.Join(jsonTimes, ", "))
	}
	at, err := jsonTime(when)
	if err != nil {
		return request{}, fmt.Errorf("%s: %w", timeName, err)
	}
	_, r.zone = at.Zone()
	r.at = at.UnixMicro()
	r.client = []byte(client)
	r.format = "JSON, clients from " + name
	if list, name := jsonText(fields, jsonForwarded); name != "" {
		r.forwarded = append([]byte{}, list...)
	}
	agent, _ := jsonText(fields, jsonAgents)
	r.agent = []byte(agent)
	if line, _ := jsonText(fields, []string{"request"}); strings.Contains(line, " ") {
		r.line = []byte(line)
	} else if path, _ := jsonText(fields, jsonPaths); path != "" {
		r.line = []byte("GET " + path)
	}
	return r, nil
}

// jsonText is the first of these fields that there is, and its name.
func jsonText(fields map[string]any, names []string) (text, found string) {
	for _, name := range names {
		at := fields
		rest := name
		for {
			outer, inner, nested := strings.Cut(rest, ".")
			if !nested {
				break
			}
			next, ok := at[outer].(map[string]any)
			if !ok {
				break
			}
			at, rest = next, inner
		}
		value, ok := at[rest]
		if !ok {
			continue
		}
		switch v := value.(type) {
		case string:
			return v, name
		case float64:
			return strconv.FormatFloat(v, 'f', -1, 64), name
		case []any: // a header's lines
			var lines []string
			for _, one := range v {
				line, _ := one.(string)
				lines = append(lines, line)
			}
			return strings.Join(lines, ", "), name
		}
	}
	return "", ""
}

// jsonTime reads RFC 3339, the time of common logs, or seconds or milliseconds since 1970.
func jsonTime(text string) (time.Time, error) {
	t, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		t, err = time.Parse("2006-01-02T15:04:05Z0700", text)
	}
	if n, e := strconv.ParseFloat(text, 64); e == nil && !math.IsNaN(n) && math.Abs(n) < 1e16 {
		if n > 1e11 {
			n /= 1000
		}
		t, err = time.UnixMicro(int64(math.Round(n*1e6))).UTC(), nil
	}
	if err != nil {
		return parseTime(text)
	}
	return t, inRange(t, text)
}
