#!/usr/bin/env bash
# Fuzzes each parser of untrusted input for FUZZTIME (default: one minute each), and prints a summary in one line. It names
# each failed target with its input. The input is then a file in testdata/fuzz, and a test from then on. `make fuzz` calls it.
set -uo pipefail
cd "$(dirname "$0")/.."
out=$(mktemp -d "${TMPDIR:-/tmp}/tailplane-fuzz-XXXXXX")
trap 'rm -rf "$out"' EXIT
export CGO_ENABLED=0 # the race detector would slow down each try and is not needed here
began=$SECONDS targets=0 execs=0 failed=""

# try DIR NAME: fuzzes one target. If the time ends in the middle of a try, Go reports a failure of the target without an
# input; this is not a failure.
try() {
  (cd "$1" && timeout --kill-after=10 10m "$out/fuzz.test" -test.run "^$2\$" -test.fuzz "^$2\$" \
    -test.fuzztime "${FUZZTIME:-1m}" -test.fuzzcachedir "$out/cache/$1") >"$out/log" 2>&1 && return
  grep -q '^    context deadline exceeded$' "$out/log" && ! grep -q 'Failing input\|panic' "$out/log"
}

for dir in $(grep -rl --include='*_test.go' '^func Fuzz' api internal test testkit testbed 2>/dev/null | xargs -n1 dirname | sort -u); do
  # Compile once for all targets of a package, because instrumentation needs a new build. The testbed is a separate
  # module.
  module=.
  case $dir in testbed/*) module=testbed ;; esac
  if ! (cd "$module" && go test -c -fuzz=. -o "$out/fuzz.test" "./${dir#testbed/}") >"$out/log" 2>&1; then
    cat "$out/log"
    failed="$failed $dir"
    continue
  fi
  for name in $(grep -ho '^func Fuzz[A-Za-z0-9_]*' "$dir"/*_test.go | cut -c6- | sort); do
    targets=$((targets + 1))
    if try "$dir" "$name"; then
      n=$(grep -o 'execs: [0-9]*' "$out/log" | tail -n 1 | cut -d' ' -f2)
      execs=$((execs + ${n:-0}))
      echo "$dir $name: ${n:-0} tries"
    else
      echo "== $dir $name"
      tail -n 60 "$out/log"
      failed="$failed $name"
    fi
  done
done
if [ "$targets" -eq 0 ]; then
  echo "fuzz: there are no targets"
  exit 1
fi
echo "fuzz: $targets targets for ${FUZZTIME:-1m} each, $execs tries in $((SECONDS - began))s, failed:${failed:- none}"
[ -z "$failed" ]
