#!/usr/bin/env bash
# Fuzzes each parser of what a stranger sends for FUZZTIME (a minute each). `make fuzz` calls it.
set -euo pipefail
cd "$(dirname "$0")/.."
grep -rl --include='*_test.go' '^func Fuzz' internal | xargs -n1 dirname | sort -u | while read -r dir; do
  grep -ho '^func Fuzz[A-Za-z0-9]*' "$dir"/*_test.go | cut -c6- | while read -r name; do
    echo "== $dir $name"
    go test "./$dir" -run '^$' -fuzz "^$name\$" -fuzztime "${FUZZTIME:-1m}"
  done
done
