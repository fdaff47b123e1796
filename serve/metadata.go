package serve

import (
	"strings"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/tryacquire/ratelimit/limits/yamlfile"
)

// readMetadata reads the metadata of a descriptor; nil: it has none.
func readMetadata(v yamlfile.Value) *structpb.Struct {
	if v = v.OrNone(); !v.Given() || len(v.Map().Fields()) == 0 {
		return nil
	}
	fields, _ := v.Any().(map[string]any)
	read, err := structpb.NewStruct(fields)
	if err != nil {
		v.Errorf("cannot be sent: %v", err)
	}
	return read
}

// dynamicMetadata is what envoyproxy/ratelimit puts into its answers with RESPONSE_DYNAMIC_METADATA: the request, and the
// metadata of the descriptors that are not over their limits. Of two values of one name the first is taken.
func dynamicMetadata(r *pb.RateLimitRequest, all []descriptor, answer *pb.RateLimitResponse) *structpb.Struct {
	descriptors := &structpb.ListValue{}
	for _, d := range r.GetDescriptors() {
		descriptors.Values = append(descriptors.Values, structpb.NewStructValue(stated(d)))
	}
	fields := map[string]*structpb.Value{
		"domain":      structpb.NewStringValue(r.GetDomain()),
		"descriptors": structpb.NewListValue(descriptors),
	}
	if hits := r.GetHitsAddend(); hits > 0 {
		fields["hitsAddend"] = structpb.NewNumberValue(float64(hits))
	}
	var passed *structpb.Struct
	for i := range all {
		if d := &all[i]; d.match != nil && !d.unlimited && answer.GetStatuses()[i].GetCode() == pb.RateLimitResponse_OK {
			passed = merged(passed, d.metadata)
		}
	}
	if passed != nil {
		fields["metadata"] = structpb.NewStructValue(passed)
	}
	return &structpb.Struct{Fields: fields}
}

// stated is a descriptor of a request.
func stated(d *common.RateLimitDescriptor) *structpb.Struct {
	entries := &structpb.ListValue{}
	for _, e := range d.GetEntries() {
		entries.Values = append(entries.Values, structpb.NewStringValue(e.GetKey()+"="+e.GetValue()))
	}
	fields := map[string]*structpb.Value{"entries": structpb.NewListValue(entries)}
	if d.GetLimit() != nil { // this text has one or two spaces, at random
		fields["limit"] = structpb.NewStringValue(strings.ReplaceAll(d.GetLimit().String(), "  ", " "))
	}
	if hits := d.GetHitsAddend(); hits != nil {
		fields["hitsAddend"] = structpb.NewNumberValue(float64(hits.GetValue()))
	}
	return &structpb.Struct{Fields: fields}
}

// merged has the fields of both, and changes neither. Of a name that both have it has the value of a, or, if both values are
// structs, both merged.
func merged(a, b *structpb.Struct) *structpb.Struct {
	switch {
	case a == nil:
		return b
	case b == nil:
		return a
	}
	both := &structpb.Struct{Fields: map[string]*structpb.Value{}}
	for name, value := range b.GetFields() {
		both.Fields[name] = value
	}
	for name, value := range a.GetFields() {
		if x, y := value.GetStructValue(), both.Fields[name].GetStructValue(); x != nil && y != nil {
			value = structpb.NewStructValue(merged(x, y))
		}
		both.Fields[name] = value
	}
	return both
}
