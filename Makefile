# The commands of this repository. `make` lists them.

MODULES     = $(sort $(dir $(shell find . -name go.mod)))
TESTFLAGS  ?=
PACKAGES   ?= ./...
# With the newest of what go.mod requires: make test MODULES=./ MODFILE=.ci/newest.mod TAGS=newest
MODFILE    ?=
TAGS       ?=
SOAK       ?= 10m
# For -skip: tests that use no server, and those of other clients and decorators, to which all servers are alike.
SERVERLESS  = ^(TestBreaker|TestDenyCache|TestFallback|TestLocal|Example|Fuzz)|^(TestLimitersAnswerAsTheirModels|TestNoIntervalHoldsMoreThanTheRule)$$|/^(miniredis|Redis_Ring|Redis,_.*AutoPipeliner|Choice$$|Shadow|DenyCache$$|an_HTTP_server)
GOTEST      = go run ./internal/testing/gotest $(MODULES) -- $(MODFILE:%=-modfile=%) $(TAGS:%=-tags=%)
STATICCHECK = honnef.co/go/tools/cmd/staticcheck@v0.8.2

OUTAGES     = go -C examples/service test -count=1 -run UnderLoad -v -outage 5s -rate 1000 -requests 100000 .

.DEFAULT_GOAL = help

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

quickstart: ## see every limiter work, without a server
	go run ./examples/quickstart

playground: ## watch a limiter on a local page, without a server
	go -C examples/playground run .

pictures: ## draw the pictures of docs/choosing.md and docs/leases.md again
	go -C docs/pictures run .

quick: ## the quick tests that need no server, in half a minute; the last line says what was left out
	@$(GOTEST) -short $(TESTFLAGS) ./...

test: ## test every module; TESTFLAGS="-race -shuffle=on" as in CI; RATELIMIT_LONG=1 for every repetition
	@$(GOTEST) -timeout 15m $(TESTFLAGS) $(PACKAGES)

servers: ## install later servers, and print the values of REDISTEST_SERVER for them
	@.ci/servers

conformance: ## conformance, model and fault tests; REDISTEST_SERVER=... on another server
	@go test -count=1 -skip '$(SERVERLESS)' $(TESTFLAGS) . ./internal/testing/faulttest || { echo "failed on $${REDISTEST_SERVER:-redis-server}"; exit 1; }
	@echo "passed on $${REDISTEST_SERVER:-redis-server}"

# With -race, so that what vet and staticcheck compile is what the tests need.
lint: platforms ## gofmt, vet and staticcheck on every module, platforms, luacheck on the scripts
	@unformatted=$$(gofmt -l .); test -z "$$unformatted" || { echo "gofmt these:"; echo "$$unformatted"; exit 1; }
	@grep -qx 'go 1.25.0' go.mod || { echo "go.mod: the go line must stay at 1.25.0, it forces its Go on every user"; exit 1; }
	go vet -race -modfile=.ci/newest.mod -tags=newest ./...
	@set -e; bin=$$(mktemp -d); GOBIN=$$bin go install $(STATICCHECK); export GOFLAGS=-race; for m in $(MODULES); do \
	echo "== $$m"; (cd $$m; [ $$m = ./ ] || go vet ./...; $$bin/staticcheck ./...); done; rm -r $$bin
	luacheck --quiet scripts
	@set -e; bin=$$(mktemp -d); go -C cmd/ratelimit build -o $$bin/ratelimit .; \
	for of in $$($$bin/ratelimit __complete scripts "" 2>/dev/null | grep -v :); do for what in one operations; do \
	[ $$of,$$what != inflight,operations ] || continue; echo "== $$of,$$what"; \
	$$bin/ratelimit scripts --print $$of,$$what | tail -n +2 | luacheck --quiet --filename scripts/$$of,$$what -; done; done; rm -r $$bin

platforms: ## check that every package and test compiles for windows, darwin and 32 bits
	go run ./internal/testing/platforms $(MODULES)

bench: ## compare with other limiters on a real redis-server; takes minutes
	cd bench && go run . -out .

cover: ## coverage of the root package and internal/
	go test -coverpkg=.,./internal/... -coverprofile=cover.out . ./internal/...
	@go tool cover -func=cover.out | tail -1

soak: ## run all faults in random order for SOAK=10m, then long outages of examples/service
	go test -run 'TestSoak$$' -v -timeout 24h -soak $(SOAK) ./internal/testing/faulttest
	$(OUTAGES)

outages: ## the figures of docs/outages.md: three processes of examples/service in outages under load, in five minutes
	$(OUTAGES)

release-check: ## what must hold before .ci/tag: API, changelog, tidy modules, licences, go get of each
	@.ci/release-check

fuzz: ## each fuzz target of the root package for 30 s
	@set -e; for f in $$(go test -list '^Fuzz' . | grep ^Fuzz); do go test -run '^$$' -fuzz "^$$f\$$" -fuzztime 30s .; done

.PHONY: help quickstart playground pictures quick test servers conformance lint platforms bench cover soak fuzz release-check
