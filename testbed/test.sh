#!/usr/bin/env bash
# Runs every test of every module once, then the demo, and prints a summary: passed tests, failed tests, and each skipped test with its
# reason. It does not retry tests. `make test` calls it.
#
# The product's packages run under the race detector. The tests of whole systems (test/...) run without it: their programs are the
# released ones, and the detector would only slow the tailnet and the clients around them. The product's packages need the processors and
# the systems mostly wait, so more of the latter run at the same time.
set -uo pipefail
cd "$(dirname "$0")/.."
began=$SECONDS
out=$(mktemp -d "${TMPDIR:-/tmp}/tailplane-test-XXXXXX")
trap 'rm -rf "$out"' EXIT
failed=0
export GOMEMLIMIT=5GiB # for each process: tests of very large policies create much garbage

# suite NAME FOLDER ARGUMENTS...: one run of go test, stored as JSON for the summary.
suite() {
  local name=$1 folder=$2
  shift 2
  echo "== $name"
  (cd "$folder" && "$out/gotestsum" --format pkgname --hide-summary=skipped,output --jsonfile "$out/$name.json" -- "$@") ||
    grep -q '"Action":"fail"' "$out/$name.json" || failed=1 # the summary reports failed tests
  echo "== $name ended after $((SECONDS - began)) s"
}

CGO_ENABLED=0 go build -modfile=tools.mod -o "$out/gotestsum" gotest.tools/gotestsum || exit 1

echo "== lint"
make -s lint || failed=1

CGO_ENABLED=1 suite product . -race -timeout 40m -p 3 -parallel 4 . ./api/... ./cmd/... ./internal/... ./testkit/...
export CGO_ENABLED=0
# The longest packages first: otherwise they run alone at the end.
suite systems . -timeout 40m -p 5 -parallel 4 ./test/attack/fleet ./test/e2e ./test/install ./test/gateway ./test/...
suite testbed testbed -timeout 20m -p 2 ./...
suite devcluster testbed/devcluster -timeout 10m ./parts

echo "== demo"
if DEMO_EXIT=1 make -s demo >"$out/demo.log" 2>&1; then
  demo=pass
  tail -n 2 "$out/demo.log"
else
  demo=fail failed=1
  cat "$out/demo.log"
fi

# TB-01: a second run compiles nothing.
echo "== second run"
if again=$(make -s build 2>&1) && [ -z "$again" ]; then
  echo "nothing was built again"
else
  echo "$again"
  failed=1
fi

echo "== tests and demo took $((SECONDS - began)) s"
(cd testbed && go run ./cmd/summary -demo "$demo" "$out"/*.json) || failed=1
exit $failed
