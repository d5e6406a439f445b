package tailnet

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

func TestClaimState(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "b")
	release, err := claimState(dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := claimState(dir); err == nil || !strings.Contains(err.Error(), "in use by another process") {
		t.Errorf("second claim: %v", err)
	}
	left, err := os.ReadDir(dir)
	switch {
	case err != nil:
		t.Errorf("the claim left: %v", err)
	case len(left) != 1:
		t.Errorf("the claim left: len(left) = %v, want 1", len(left))
	case left[0].Name() != lockFile:
		t.Errorf("the claim left: left[0].Name() = %q, want %q", left[0].Name(), lockFile)
	}
	if fi, err := os.Stat(dir); err != nil || fi.Mode().Perm() != 0o700 {
		t.Errorf("mode %v %v", fi.Mode(), err)
	}
	release()
	if release, err = claimState(dir); err != nil {
		t.Fatalf("after release: %v", err)
	}
	release()
}

// claimEnv makes this test binary act as the other process: it claims the directory and holds it
// until its standard input ends.
const claimEnv = "TAILNET_TEST_CLAIM"

func claimAndWait(dir string) {
	if _, err := claimState(dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println("claimed")
	io.Copy(io.Discard, os.Stdin)
}

// The lock belongs to a process: it excludes other processes, and it ends with the process, even if
// that is killed.
func TestClaimStateOfAnotherProcess(t *testing.T) {
	dir := t.TempDir()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), claimEnv+"="+dir)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer stdin.Close()
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var reported strings.Builder
	for buf := make([]byte, 1024); !strings.Contains(reported.String(), "claimed"); {
		k, err := stdout.Read(buf)
		reported.Write(buf[:k])
		if err != nil {
			t.Fatalf("the other process: %s %v", reported.String(), err)
		}
	}
	if _, err := claimState(dir); err == nil || !strings.Contains(err.Error(), "in use by another process") {
		t.Errorf("claim while another process runs: %v", err)
	}
	cmd.Process.Kill()
	cmd.Wait()
	release, err := claimState(dir)
	if err != nil {
		t.Fatalf("after the other process was killed: %v", err)
	}
	release()
}
