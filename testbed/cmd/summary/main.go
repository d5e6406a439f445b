// Command summary reads what `go test -json` printed and says what passed,
// what failed and, by name and reason, what was skipped. A skip is never
// counted as a pass. Its last line is "N passed, N failed, N skipped".
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
)

type event struct {
	Action, Package, Test, Output string
}

func main() {
	demo := flag.String("demo", "", "pass or fail: how the demo ended")
	flag.Parse()
	failed, err := run(*demo, flag.Args())
	if err != nil {
		fmt.Fprintln(os.Stderr, "summary:", err)
		os.Exit(2)
	}
	if failed {
		os.Exit(1)
	}
}

func run(demo string, files []string) (bool, error) {
	var passed, failed int
	skips, fails := []string{}, []string{}
	for _, name := range files {
		f, err := os.Open(name)
		if err != nil {
			return true, err
		}
		defer f.Close()
		outputs := map[[2]string]string{}
		for d := json.NewDecoder(f); ; {
			var e event
			if err := d.Decode(&e); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				return true, fmt.Errorf("%s: %w", name, err)
			}
			id := [2]string{e.Package, e.Test}
			short := strings.TrimPrefix(e.Package, "github.com/tailplane/tailplane/") + " " + e.Test
			switch e.Action {
			case "output":
				outputs[id] += e.Output
			case "pass":
				if e.Test != "" {
					passed++
				}
			case "fail":
				if e.Test == "" && slices.ContainsFunc(fails, func(s string) bool { return strings.HasPrefix(s, short) }) {
					continue // the package fails because its test did
				}
				failed++
				fails = append(fails, short)
			case "skip":
				if e.Test != "" {
					skips = append(skips, short+": "+reason(outputs[id]))
				}
			}
		}
	}
	switch demo {
	case "pass":
		passed++
	case "fail":
		failed++
		fails = append(fails, "demo")
	}
	for _, s := range skips {
		fmt.Println("SKIP", s)
	}
	for _, s := range fails {
		fmt.Println("FAIL", s)
	}
	fmt.Printf("%d passed, %d failed, %d skipped\n", passed, failed, len(skips))
	return failed > 0 || passed == 0, nil
}

// reason is what the test gave to t.Skip: the line that go test prefixes with its place.
func reason(output string) string {
	for line := range strings.Lines(output) {
		line = strings.TrimSpace(line)
		if place, text, ok := strings.Cut(line, ": "); ok && strings.Contains(place, ".go:") {
			return text
		}
	}
	return "no reason given"
}
