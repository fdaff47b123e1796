package serve

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"time"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	xds "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"
	rpc "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/anypb"
)

// An XDS is a management server that has the config, by the aggregated discovery service of xDS v3, state of the world.
type XDS struct {
	Conn grpc.ClientConnInterface // to the server
	Node string                   // the id by which the server knows this service
}

const (
	typeOfConfig = "type.googleapis.com/ratelimit.config.ratelimit.v3.RateLimitConfig"

	firstRetry   = time.Second // of what failed: a stream, or a config. The next take twice as long
	longestRetry = 30 * time.Second
	mostBytes    = 64 << 20 // of one answer
)

// Follow asks the management server for its config until ctx ends, and puts each in force that comes, all at once. It
// acknowledges a config that is in force. One with a mistake it refuses with the reason, and the former one stays in force,
// as it does while the server cannot be reached. It reports nil for each config that is in force, and else why not.
func (s *Service) Follow(ctx context.Context, report func(error)) {
	for wait := s.retry; ctx.Err() == nil; wait = min(2*wait, longestRetry) {
		answered, err := s.stream(ctx, report)
		if ctx.Err() != nil {
			return
		}
		report(fmt.Errorf("ratelimit/serve: the management server: %w", err))
		if answered {
			wait = s.retry
		}
		pause(ctx, wait)
	}
}

// pause waits for half of a time to the whole of it, or until ctx ends.
func pause(ctx context.Context, wait time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(wait/2 + rand.N(wait/2)):
	}
}

// stream follows one stream to its end. It asks for all that there is: the versions of another server say nothing.
func (s *Service) stream(ctx context.Context, report func(error)) (answered bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := discovery.NewAggregatedDiscoveryServiceClient(s.options.XDS.Conn).StreamAggregatedResources(ctx, grpc.MaxCallRecvMsgSize(mostBytes))
	if err != nil {
		return false, err
	}
	node := &core.Node{Id: s.options.XDS.Node, UserAgentName: "ratelimit serve"}
	request := &discovery.DiscoveryRequest{Node: node, TypeUrl: typeOfConfig}
	version, refused, wait := "", "", s.retry
	for {
		_ = stream.Send(request) // an error is that of Recv
		answer, err := stream.Recv()
		switch {
		case errors.Is(err, io.EOF):
			return answered, errors.New("it has ended the stream")
		case err != nil:
			return answered, err
		}
		answered = true
		request = &discovery.DiscoveryRequest{TypeUrl: typeOfConfig, ResponseNonce: answer.GetNonce()}
		changed, err := s.receive(answer.GetResources())
		switch {
		case err == nil:
			version, refused, wait = answer.GetVersionInfo(), "", s.retry
			if changed {
				report(nil)
			}
		case err.Error() == refused: // go-control-plane sends what is refused again, at once
			pause(ctx, wait)
			wait = min(2*wait, longestRetry)
		default:
			refused = err.Error()
			report(err)
		}
		if err != nil {
			request.ErrorDetail = &rpc.Status{Code: int32(codes.InvalidArgument), Message: err.Error()}
		}
		request.VersionInfo = version
	}
}

// firstConfig waits for the first config, for a second at most; nil: it has not come.
func (s *Service) firstConfig(ctx context.Context) *config {
	select {
	case <-s.begun:
	case <-ctx.Done():
	case <-time.After(time.Second):
	}
	return s.current.Load().config
}

// receive puts configs in force, if they are not yet.
func (s *Service) receive(resources []*anypb.Any) (changed bool, err error) {
	var sources []Source
	for _, resource := range resources {
		source, err := sourceOf(resource)
		if err != nil {
			s.stats.broken.Add(1)
			return false, err
		}
		sources = append(sources, source)
	}
	slices.SortFunc(sources, func(a, b Source) int { return cmp.Compare(a.Name, b.Name) })
	if now := s.current.Load(); now.config != nil && same(now.files, sources) {
		return false, nil
	}
	return true, s.load(sources)
}

// sourceOf is a config as a file: its fields have the names of a file's, and JSON is YAML.
func sourceOf(resource *anypb.Any) (Source, error) {
	c := &xds.RateLimitConfig{}
	if err := resource.UnmarshalTo(c); err != nil {
		return Source{}, err
	}
	name := c.GetName()
	if name == "" {
		return Source{}, errors.New("a RateLimitConfig has no name")
	}
	c.Name = ""
	text, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(c)
	return Source{name, text}, err
}
