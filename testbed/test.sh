#!/usr/bin/env bash
# Runs every test of every module once, then the demo, and prints a summary: passed tests, failed tests, and each skipped test with its
# reason. It does not retry tests. `make test` calls it.
#
# The product's packages run under the race detector. The system tests (test/...) run without it: they use the released programs, and
# the detector would only slow down the tailnet and the clients around them. Both suites run at the same time, because the first one
# uses the processors and the second one mostly waits. The first one has the lower priority. The linters run before it.
set -uo pipefail
cd "$(dirname "$0")/.."
began=$SECONDS
out=$(mktemp -d "${TMPDIR:-/tmp}/tailplane-test-XXXXXX")
trap 'kill $(jobs -p) 2>/dev/null; rm -rf "$out"' EXIT
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
  return $failed
}

CGO_ENABLED=0 go build -modfile=tools.mod -o "$out/gotestsum" gotest.tools/gotestsum || exit 1

# The longest packages first: otherwise they run alone at the end.
(
  renice -n 10 $BASHPID >/dev/null
  echo "== lint"
  make -s lint || exit 1
  export CGO_ENABLED=1
  suite product . -race -timeout 40m -p 2 -parallel 4 . ./api/... ./cmd/... ./internal/... ./testkit/...
) &
product=$!
export CGO_ENABLED=0
suite systems . -timeout 40m -p 5 -parallel 4 ./test/attack/... ./test/e2e ./test/...
suite testbed testbed -timeout 20m -p 2 ./...
suite devcluster testbed/devcluster -timeout 10m ./parts
wait $product || failed=1

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
