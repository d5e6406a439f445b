// Command peers runs one scenario of many members with Tailplane's gossip and with hashicorp/memberlist, and prints
// both results in one table. It guesses nothing: a protocol that cannot run gets a line that says so.
//
// Both run in virtual time, as tests: only a test can have its own clock.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/tailplane/tailplane/testkit/gossiptest"
)

func main() {
	flag.Usage = func() {
		fmt.Fprintln(os.Stderr, "usage: make sim [N=members] [LOSS=share] [JITTER=time] [SECONDS=watched] [SEED=number]")
	}
	flag.Parse()
	s, err := gossiptest.Parse(flag.Args())
	if err != nil {
		fmt.Fprintln(os.Stderr, "sim:", err)
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Stdout, ".", s); err != nil {
		fmt.Fprintln(os.Stderr, "sim:", err)
		os.Exit(1)
	}
}

// maxPeers is the maximum number of memberlist members that one machine simulates. Each has about ten goroutines, and
// every message wakes some.
const maxPeers = 300

// run prints the table of a scenario. testbed is the directory of its module.
func run(ctx context.Context, w io.Writer, testbed string, s gossiptest.Scenario) error {
	dir, err := os.MkdirTemp("", "sim")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	ours, err := simulate(ctx, dir, s, filepath.Join(testbed, ".."), "./internal/gossip", "TestSim")
	if err != nil {
		return err
	}
	theirs := gossiptest.Result{Protocol: "memberlist", Skipped: fmt.Sprintf("at most %d members", maxPeers)}
	if s.N <= maxPeers {
		if theirs, err = simulate(ctx, dir, s, testbed, "./cmd/peers", "TestMemberlist"); missing(err) {
			theirs = gossiptest.Result{Protocol: "memberlist", Skipped: "its modules are not downloaded, and no proxy has them"}
		} else if err != nil {
			return err
		}
	}
	return gossiptest.Print(w, s, []gossiptest.Result{ours, theirs})
}

// missing reports whether a module is not on this machine and cannot be downloaded.
func missing(err error) bool {
	return err != nil && slices.ContainsFunc([]string{"dial tcp", "no such host", "module lookup disabled", "i/o timeout"}, func(sign string) bool {
		return strings.Contains(err.Error(), sign)
	})
}

// simulate runs the test that takes a scenario, in the directory of its module.
func simulate(ctx context.Context, dir string, s gossiptest.Scenario, module, pkg, test string) (r gossiptest.Result, err error) {
	file := filepath.Join(dir, test)
	c := exec.CommandContext(ctx, "go", "test", pkg, "-run", "^"+test+"$", "-count", "1", "-timeout", "6h", "-args", "-sim", strings.Join(s.Args(), " "), "-sim.file", file)
	c.Dir = module
	c.Cancel = func() error { return c.Process.Signal(os.Interrupt) } // so that go ends the test too
	var out bytes.Buffer
	c.Stdout, c.Stderr = &out, &out
	if err := c.Run(); err != nil {
		return r, errors.Join(fmt.Errorf("%s: %w", test, err), ctx.Err(), errors.New(out.String()))
	}
	b, err := os.ReadFile(file)
	if err != nil {
		return r, err
	}
	return r, json.Unmarshal(b, &r)
}
