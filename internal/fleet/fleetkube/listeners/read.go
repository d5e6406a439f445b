package listeners

import (
	"bytes"
	"errors"
	"math"
	"strconv"
)

// metric is ARC's name for how many jobs GitHub gave a scale set.
const metric = "gha_assigned_jobs"

// mostJobs is more than any scale set is given.
const mostJobs = 1 << 20

// Read finds how many jobs GitHub gave a scale set in what its listener serves, which is
// Prometheus' text format. A listener is of one set: what names several is not believed.
func Read(text []byte) (int, error) {
	found, n := false, 0
	for line := range bytes.Lines(text) {
		rest, ok := bytes.CutPrefix(bytes.TrimRight(line, "\r\n"), []byte(metric))
		if !ok || len(rest) == 0 || rest[0] != '{' && rest[0] != ' ' && rest[0] != '\t' {
			continue
		}
		if found {
			return 0, errors.New("the listener says of several scale sets how many jobs they were given")
		}
		v, err := value(rest)
		if err != nil {
			return 0, err
		}
		found, n = true, v
	}
	if !found {
		return 0, errors.New("the listener does not say how many jobs it was given")
	}
	return n, nil
}

var errUnreadable = errors.New("what the listener says of its jobs cannot be read")

// value is the number of a sample, after its labels, whose values are anybody's text.
func value(rest []byte) (int, error) {
	if rest[0] == '{' {
		end := labels(rest)
		if end < 0 {
			return 0, errUnreadable
		}
		rest = rest[end:]
	}
	f := bytes.Fields(rest)
	if len(f) == 0 || len(f) > 2 {
		return 0, errUnreadable
	}
	v, err := strconv.ParseFloat(string(f[0]), 64)
	if err != nil || v < 0 || v > mostJobs || v != math.Trunc(v) || math.IsNaN(v) {
		return 0, errUnreadable
	}
	return int(v), nil
}

// labels is where the labels end that s begins with; -1: nowhere.
func labels(s []byte) int {
	quoted := false
	for i := 1; i < len(s); i++ {
		switch {
		case quoted && s[i] == '\\':
			i++
		case s[i] == '"':
			quoted = !quoted
		case s[i] == '}' && !quoted:
			return i + 1
		}
	}
	return -1
}
