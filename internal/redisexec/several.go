package redisexec

import (
	"encoding/binary"
	"slices"
	"strconv"

	"github.com/tryacquire/ratelimit/internal/keyname"
)

// A request to several limiters at once goes through this package, and through package
// merge, as the name of one key does. It is packed into one string: the names of its
// keys, what it asks of each limiter as the script reads it, and then for each the lengths of the
// two. Equal requests are equal strings.

const (
	packedNumber = 4  // bytes of each number behind the texts
	mostDigits   = 10 // of permits
	mostParts    = 9  // of a request: eight limiters and an id
)

// A Part is what a request asks of one limiter: so many permits of a key, or an operation of a Finish.
type Part struct {
	Head keyname.Head
	Key  string
	N    int
	Hold bool       // the permits are held in flight
	ID   string     // of the hold, or of an estimate's ticket, its name as all.lua reads it; empty: there is none
	Ends *Operation // of a Finish; nil: permits are taken

	// Of an id under which the permits are taken, in place of the others: the name of its key, and what all_once.lua reads.
	Name, Once string
}

// size is that of the name of the key.
func (p Part) size() int {
	if p.Name != "" {
		return len(p.Name)
	}
	return p.Head.Size(p.Key)
}

// append adds what p asks.
func (p Part) append(to []byte) []byte {
	if p.Once != "" {
		return append(to, p.Once...)
	}
	if p.Ends != nil {
		return p.Ends.Append(to)
	}
	to = strconv.AppendInt(to, int64(p.N), 10)
	switch {
	case p.Hold:
		return append(append(to, byte(Hold)), p.ID...)
	case p.ID != "":
		return append(append(to, byte(Begin)), p.ID...)
	}
	return to
}

// Pack packs a request.
func Pack(parts []Part) string {
	size := 0
	for _, p := range parts {
		size += p.size() + mostDigits + 1 + len(p.ID) + len(p.Once) + 2*packedNumber
	}
	packed := make([]byte, 0, size)
	for _, p := range parts {
		if p.Name != "" {
			packed = append(packed, p.Name...)
		} else {
			packed = p.Head.Append(packed, p.Key)
		}
	}
	var ends [mostParts + 1]int
	for i, p := range parts {
		ends[i] = len(packed)
		packed = p.append(packed)
	}
	ends[len(parts)] = len(packed)
	for i, p := range parts {
		packed = binary.BigEndian.AppendUint32(packed, uint32(p.size()))
		packed = binary.BigEndian.AppendUint32(packed, uint32(ends[i+1]-ends[i]))
	}
	return string(packed)
}

// unpack appends the names, and what is asked of each, of a packed request to limiters limiters.
func unpack(packed string, limiters int, names, asks []string) ([]string, []string) {
	numbers := packed[len(packed)-2*packedNumber*limiters:]
	first := len(names)
	for i := range limiters {
		size := number(numbers[2*packedNumber*i:])
		names = append(names, packed[:size])
		packed = packed[size:]
	}
	for i := range len(names) - first {
		size := number(numbers[2*packedNumber*i+packedNumber:])
		asks = append(asks, packed[:size])
		packed = packed[size:]
	}
	return names, asks
}

func number(s string) int64 {
	return int64(s[0])<<24 | int64(s[1])<<16 | int64(s[2])<<8 | int64(s[3])
}

// Route returns the name of the key that decides where a call goes. name is that of a
// key, or a packed request, whose keys all are on one server.
func (e *Executor) Route(name string) string {
	if e.Several == nil {
		return name
	}
	first := len(name) - 2*packedNumber*len(e.Several)
	return name[:number(name[first:])]
}

// several makes c run its script for packed requests, with times equal ones of each.
func (c *Command) several(requests int, request func(i int) (packed string, times any)) {
	all := c.unpack(requests, request)
	if c.script == c.exec.Many && requests > 1 && c.exec.Several[0].Common != nil {
		if c.common = c.findCommon(nil, requests); c.common > 0 {
			c.script = c.exec.Several[c.common-1].Common
		}
	}
	c.addNames()
	c.addConfig()
	c.addRequests(all, nil)
}

// severalTable is several for requests to so many groups of limiters, see [Executor.DoTable].
func (c *Command) severalTable(groups, requests int, request tableRequest) {
	group, args := make([]int, requests), make([][]any, requests)
	all := c.unpack(requests, func(i int) (packed string, times any) {
		name, equal, of, own := request(i)
		group[i], args[i] = of, own
		return *name, timesOf(equal)
	})
	if c.exec.Several[0].CommonOfSeveral != nil {
		if c.common = c.findCommon(args, requests); c.common > 0 {
			c.script = c.exec.Several[c.common-1].CommonOfSeveral
		}
	}
	c.addNames()
	c.addTable(groups, requests, func(i int) (int, []any) { return group[i], args[i] })
	c.addRequests(all, c.begins)
}

// unpack unpacks the requests, and returns how many equal ones each stands for.
func (c *Command) unpack(requests int, request func(i int) (packed string, times any)) []any {
	c.names, c.asks = c.names[:0], c.asks[:0]
	all := make([]any, 0, 8)
	for i := range requests {
		packed, times := request(i)
		c.names, c.asks = unpack(packed, len(c.exec.Several), c.names, c.asks)
		all = append(all, times)
	}
	return all
}

// addNames adds the script and the names of all keys.
func (c *Command) addNames() {
	c.limits = c.limits[:0]
	for i, name := range c.names {
		if limit := c.exec.Several[i%len(c.exec.Several)].Limit; limit != nil {
			c.limits = append(c.limits, limit(name))
		}
	}
	c.args = append(append(c.args, c.script.BySHA()...), count(len(c.names)+len(c.limits)))
	for i := range c.names {
		c.args = append(c.args, &c.names[i])
	}
	for i := range c.limits {
		c.args = append(c.args, &c.limits[i])
	}
}

// addRequests adds what each request asks. begins, unless it is nil, has for each how many arguments are
// in front of those of its limiters.
func (c *Command) addRequests(times []any, begins []int64) {
	limiters := len(c.exec.Several)
	for i, times := range times {
		c.args = append(c.args, times)
		for j := range limiters {
			c.args = append(c.args, &c.asks[i*limiters+j])
		}
		if begins != nil {
			c.args = append(c.args, &begins[i])
		}
	}
}

// wordsOfFinish is WordsOf for a Finish, whose reply has for each limiter how many words follow, and these.
func (e *Executor) wordsOfFinish(reply []int64) int {
	words := 0
	for range e.Several {
		if words >= len(reply) || reply[words] < 0 {
			return len(reply) + 1
		}
		words += 1 + int(reply[words])
	}
	return words
}

// Finished calls each with the words of the reply to a Finish that answer the operation of one limiter after the
// other. For one that failed there are none.
func Finished(reply []int64, each func(i int, words []int64)) {
	for i := 0; len(reply) > 0; i++ {
		n := 1 + int(reply[0])
		each(i, reply[1:n])
		reply = reply[n:]
	}
}

// timesOf is the number of calls in the requests for one key, as many.lua reads them, if
// all of them are one run for a permit: "1x7" or "1".
func timesOf(requests any) any {
	if runs, ok := requests.([]byte); ok {
		return runs[len("1x"):]
	}
	return requests
}

// findCommon returns the limiter, from 1, whose key and arguments are the same in all requests, or 0.
// args are those of the limiters of each request; nil: all requests are to the same limiters.
func (c *Command) findCommon(args [][]any, requests int) int {
	limiters, first := len(c.exec.Several), 0
next:
	for l, limiter := range c.exec.Several {
		from := first
		first += limiter.Args
		for i := 1; i < requests; i++ {
			if c.names[i*limiters+l] != c.names[l] || args != nil && !slices.EqualFunc(args[i][from:first], args[0][from:first], equalTexts) {
				continue next
			}
		}
		return l + 1
	}
	return 0
}

// equalTexts compares two of the Args of executors whose Args do not change with time.
func equalTexts(a, b any) bool { return a == b || *a.(*string) == *b.(*string) }

// arrange puts the words of each request into the order of the other scripts: from the
// last limiter to the first. Those of the limiter with the common key come last. A reply
// that ends too soon is left as it is.
func (c *Command) arrange() {
	all, before := c.exec.Words, 0 // words of the limiters that are before it in the other scripts' replies
	for _, l := range c.exec.Several[c.common:] {
		before += l.Words
	}
	own := c.exec.Several[c.common-1].Words
	room := make([]int64, own)
	for rest := c.words; len(rest) > 0; {
		if rest[0] < 0 { // a request that failed
			rest = rest[1:]
			continue
		}
		if len(rest) < all {
			return
		}
		words := rest[:all]
		copy(room, words[all-own:])
		copy(words[before+own:], words[before:all-own])
		copy(words[before:], room)
		rest = rest[all:]
	}
}
