// The libraries from which the pages of this folder lead, for the snippets before a change.
module github.com/tryacquire/ratelimit/docs/from

go 1.25.0

require (
	github.com/alicebob/miniredis/v2 v2.40.0
	github.com/go-chi/httprate v0.16.1
	github.com/go-redis/redis_rate/v10 v10.0.1
	github.com/redis/go-redis/v9 v9.22.0
	github.com/stretchr/testify v1.8.4
	github.com/throttled/throttled/v2 v2.15.0
	github.com/tryacquire/ratelimit v0.0.0
	github.com/tryacquire/ratelimit/shims/redis_rate v0.0.0
	github.com/ulule/limiter/v3 v3.11.2
	golang.org/x/time v0.14.0
)

require (
	github.com/cespare/xxhash/v2 v2.3.0 // indirect
	github.com/davecgh/go-spew v1.1.1 // indirect
	github.com/hashicorp/golang-lru v0.5.4 // indirect
	github.com/klauspost/cpuid/v2 v2.2.10 // indirect
	github.com/kr/text v0.2.0 // indirect
	github.com/pkg/errors v0.9.1 // indirect
	github.com/pmezard/go-difflib v1.0.0 // indirect
	github.com/sony/gobreaker/v2 v2.4.0 // indirect
	github.com/yuin/gopher-lua v1.1.1 // indirect
	github.com/zeebo/xxh3 v1.1.0 // indirect
	go.uber.org/atomic v1.11.0 // indirect
	golang.org/x/sys v0.41.0 // indirect
	gopkg.in/yaml.v3 v3.0.1 // indirect
)

replace github.com/tryacquire/ratelimit => ../..

replace github.com/tryacquire/ratelimit/shims/redis_rate => ../../shims/redis_rate
