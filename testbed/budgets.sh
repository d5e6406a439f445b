#!/usr/bin/env bash
# Runs every measurement of the budgets and prints one row each. It does not fail if a bound is exceeded. `make budgets`
# calls it. An argument selects the parts by name.
set -uo pipefail
cd "$(dirname "$0")/.."
cpu=$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo 2>/dev/null | head -n 1)
echo "machine: ${cpu:-unknown}, $(getconf _NPROCESSORS_ONLN) cores, load $(cut -d' ' -f1-3 /proc/loadavg 2>/dev/null), $(go version | cut -d' ' -f3-), $(date -u +%F)"
go test ./test/load ./test/relay ./test/gateway -p 1 -run '^$' -bench "${1:-.}" -benchtime "${BENCHTIME:-200x}" -timeout 60m | grep -E '^(BUDGET|FAIL|---|    )'
(cd testbed && go test ./accessproxy -run '^$' -bench "${1:-.}" -benchtime 1x -timeout 60m | grep -E '^(BUDGET|FAIL|---|    )')
go test . -run 'TestSizes|TestStartTimes' -v | grep -E 'MB of|start:'
exit 0
