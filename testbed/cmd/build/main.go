// Command build builds the testbed's binaries that are missing from the build cache, and prints the paths of all. It
// imports only the standard library, so that a run with nothing to build ends at once.
//
//	go run ./cmd/build devcluster kubectl   # these two; without names: everything whose sources exist
//	go run ./cmd/build -clean               # empties the cache
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"syscall"

	"github.com/tailplane/tailplane/testkit/buildcache"
)

func main() {
	clean := flag.Bool("clean", false, "remove every binary from the cache")
	flag.Usage = func() {
		fmt.Fprintln(flag.CommandLine.Output(), "usage: build [-clean] [name …]")
		flag.PrintDefaults()
	}
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *clean, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "build:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, clean bool, names []string) error {
	c, err := buildcache.Open()
	if err != nil {
		return err
	}
	c.Log = os.Stderr
	if i, err := os.Stderr.Stat(); err == nil {
		c.Terminal = i.Mode()&os.ModeCharDevice != 0
	}
	if clean {
		return c.Clean()
	}
	if len(names) == 0 {
		names = existing(c)
	}
	// One after the other: linking the large programs needs the most memory.
	for _, name := range names {
		path, err := c.Build(ctx, name)
		if ctx.Err() != nil {
			return errors.New("interrupted")
		}
		if e, ok := errors.AsType[*buildcache.UnavailableError](err); ok {
			// Tests that need it print SKIP with this reason. The rest of the testbed is not affected.
			fmt.Fprintf(os.Stderr, "%s: SKIP %s\n", name, e.Reason)
			continue
		}
		if err != nil {
			return err
		}
		fmt.Printf("%s\t%s\n", name, path)
	}
	return nil
}

// existing returns the programs whose sources exist: a tree need not contain all of them.
func existing(c *buildcache.Cache) []string {
	return slices.DeleteFunc(c.Names(), func(name string) bool {
		if c.Present(name) {
			return false
		}
		fmt.Fprintf(os.Stderr, "%s: this tree does not have its sources\n", name)
		return true
	})
}
