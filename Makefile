# Each target is one line that names its purpose. The programs that it calls do the work.
export GOFLAGS = -trimpath -buildvcs=false
export CGO_ENABLED = 0
export GOTOOLCHAIN = auto
TOOL = go tool -modfile=tools.mod

.PHONY: help demo test unit soak build cluster testbed envoy lint test-adapter test-gateway web browser demo-gateway generate acceptance bench budgets sim fuzz clean-cache machine

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | sort | awk -F'\t' '{printf "%-14s %s\n", $$1, $$2}'

demo: build ## show Tailplane: a tailnet, a cluster, admitted and refused people
	@exec "$$(cd testbed && go run ./cmd/build demo | cut -f2)"

test: machine build testbed browser ## run all tests against real components: about 45 minutes from empty caches on 2 cores
	@testbed/test.sh

unit: machine ## run the tests that need no cluster, with the race detector: 3 minutes; ONLY=./internal/access for one package
	@CGO_ENABLED=1 go test -race -short $(or $(ONLY),./api/... ./cmd/... ./internal/... ./testkit/...)

soak: fuzz ## run the tests that take hours: fuzzing, and the long runs of the adapter and of a recording; FOR=30s shortens both
	@SOAK=$(or $(FOR),1h) go test -count=1 -timeout 90m ./test/adapter -run Soak -v
	@SOAK=$(or $(FOR),1h) go test -count=1 -timeout 90m ./test/proxy -run Soak -v

build: cluster ## build the programs tka, tailplaned, mca and demo into the cache
	@cd testbed && go run ./cmd/build tka tailplaned mca demo >/dev/null

cluster: ## build the cluster's binaries into the cache: about 10 minutes the first time
	@cd testbed && go run ./cmd/build devcluster kubectl >/dev/null

testbed: cluster envoy ## build the programs that only tests need: another 5 minutes
	@cd testbed && go run ./cmd/build helm podnode podclient prometheus >/dev/null

envoy: ## build Envoy Gateway and install Envoy into the cache: about 6 minutes the first time
	@cd testbed && go run ./cmd/build envoy envoy-gateway >/dev/null

lint: ## run gofmt, vet and staticcheck
	@test -z "$$(gofmt -l . | tee /dev/stderr)"
	@! git grep -nE '^(<<<<<<<|>>>>>>>) ' # conflict markers of a merge
	@go vet ./... && $(TOOL) staticcheck ./...
	@cd testbed && go vet ./...
	@GOOS=windows go vet ./cmd/tka ./internal/cli/... # of the programs, only tka runs there

test-adapter: machine build ## test the adapter mca against a real API server, with the real kubectl and client-go
	@CGO_ENABLED=1 go test -race -timeout 20m ./internal/apiproxy/... ./internal/multicluster/... ./internal/podcreds ./test/adapter

test-gateway: machine build envoy ## test the gateway with a real Envoy Gateway and, if available, a real Envoy
	@out=$$(mktemp); TAILPLANE_TEST_VERDICT=$$out CGO_ENABLED=1 go test -race -timeout 20m ./internal/gateway/... ./test/gateway; code=$$?; cat $$out; rm -f $$out; exit $$code

web: ## build the dashboard's bundle from its sources in web/; needs Node 20.19
	@cd web && npm ci --ignore-scripts --no-fund --no-audit --silent && npm run --silent generate && npm run --silent check && npm test --silent && npm run --silent build

browser: ## install the requirements of the dashboard's tests: Chromium, and web/node_modules
	@command -v chromium >/dev/null || { test "$$(id -u)" = 0 && echo "installing chromium (for the dashboard's tests)" && apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium >/dev/null; } \
		|| echo "SKIP dashboard: Chromium is missing and could not be installed"
	@command -v npm >/dev/null || { echo "SKIP dashboard: Node is missing"; exit 0; }; \
		test web/node_modules/.package-lock.json -nt web/package-lock.json || { echo "installing web/node_modules (for the dashboard's tests)"; cd web && npm ci --ignore-scripts --no-fund --no-audit --silent; } \
		|| echo "SKIP dashboard: npm could not install web/node_modules"

demo-gateway: build testbed ## connect a client through a real Envoy and a relay to a tailnet, and back: about 10 minutes the first time, then one
	@bash -o pipefail -c "go test -count=1 -v ./test/gateway -run TestGTW35_Whole | sed -un 's/^ *| //p; /^ *--- /p; /SKIP/p; /_test.go:/p'"

generate: ## generate CRDs, deepcopy functions, CLI reference and golden files
	@go generate ./... && go test ./internal/cli -run Reference -update

acceptance: ## list the acceptance rows that no test names
	@cd testbed && go run ./cmd/acceptance

budgets: build ## measure the budgets of the design; ONLY=Signin for one part
	@testbed/budgets.sh "$(ONLY)"

sim: ## simulate gossip of many members, compared with hashicorp/memberlist, in virtual time: N=100 LOSS=0.5 JITTER=300ms SECONDS=30 SEED=1
	@cd testbed && go run ./cmd/peers $(MAKEOVERRIDES)

fuzz: ## fuzz each parser of untrusted input for one minute
	@testbed/fuzz.sh

machine: ## install the requirements that a bare machine lacks: a C compiler for the race detector, and the shells that tka supports
	@command -v gcc >/dev/null || { echo "installing gcc (for the race detector)"; apt-get update -qq && apt-get install -y -qq gcc libc6-dev; }
	@command -v zsh >/dev/null && command -v fish >/dev/null || { test "$$(id -u)" = 0 && echo "installing zsh and fish (for the tests of tka)" && \
		apt-get update -qq && apt-get install -y -qq --no-install-recommends zsh fish >/dev/null; } || echo "SKIP zsh and fish: could not be installed"

clean-cache: ## remove the built binaries
	@cd testbed && go run ./cmd/build -clean
