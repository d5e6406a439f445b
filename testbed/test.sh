#!/usr/bin/env bash
# Runs every test of every module once, then the demo, and sums up: what passed, what failed, and each test that was skipped, with its
# reason. Nothing is tried twice. `make test` calls it.
#
# The product's packages run under the race detector. The tests of whole systems (test/...) run without it: their programs are the
# released ones, and the detector would only slow the tailnet and the clients around them. Both suites run at the same time, because the
# first one needs the processors and the second one mostly waits; the first one has the lower priority. The linters run before it.
set -uo pipefail
cd "$(dirname "$0")/.."
began=$SECONDS
out=$(mktemp -d "${TMPDIR:-/tmp}/tailplane-test-XXXXXX")
trap 'kill $(jobs -p) 2>/dev/null; rm -rf "$out"' EXIT
failed=0
export GOMEMLIMIT=5GiB # for each process: tests of huge policies leave much to collect

# suite NAME FOLDER ARGUMENTS...: one run of go test, kept as JSON for the summary.
suite() {
  local name=$1 folder=$2
  shift 2
  echo "== $name"
  (cd "$folder" && "$out/gotestsum" --format pkgname --hide-summary=skipped,output --jsonfile "$out/$name.json" -- "$@") ||
    grep -q '"Action":"fail"' "$out/$name.json" || failed=1 # the summary judges tests
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
