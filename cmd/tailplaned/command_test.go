package main

import (
	"io"
	"testing"
)

// Mistakes in flags and settings have exit code 2, unlike failures of the environment.
func TestUsage(t *testing.T) {
	for name, args := range map[string][]string{
		"log level": {"access", "--log-level", "loud"}, "no file": {"access", "--config", "/nowhere/config.yaml"}, "argument": {"operator", "now"}, "flag": {"all", "--nonsense"},
	} {
		c := command()
		c.SetArgs(args)
		c.SetOut(io.Discard)
		c.SetErr(io.Discard)
		if err := c.ExecuteContext(t.Context()); exitCode(err) != 2 {
			t.Errorf("%s: %v", name, err)
		}
	}
}
