// Package serve is a rate limit service for Envoy, and for whatever else speaks envoy.service.ratelimit.v3. It reads the
// config files of envoyproxy/ratelimit as they are, and decides all descriptors of a request at once.
//
//	service, err := serve.New(client, serve.Options{Files: serve.Dir("/etc/ratelimit")})
//	...
//	pb.RegisterRateLimitServiceServer(grpcServer, service)
//
// [Run] is the whole program: gRPC, JSON over HTTP, health and metrics. docs/serve.md has the files, the flags of
// "ratelimit serve", and where the answers differ from those of envoyproxy/ratelimit.
package serve
