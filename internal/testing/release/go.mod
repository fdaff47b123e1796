module github.com/tryacquire/ratelimit/internal/testing/release

go 1.25.0

require (
	github.com/alicebob/miniredis/v2 v2.40.0
	github.com/stretchr/testify v1.8.4
	golang.org/x/mod v0.29.0
)

require (
	github.com/davecgh/go-spew v1.1.1 // indirect
	github.com/pmezard/go-difflib v1.0.0 // indirect
	github.com/yuin/gopher-lua v1.1.1 // indirect
	gopkg.in/yaml.v3 v3.0.1 // indirect
)
