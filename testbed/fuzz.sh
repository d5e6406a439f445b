#!/usr/bin/env bash
# Fuzzes each parser of what a stranger sends for FUZZTIME (a minute each), and sums up in one line. A target that fails, and
# what it failed on, is named; the input is then a file under testdata/fuzz, and a test from there on. With FUZZJSON a file gets
# what happened in the form of `go test -json`. FUZZSKIP names folders to leave out. `make fuzz` calls it, and testbed/test.sh with a few seconds each.
set -uo pipefail
cd "$(dirname "$0")/.."
out=$(mktemp -d "${TMPDIR:-/tmp}/tailplane-fuzz-XXXXXX")
trap 'rm -rf "$out"' EXIT
export CGO_ENABLED=0 # the race detector would make each try slower, and looks for something else
began=$SECONDS targets=0 execs=0 failed=""

# event ACTION PACKAGE TEST
event() { [ -z "${FUZZJSON:-}" ] || printf '{"Action":"%s","Package":"github.com/tailplane/tailplane/%s","Test":"%s"}\n' "$1" "$2" "$3" >>"$FUZZJSON"; }

# try DIR NAME: one target. The end of the time may meet a worker in the middle of a try, which Go then calls a failure of
# the target, without an input; that is tried once more.
try() {
  local again
  for again in "" again; do
    (cd "$1" && timeout --kill-after=10 "${FUZZLIMIT:-10m}" "$out/fuzz.test" -test.run "^$2\$" -test.fuzz "^$2\$" \
      -test.fuzztime "${FUZZTIME:-1m}" -test.fuzzcachedir "$out/cache/$1") >"$out/log" 2>&1 && return
    grep -q '^    context deadline exceeded$' "$out/log" && ! grep -q 'Failing input\|panic' "$out/log" || return 1
  done
  return 1
}

for dir in $(grep -rl --include='*_test.go' '^func Fuzz' internal test testbed 2>/dev/null | xargs -n1 dirname | sort -u); do
  case " ${FUZZSKIP:-} " in *" $dir "*) continue ;; esac
  # Once for all targets of a package: with instrumentation it is compiled anew.
  # The testbed is a module of its own.
  module=.
  case $dir in testbed/*) module=testbed ;; esac
  if ! (cd "$module" && go test -c -fuzz=. -o "$out/fuzz.test" "./${dir#testbed/}") >"$out/log" 2>&1; then
    cat "$out/log"
    failed="$failed $dir"
    event fail "$dir" "Fuzz"
    continue
  fi
  for name in $(grep -ho '^func Fuzz[A-Za-z0-9_]*' "$dir"/*_test.go | cut -c6- | sort); do
    targets=$((targets + 1))
    if try "$dir" "$name"; then
      n=$(grep -o 'execs: [0-9]*' "$out/log" | tail -n 1 | cut -d' ' -f2)
      execs=$((execs + ${n:-0}))
      echo "$dir $name: ${n:-0} tries"
      event pass "$dir" "$name"
    else
      echo "== $dir $name"
      tail -n 60 "$out/log"
      failed="$failed $name"
      event fail "$dir" "$name"
    fi
  done
done
if [ "$targets" -eq 0 ]; then
  echo "fuzz: there are no targets"
  exit 1
fi
echo "fuzz: $targets targets for ${FUZZTIME:-1m} each, $execs tries in $((SECONDS - began))s, failed:${failed:- none}"
[ -z "$failed" ]
