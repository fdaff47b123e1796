// Package report writes what a replay found as one page of HTML.
package report

import "time"

// MaxBuckets is the most time buckets of a replay, so that the page stays small however
// long the log is.
const MaxBuckets = 1000

// MaxLimits is the most limits that are replayed side by side.
const MaxLimits = 32

// Data is what a replay found. In JSON it is what the command writes with --json. All texts are as they stood in the log or on the command
// line: they can hold markup, control characters and invalid UTF-8, and are text, never
// markup.
type Data struct {
	// Title is the page's headline, such as "Replay of access.log".
	Title string `json:"-"`

	// Sources are the logs in the order in which they were read: the names of files, or
	// "standard input".
	Sources []string `json:"sources"`

	// Formats says how lines were read, and how many in each way, the most frequent
	// first. A format without lines is left out.
	Formats []Format `json:"formats"`

	// Key says what had a limit of its own, in the singular and the plural: "client IP"
	// and "client IPs".
	KeyName  string `json:"key"`
	KeyNames string `json:"-"`

	// Lines is the number of lines read, blank ones left out. Requests of them were
	// replayed, and Skipped could not be read: Lines = Requests + Skipped.
	Lines    int `json:"lines"`
	Requests int `json:"requests"`
	Skipped  int `json:"skipped"`

	// Samples are the first lines that could not be read, three at most.
	Samples []Sample `json:"samples_skipped"`

	// Truncated are the logs whose gzip ends in the middle; of these, only the lines in front of that were read.
	Truncated []Truncated `json:"truncated,omitempty"`

	// First and Last are the times of the first request and of the last, in Zone. They are
	// zero if there are no requests.
	First time.Time `json:"first,omitzero"`
	Last  time.Time `json:"last,omitzero"`

	// Zone is the log's time zone, or UTC if the log's lines name several. All times of
	// the Data are in it.
	Zone *time.Location `json:"-"`

	// Keys is the number of different keys.
	Keys int `json:"keys"`

	// BucketWidth is the length of each bucket in Buckets: a whole number of seconds that
	// people count in (1 s, 5 s, 15 s, 1 min … 1 day …), the smallest for which no more
	// than MaxBuckets cover the log.
	BucketWidth time.Duration `json:"-"`

	// Buckets are the requests over time, without gaps: bucket i begins at
	// Buckets[0].Begin + i × BucketWidth. There are at most MaxBuckets, and none if there
	// are no requests.
	Buckets []Bucket `json:"buckets"`

	// Limits are the limits that were replayed side by side, in the order of the command
	// line. There is at least one, and at most MaxLimits.
	Limits []Limit `json:"limits"`

	// Sweep says that Limits are a row of one kind, in rising order, of which somebody wants
	// to pick one by the share that it denies. Each Label is then what differs, such as
	// "10/m burst 20".
	Sweep bool `json:"sweep"`

	// KeysDenied are the keys denied most, by all limits together, the most denied first;
	// KeysBeyond is how many more were denied by any limit.
	KeysDenied []Tally `json:"keys_denied_most"`
	KeysBeyond int     `json:"keys_denied_beyond"`

	// MinutesDenied are the minutes with the most denials, by all limits together, the
	// most denied first; MinutesDeniedBeyond is how many more had denials.
	MinutesDenied       []Tally `json:"minutes_denied_most"`
	MinutesDeniedBeyond int     `json:"minutes_denied_beyond"`

	// MinutesBusiest are the minutes with the most requests, the busiest first;
	// MinutesBusiestBeyond is how many more had requests.
	MinutesBusiest       []Tally `json:"minutes_busiest"`
	MinutesBusiestBeyond int     `json:"minutes_beyond"`

	// Differ is how many requests were not decided alike by all limits. It is 0 if there
	// is one limit.
	Differ int `json:"decided_differently"`

	// Took is how long the replay took.
	Took time.Duration `json:"-"`
}

// A Format is a format of log lines, and the number of lines in it.
type Format struct {
	Name  string `json:"name"` // such as "combined"
	Lines int    `json:"lines"`
}

// A Sample is a line that could not be read.
type Sample struct {
	Source string `json:"source"` // the file, as in Data.Sources
	Line   int    `json:"line"`   // its number in the file, from 1
	Reason string `json:"reason"` // why it could not be read, in words
	Text   string `json:"text"`   // the line's beginning, 400 bytes at most
}

// A Truncated is a log whose gzip ends in the middle.
type Truncated struct {
	Source string `json:"source"` // the file, as in Data.Sources
	Lines  int    `json:"lines"`  // that could be read
}

// A Bucket is a part of the time.
type Bucket struct {
	// Begin is the bucket's first instant.
	Begin time.Time `json:"begin"`

	// Requests is the number of requests in it.
	Requests int `json:"requests"`

	// Denied has for each of Data.Limits how many of Requests it denied; the others were
	// allowed.
	Denied []int `json:"denied"`
}

// A Limit is what one limit did.
type Limit struct {
	// Label names the limit in tables and legends, no two alike: "token-bucket", or
	// "token-bucket A" if several limits have this algorithm.
	Label string `json:"label"`

	// Text describes the limit in words: "10 per minute, up to 20 at once".
	Text string `json:"text"`

	// Flags is the limit as flags of the command: "--algorithm token-bucket --rate 10/m --burst 20".
	Flags string `json:"flags"`

	// Allowed and Denied are the requests that the limit allowed and denied; their sum is
	// Data.Requests.
	Allowed int `json:"allowed"`
	Denied  int `json:"denied"`

	// KeysDenied is how many of Data.Keys were denied at least once.
	KeysDenied int `json:"keys_denied"`
}

// A Tally counts the requests of one key, or of one minute.
type Tally struct {
	// Key is the key; empty in a tally of a minute. The key "-" is that of requests for
	// which the log has no key.
	Key string `json:"key,omitempty"`

	// Minute is the beginning of the minute; zero in a tally of a key.
	Minute time.Time `json:"minute,omitzero"`

	// Requests is the number of requests.
	Requests int `json:"requests"`

	// Denied has for each of Data.Limits how many of Requests it denied.
	Denied []int `json:"denied"`
}

// Allowed is how many requests of the bucket a limit of Data.Limits allowed.
func (b Bucket) Allowed(limit int) int { return b.Requests - b.Denied[limit] }

// Allowed is how many requests of the tally a limit of Data.Limits allowed.
func (t Tally) Allowed(limit int) int { return t.Requests - t.Denied[limit] }
