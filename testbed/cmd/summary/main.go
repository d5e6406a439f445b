// Command summary reads the output of `go test -json` and reports the passed, failed and skipped tests, with the
// reasons of skips. A skip never counts as a pass. A test that was skipped because of -short counts as failed: a
// complete run must not omit tests for speed. The last line is "N passed, N failed, N skipped".
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"
)

func main() {
	demo := flag.String("demo", "", "result of the demo: pass or fail")
	flag.Parse()
	bad, err := run(os.Stdout, *demo, flag.Args())
	if err != nil {
		fmt.Fprintln(os.Stderr, "summary:", err)
		os.Exit(2)
	}
	if bad {
		os.Exit(1)
	}
}

// name is a test. Without Test it is a package that did not compile, timed out or crashed.
type name struct{ Package, Test string }

// String returns the package, starting at the module, and the test.
func (n name) String() string {
	return strings.TrimPrefix(n.Package, "github.com/tailplane/tailplane/") + " " + n.Test
}

// skip is a reason, and the tests with that reason.
type skip struct {
	reason string
	tests  []string
}

// tally is the result of some runs of tests.
type tally struct {
	passed []name
	failed []name
	skips  []skip
	said   map[name]string // output of failed tests
}

func read(files []string) (t tally, err error) {
	t.said = map[name]string{}
	for _, file := range files {
		if err := t.read(file); err != nil {
			return t, fmt.Errorf("%s: %w", file, err)
		}
	}
	return t, nil
}

func (t *tally) read(file string) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	for d := json.NewDecoder(f); ; {
		var e struct{ Action, Package, Test, Output string }
		if err := d.Decode(&e); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		id := name{e.Package, e.Test}
		switch e.Action {
		case "output":
			t.said[id] += e.Output
		case "pass":
			if e.Test != "" {
				t.passed = append(t.passed, id)
			}
			delete(t.said, id)
		case "fail":
			if e.Test == "" && slices.ContainsFunc(t.failed, func(n name) bool { return n.Package == e.Package }) {
				continue // the package fails only because its test failed
			}
			t.failed = append(t.failed, id)
		case "skip":
			if e.Test != "" {
				t.skip(id)
			}
		}
	}
}

func (t *tally) skip(id name) {
	why := reason(t.said[id])
	i := slices.IndexFunc(t.skips, func(s skip) bool { return s.reason == why })
	if i < 0 {
		i, t.skips = len(t.skips), append(t.skips, skip{reason: why})
	}
	t.skips[i].tests = append(t.skips[i].tests, id.String())
}

func run(out io.Writer, demo string, files []string) (bool, error) {
	t, err := read(files)
	if err != nil {
		return true, err
	}
	passed, failed := len(t.passed), []string{}
	for _, n := range t.failed {
		failed = append(failed, n.String())
	}
	switch demo {
	case "pass":
		passed++
	case "fail":
		failed = append(failed, "demo")
	}
	skipped := 0
	for _, s := range t.skips { // reasons begin with SKIP and the missing part
		skipped += len(s.tests)
		fmt.Fprintf(out, "%s (%s)\n", s.reason, strings.Join(s.tests, ", "))
		if strings.Contains(s.reason, "-short") {
			failed = append(failed, s.tests...)
		}
	}
	for _, n := range t.failed {
		fmt.Fprintf(out, "---- %s\n%s", n, tail(t.said[n]))
	}
	for _, s := range failed {
		fmt.Fprintln(out, "FAIL", s)
	}
	fmt.Fprintf(out, "%d passed, %d failed, %d skipped\n", passed, len(failed), skipped)
	return len(failed) > 0 || passed == 0, nil
}

// A test's own messages begin with their file and line, also those from test helper libraries.
var ownWords = regexp.MustCompile(`^\s+\w+\.go:\d+: |^panic: |^WARNING: DATA RACE`)

// tail returns the reason of a failed test: its first own messages, and the end of its output, which can be only
// logs.
func tail(output string) string {
	const most, words, long = 20, 10, 400
	lines := slices.Collect(strings.Lines(output))
	end := max(0, len(lines)-most)
	first := slices.DeleteFunc(slices.Clone(lines[:end]), func(line string) bool { return !ownWords.MatchString(line) })
	list := append(first[:min(words, len(first))], lines[end:]...)
	for i, line := range list {
		if len(line) > long {
			list[i] = line[:long] + " …\n"
		}
	}
	return strings.Join(list, "")
}

// reason returns the argument of t.Skip: the line that go test prefixes with its file and line.
func reason(output string) string {
	for line := range strings.Lines(output) {
		line = strings.TrimSpace(line)
		if place, text, ok := strings.Cut(line, ": "); ok && strings.Contains(place, ".go:") {
			return "SKIP " + strings.TrimPrefix(text, "SKIP ")
		}
	}
	return "SKIP: no reason given"
}
