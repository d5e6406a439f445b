# Each target is one line that names its purpose. The programs that it calls do the work.
export GOFLAGS = -trimpath -buildvcs=false
export CGO_ENABLED = 0
export GOTOOLCHAIN = auto
TOOL = go tool -modfile=tools.mod

.PHONY: help demo test unit soak build cluster testbed envoy lint test-adapter test-gateway web browser demo-gateway generate acceptance bench budgets sim fuzz clean-cache machine

help: ## the targets, and what each does
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | sort | awk -F'\t' '{printf "%-14s %s\n", $$1, $$2}'

demo: build ## show Tailplane at work: a tailnet, a cluster, people who are let in and refused
	@exec "$$(cd testbed && go run ./cmd/build demo | cut -f2)"

test: machine build testbed browser ## everything, on real parts: about 45 minutes from empty caches on 2 cores
	@testbed/test.sh

unit: machine ## what needs no cluster, under the race detector: 3 minutes; ONLY=./internal/access for one package
	@CGO_ENABLED=1 go test -race -short $(or $(ONLY),./api/... ./cmd/... ./internal/... ./testkit/...)

soak: fuzz ## what takes hours: fuzzing, and the adapter's long run
	@SOAK=1h go test -count=1 -timeout 90m ./test/adapter -run Soak -v

build: cluster ## the programs tka, tailplaned, mca and demo, into the cache
	@cd testbed && go run ./cmd/build tka tailplaned mca demo >/dev/null

cluster: ## the cluster's binaries, into the cache: about 10 minutes the first time
	@cd testbed && go run ./cmd/build devcluster kubectl >/dev/null

testbed: cluster envoy ## and what only tests need: another 5 minutes
	@cd testbed && go run ./cmd/build helm podnode podclient prometheus >/dev/null

envoy: ## Envoy Gateway, built, and Envoy, installed, into the cache: about 6 minutes the first time
	@cd testbed && go run ./cmd/build envoy envoy-gateway >/dev/null

lint: ## gofmt, vet, staticcheck
	@test -z "$$(gofmt -l . | tee /dev/stderr)"
	@! git grep -nE '^(<<<<<<<|>>>>>>>) ' # what a merge leaves
	@go vet ./... && $(TOOL) staticcheck ./...
	@cd testbed && go vet ./...

test-adapter: machine build ## the adapter mca on a real API server, with the real kubectl and client-go
	@CGO_ENABLED=1 go test -race -timeout 20m ./internal/apiproxy/... ./internal/multicluster/... ./internal/podcreds ./test/adapter

test-gateway: machine build envoy ## the gateway under a real Envoy Gateway and, where there is one, a real Envoy
	@out=$$(mktemp); TAILPLANE_TEST_VERDICT=$$out CGO_ENABLED=1 go test -race -timeout 20m ./internal/gateway/... ./test/gateway; code=$$?; cat $$out; rm -f $$out; exit $$code

web: ## the dashboard's bundle, from its sources in web/; needs Node 20.19
	@cd web && npm ci --ignore-scripts --no-fund --no-audit --silent && npm run --silent check && npm test --silent && npm run --silent build

browser: ## what only the dashboard's tests need: Chromium, and web/node_modules
	@command -v chromium >/dev/null || { test "$$(id -u)" = 0 && echo "installing chromium (for the dashboard's tests)" && apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium >/dev/null; } \
		|| echo "SKIP dashboard: there is no Chromium, and it could not be installed"
	@command -v npm >/dev/null || { echo "SKIP dashboard: there is no Node"; exit 0; }; \
		test web/node_modules/.package-lock.json -nt web/package-lock.json || { echo "installing web/node_modules (for the dashboard's tests)"; cd web && npm ci --ignore-scripts --no-fund --no-audit --silent; } \
		|| echo "SKIP dashboard: what npm has could not be had"

demo-gateway: build testbed ## a client through a real Envoy and a relay to a tailnet, and back: about 10 minutes the first time, then one
	@bash -o pipefail -c "go test -count=1 -v ./test/gateway -run TestGTW35_Whole | sed -un 's/^ *| //p; /^ *--- /p; /SKIP/p; /_test.go:/p'"

generate: ## CRDs, deepcopy, CLI reference, golden files
	@go generate ./... && go test ./internal/cli -run Reference -update

acceptance: ## acceptance rows that no test names
	@cd testbed && go run ./cmd/acceptance

budgets: build ## measurements of the design's budgets; ONLY=Signin for one part
	@testbed/budgets.sh "$(ONLY)"

sim: ## gossip of many members beside hashicorp/memberlist, in virtual time: N=100 LOSS=0.5 JITTER=300ms SECONDS=30 SEED=1
	@cd testbed && go run ./cmd/peers $(MAKEOVERRIDES)

fuzz: ## a minute of fuzzing for each parser of what a stranger sends
	@testbed/fuzz.sh

machine: ## what a bare machine lacks: a C compiler, for the race detector, and the shells that tka speaks to
	@command -v gcc >/dev/null || { echo "installing gcc (for the race detector)"; apt-get update -qq && apt-get install -y -qq gcc libc6-dev; }
	@command -v zsh >/dev/null && command -v fish >/dev/null || { test "$$(id -u)" = 0 && echo "installing zsh and fish (for the tests of tka)" && \
		apt-get update -qq && apt-get install -y -qq --no-install-recommends zsh fish >/dev/null; } || echo "SKIP zsh and fish: they could not be installed"

clean-cache: ## remove the finished binaries
	@cd testbed && go run ./cmd/build -clean
