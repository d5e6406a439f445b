#!/usr/bin/env bash
# Runs every test of every module once, the product's under the race detector, fuzzes for a moment, then the demo, and sums up:
# what passed, what failed, and each test that was skipped, with its reason. `make test` calls it.
set -uo pipefail
cd "$(dirname "$0")/.."
out=$(mktemp -d "${TMPDIR:-/tmp}/tailplane-test-XXXXXX")
trap 'rm -rf "$out"' EXIT
failed=0
export GOMEMLIMIT=5GiB # for each process: tests of huge policies leave much to collect

# suite NAME FOLDER ARGUMENTS...: one run of go test, kept as JSON for the summary.
suite() {
  local name=$1 folder=$2
  shift 2
  echo "== $name"
  (cd "$folder" && go tool -modfile="$OLDPWD/tools.mod" gotestsum --format pkgname --hide-summary=skipped,output --jsonfile "$out/$name.json" -- "$@") ||
    grep -q '"Action":"fail"' "$out/$name.json" || failed=1 # the summary judges tests
}

# The longest first: else one of the two places stands empty at the end.
suite product . -race -timeout 65m -p 3 -parallel 4 ./test/attack/... ./test/e2e ./...
CGO_ENABLED=0 suite devcluster testbed/devcluster -timeout 10m ./parts
CGO_ENABLED=0 suite testbed testbed -timeout 20m -p 2 ./...

# On a machine that others use too, a test may starve beside others. A few failures are tried once more, each alone; what passes then is
# named in the summary. A data race, a package that died or many failures are not tried again.
alone=()
while read -r package test; do
  echo "== again: $test"
  case $package in */testbed/devcluster/*) folder=testbed/devcluster ;; */testbed/*) folder=testbed ;; *) folder=. ;; esac
  (cd $folder && go test -race -json -count=1 -timeout 15m -run "^$test\$" "$package" </dev/null >>"$out/alone.log")
  alone=(-again "$out/alone.log")
done < <(cd testbed && CGO_ENABLED=0 go run ./cmd/summary -failed "$out"/*.json)

# Without the race detector, and with what was compiled for fuzzing before: seconds for each target, and as many again for new ones.
echo "== fuzz"
# Not the extension server: to instrument all of Envoy's types takes minutes, and a test there damages questions as well.
FUZZSKIP=internal/gateway/gatewayxds FUZZTIME=3s FUZZLIMIT=2m FUZZJSON="$out/fuzz.json" testbed/fuzz.sh || failed=1

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

(cd testbed && CGO_ENABLED=0 go run ./cmd/summary -demo "$demo" "${alone[@]}" "$out"/*.json) || failed=1
exit $failed
