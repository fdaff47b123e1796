# Everything that is done with this repository. `make` alone tells what.

MODULES     = $(sort $(dir $(shell find . -name go.mod)))
TESTFLAGS  ?=
SOAK       ?= 10m
GOTEST      = go run ./internal/gotest $(MODULES) -- $(MODFILE:%=-modfile=%) $(TAGS:%=-tags=%)
STATICCHECK = honnef.co/go/tools/cmd/staticcheck@v0.8.2

.DEFAULT_GOAL = help

help: ## tell the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

quickstart: ## see every limiter work, with no server
	go run ./examples/quickstart

quick: ## the tests that need no server and not much time, in half a minute; the last line says what was left out
	@$(GOTEST) -short $(TESTFLAGS) ./...

test: ## test every module; TESTFLAGS="-race -shuffle=on" as the CI does; RATELIMIT_LONG=1 for every repetition
	@$(GOTEST) -timeout 15m $(TESTFLAGS) ./...

lint: ## gofmt, vet and staticcheck on every module
	@unformatted=$$(gofmt -l .); test -z "$$unformatted" || { echo "gofmt these:"; echo "$$unformatted"; exit 1; }
	@set -e; for m in $(MODULES); do echo "== $$m"; (cd $$m && go vet ./... && go run $(STATICCHECK) ./...); done

bench: ## compare with the peers and the floors on a real redis-server (minutes)
	cd bench && go run . -out .

cover: ## coverage of the root package and internal/
	go test -coverpkg=.,./internal/... -coverprofile=cover.out . ./internal/...
	@go tool cover -func=cover.out | tail -1

soak: ## all faults at random for SOAK (10m)
	go test -run 'TestSoak$$' -v -timeout 24h -soak $(SOAK) ./internal/faulttest

fuzz: ## each fuzz target of the root package for 30 s
	@set -e; for f in $$(go test -list '^Fuzz' . | grep ^Fuzz); do go test -run '^$$' -fuzz "^$$f\$$" -fuzztime 30s .; done

.PHONY: help quickstart quick test lint bench cover soak fuzz
