package main

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"fmt"
	"net"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/protobuf/encoding/protowire"
)

// patience is how long an answer may take.
const patience = 10 * time.Second

// A conn is an HTTP/2 connection that callers share, as the requests of one of Envoy's threads do. One goroutine does the
// work of all of them: it reads answers, gives each caller its next request, and writes these together when it has read all
// that was there. Callers that are clients of grpc-go take as much of the processors as a service does.
type conn struct {
	net.Conn
	in     *bufio.Reader
	out    *bufio.Writer // keeps an error until it is flushed
	frames *http2.Framer

	requests      [][]byte // in gRPC's frames
	header, again []byte   // of the next request, and of all after the first one: the service has these fields in its table
	stream        uint32   // of the last request
	asking        map[uint32]*caller
	waiting       []*caller // until the service takes more
	takes         int       // how many bytes the service takes now
	returned      int       // how many bytes were read of which the service does not know yet

	fields *hpack.Decoder
	reads  *caller // whose fields are read
	answers
}

// A caller has one request under way.
type caller struct {
	next            int // of the requests
	sent            time.Time
	answer          []byte
	status, message string // of gRPC
}

// answers are what became of requests.
type answers struct {
	took       []time.Duration // by those that were sent after the beginning
	good, over int             // with a decision; denied
	failed     int
	failure    error // of the first one
}

// tableSize is how many bytes of fields both sides remember, if neither says another number.
const tableSize = 4096

// connect opens a connection for so many callers.
func connect(address string, callers int, requests [][]byte) (*conn, error) {
	tcp, err := net.Dial("tcp", address)
	if err != nil {
		return nil, err
	}
	c := &conn{Conn: tcp, in: bufio.NewReaderSize(tcp, 1<<16), out: bufio.NewWriterSize(tcp, 1<<16),
		requests: requests, asking: map[uint32]*caller{}, takes: 1<<16 - 1}
	c.frames = http2.NewFramer(c.out, c.in)
	c.frames.SetReuseFrames()
	c.fields = hpack.NewDecoder(tableSize, func(f hpack.HeaderField) {
		switch f.Name {
		case "grpc-status":
			c.reads.status = f.Value
		case "grpc-message":
			c.reads.message = f.Value
		}
	})
	var text bytes.Buffer
	encoder := hpack.NewEncoder(&text)
	for _, to := range []*[]byte{&c.header, &c.again} {
		for _, f := range []hpack.HeaderField{
			{Name: ":method", Value: "POST"}, {Name: ":scheme", Value: "http"}, {Name: ":authority", Value: address},
			{Name: ":path", Value: pb.RateLimitService_ShouldRateLimit_FullMethodName},
			{Name: "content-type", Value: "application/grpc"}, {Name: "te", Value: "trailers"},
		} {
			_ = encoder.WriteField(f)
		}
		*to = bytes.Clone(text.Bytes())
		text.Reset()
	}
	if err := c.greet(uint32(callers)); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// greet begins the connection. The error says what the service does not allow.
func (c *conn) greet(callers uint32) error {
	_ = c.SetDeadline(time.Now().Add(patience))
	_, _ = c.out.WriteString(http2.ClientPreface)
	_ = c.frames.WriteSettings()
	if err := c.out.Flush(); err != nil {
		return err
	}
	frame, err := c.frames.ReadFrame()
	if err != nil {
		return err
	}
	settings, ok := frame.(*http2.SettingsFrame)
	if !ok {
		return fmt.Errorf("the service begins with %v", frame)
	}
	_ = c.frames.WriteSettingsAck()
	least := map[http2.SettingID]uint32{
		http2.SettingMaxConcurrentStreams: callers, http2.SettingHeaderTableSize: tableSize, http2.SettingInitialWindowSize: 1<<16 - 1,
	}
	return settings.ForeachSetting(func(s http2.Setting) error {
		if s.Val < least[s.ID] {
			return fmt.Errorf("the service has %v; the callers need %d", s, least[s.ID])
		}
		return nil
	})
}

// ask lets callers ask, and again while there is to be more, and reads the last answers. Each takes every step-th request.
func (c *conn) ask(callers []*caller, step int, begin time.Time, more func(now time.Time) bool) error {
	for _, one := range callers {
		c.send(one, time.Now())
	}
	for len(c.asking)+len(c.waiting) > 0 {
		if c.in.Buffered() == 0 {
			if err := c.out.Flush(); err != nil {
				return err
			}
		}
		frame, err := c.frames.ReadFrame()
		if err != nil {
			return err
		}
		one := c.asking[frame.Header().StreamID]
		switch done, err := c.read(frame, one); {
		case err != nil:
			return err
		case !done:
			continue
		}
		delete(c.asking, frame.Header().StreamID)
		now := time.Now()
		c.note(one, now.Sub(one.sent), one.sent.After(begin))
		if one.next += step; more(now) {
			c.send(one, now)
		}
	}
	return nil
}

// send sends a caller's next request.
func (c *conn) send(one *caller, now time.Time) {
	one.sent, one.answer, one.status, one.message = now, one.answer[:0], "", ""
	if len(c.waiting) > 0 || !c.write(one) {
		c.waiting = append(c.waiting, one)
	}
}

// write writes a caller's request, if the service takes so many bytes.
func (c *conn) write(one *caller) bool {
	request := c.requests[one.next%len(c.requests)]
	if len(request) > c.takes {
		return false
	}
	c.takes -= len(request)
	c.stream += 2
	id := c.stream - 1
	c.asking[id] = one
	_ = c.frames.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: c.header, EndHeaders: true})
	_ = c.frames.WriteData(id, true, request)
	c.header = c.again
	return true
}

// read reads a frame, of one caller's stream or of none. It reports whether the stream has ended.
func (c *conn) read(frame http2.Frame, one *caller) (done bool, err error) {
	switch f := frame.(type) {
	case *http2.HeadersFrame:
		if one == nil || !f.HeadersEnded() {
			return false, fmt.Errorf("not expected: %v", f)
		}
		c.reads = one
		if _, err := c.fields.Write(f.HeaderBlockFragment()); err != nil {
			return false, err
		}
		return f.StreamEnded(), c.fields.Close()
	case *http2.DataFrame:
		if one == nil {
			return false, fmt.Errorf("not expected: %v", f)
		}
		one.answer = append(one.answer, f.Data()...)
		if c.returned += int(f.Length); c.returned >= 1<<14 {
			_ = c.frames.WriteWindowUpdate(0, uint32(c.returned))
			c.returned = 0
		}
		return f.StreamEnded(), nil
	case *http2.RSTStreamFrame:
		if one == nil { // grpc-go has answered before it saw that the request was complete
			return false, nil
		}
		one.status, one.message = "none", f.ErrCode.String()
		return true, nil
	case *http2.WindowUpdateFrame:
		if f.StreamID == 0 {
			c.takes += int(f.Increment)
		}
		for len(c.waiting) > 0 && c.write(c.waiting[0]) {
			c.waiting = c.waiting[1:]
		}
	case *http2.PingFrame:
		if !f.IsAck() {
			_ = c.frames.WritePing(true, f.Data)
		}
	case *http2.SettingsFrame:
		if !f.IsAck() {
			_ = c.frames.WriteSettingsAck()
		}
	case *http2.GoAwayFrame:
		return false, fmt.Errorf("the service ends the connection: %v, %q", f.ErrCode, f.DebugData())
	}
	return false, nil
}

// note counts an answer.
func (a *answers) note(of *caller, took time.Duration, measured bool) {
	code, err := of.code()
	if err != nil {
		a.failed++
		if a.failure == nil {
			a.failure = err
		}
		return
	}
	a.good++
	if code == pb.RateLimitResponse_OVER_LIMIT {
		a.over++
	}
	if measured {
		a.took = append(a.took, took)
	}
}

// code is what the service has decided of a request with one descriptor.
func (c *caller) code() (pb.RateLimitResponse_Code, error) {
	if c.status != "0" {
		return 0, fmt.Errorf("grpc-status %s: %s", c.status, c.message)
	}
	text, statuses, code := c.answer, 0, pb.RateLimitResponse_UNKNOWN
	if len(text) >= 5 && text[0] == 0 && int(binary.BigEndian.Uint32(text[1:])) == len(text)-5 {
		for text = text[5:]; len(text) > 0; {
			number, kind, n := protowire.ConsumeTag(text)
			if n < 0 {
				break
			}
			text = text[n:]
			if n = protowire.ConsumeFieldValue(number, kind, text); n < 0 {
				break
			}
			switch number {
			case 1:
				value, _ := protowire.ConsumeVarint(text)
				code = pb.RateLimitResponse_Code(value)
			case 2:
				statuses++
			}
			text = text[n:]
		}
	}
	if len(text) > 0 || statuses != 1 || code == pb.RateLimitResponse_UNKNOWN {
		return 0, fmt.Errorf("not an answer to one descriptor: %x", c.answer)
	}
	return code, nil
}
