package serve

import (
	"unicode/utf8"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
)

// A codec is gRPC's, but reads the usual request and writes the usual answer without reflection, in less than half of the
// time. It leaves whatever it does not know to gRPC's.
type codec struct{ encoding.CodecV2 }

func newCodec() codec { return codec{encoding.GetCodecV2(proto.Name)} }

func (c codec) Unmarshal(data mem.BufferSlice, to any) error {
	if r, ok := to.(*pb.RateLimitRequest); ok && len(data) == 1 && readRequest(string(data[0].ReadOnlyData()), r) {
		return nil
	}
	return c.CodecV2.Unmarshal(data, to)
}

func (c codec) Marshal(from any) (mem.BufferSlice, error) {
	if a, ok := from.(*pb.RateLimitResponse); ok {
		if text, ok := appendAnswer(make([]byte, 0, 8+48*len(a.GetStatuses())), a); ok {
			return mem.BufferSlice{mem.SliceBuffer(text)}, nil
		}
	}
	return c.CodecV2.Marshal(from)
}

// A tag is the number of a field and how it is written, if both fit into a byte.
type tag byte

const (
	asVarint = tag(protowire.VarintType)
	asBytes  = tag(protowire.BytesType)
)

func (t tag) of(number byte) tag { return tag(number<<3) | t }

// cut cuts the first field off text. It is not ok if the field is written in another way, or its number is not a small one.
func cut(text string) (t tag, number uint64, value, rest string, ok bool) {
	t, text = tag(text[0]), text[1:]
	for shift := 0; ; shift += 7 {
		if text == "" || shift > 28 {
			return 0, 0, "", "", false
		}
		b := text[0]
		text = text[1:]
		number |= uint64(b&0x7f) << shift
		if b < 0x80 {
			break
		}
	}
	switch t & 7 {
	case asVarint:
		return t, number, "", text, true
	case asBytes:
		if number <= uint64(len(text)) {
			return t, 0, text[:number], text[number:], true
		}
	}
	return 0, 0, "", "", false
}

// requestMemory is that of a request with one descriptor of two entries at most, which most are.
type requestMemory struct {
	descriptor  common.RateLimitDescriptor
	entries     [2]common.RateLimitDescriptor_Entry
	descriptors [1]*common.RateLimitDescriptor
	ofEntries   [2]*common.RateLimitDescriptor_Entry
}

// readRequest reads a request, whose strings are parts of text. If it is false, the request has something else, or a mistake,
// and r is to be read in another way.
func readRequest(text string, r *pb.RateLimitRequest) bool {
	m := &requestMemory{}
	r.Descriptors = m.descriptors[:0]
	for text != "" {
		t, number, value, rest, ok := cut(text)
		switch text = rest; {
		case !ok:
			return false
		case t == asBytes.of(1):
			r.Domain, ok = value, utf8.ValidString(value)
		case t == asBytes.of(2):
			d := &m.descriptor
			if len(r.Descriptors) == 0 {
				d.Entries = m.ofEntries[:0]
			} else {
				d = &common.RateLimitDescriptor{}
			}
			r.Descriptors = append(r.Descriptors, d)
			ok = readDescriptor(value, d, m)
		case t == asVarint.of(3):
			r.HitsAddend = uint32(number)
		default:
			return false
		}
		if !ok {
			return false
		}
	}
	return true
}

func readDescriptor(text string, d *common.RateLimitDescriptor, m *requestMemory) bool {
	for text != "" {
		t, _, value, rest, ok := cut(text)
		if text = rest; !ok || t != asBytes.of(1) {
			return false
		}
		var entry *common.RateLimitDescriptor_Entry
		if i := len(d.Entries); d == &m.descriptor && i < len(m.entries) {
			entry = &m.entries[i]
		} else {
			entry = &common.RateLimitDescriptor_Entry{}
		}
		d.Entries = append(d.Entries, entry)
		for value != "" {
			t, _, part, rest, ok := cut(value)
			switch value = rest; {
			case !ok || !utf8.ValidString(part):
				return false
			case t == asBytes.of(1):
				entry.Key = part
			case t == asBytes.of(2):
				entry.Value = part
			default:
				return false
			}
		}
	}
	return true
}

// appendAnswer writes an answer that the service has made. It is not ok if the answer has more than statuses.
func appendAnswer(to []byte, a *pb.RateLimitResponse) ([]byte, bool) {
	if a.GetResponseHeadersToAdd() != nil || a.GetRequestHeadersToAdd() != nil || a.GetRawBody() != nil || a.GetDynamicMetadata() != nil || a.GetQuota() != nil {
		return nil, false
	}
	to = appendNumber(to, 1, int64(a.GetOverallCode()))
	for _, s := range a.GetStatuses() {
		if s.GetQuota() != nil || s.GetCurrentLimit().GetName() != "" {
			return nil, false
		}
		var status int
		to, status = begin(to, 2)
		to = appendNumber(to, 1, int64(s.GetCode()))
		if l := s.GetCurrentLimit(); l != nil {
			var limit int
			to, limit = begin(to, 2)
			to = appendNumber(to, 1, int64(l.GetRequestsPerUnit()))
			to = appendNumber(to, 2, int64(l.GetUnit()))
			end(to, limit)
		}
		to = appendNumber(to, 3, int64(s.GetLimitRemaining()))
		if d := s.GetDurationUntilReset(); d != nil {
			var duration int
			to, duration = begin(to, 4)
			to = appendNumber(to, 1, d.GetSeconds())
			to = appendNumber(to, 2, int64(d.GetNanos()))
			end(to, duration)
		}
		end(to, status)
	}
	return to, true
}

// appendNumber writes a number, and a negative one as the number of 64 bits that it is; 0 is left out.
func appendNumber(to []byte, number byte, n int64) []byte {
	if n == 0 {
		return to
	}
	return protowire.AppendVarint(append(to, byte(asVarint.of(number))), uint64(n))
}

// begin begins a message within another one. Those of an answer have less than 128 bytes, so their length takes one byte,
// which end fills in.
func begin(to []byte, number byte) (text []byte, at int) {
	return append(to, byte(asBytes.of(number)), 0), len(to) + 1
}

func end(text []byte, at int) { text[at] = byte(len(text) - at - 1) }
