package attacktest

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"sync"
	"testing"
)

// ProcessWatch examines the arguments and environments of a person's processes while they run.
type ProcessWatch struct {
	Mu    sync.Mutex
	seen  map[string]bool // names of the programs that were examined
	Found []string
	stop  chan struct{}
	done  chan struct{}
}

// WatchProcesses examines every process that has mark in its environment, as often as possible. It searches for texts
// that look like a token.
func WatchProcesses(mark string) *ProcessWatch {
	w := &ProcessWatch{seen: map[string]bool{}, stop: make(chan struct{}), done: make(chan struct{})}
	go func() {
		defer close(w.done)
		for {
			select {
			case <-w.stop:
				return
			default:
				w.look(mark)
			}
		}
	}()
	return w
}

func (w *ProcessWatch) look(mark string) {
	folders, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return
	}
	for _, dir := range folders {
		env, _ := os.ReadFile(dir + "/environ") // the process may be gone
		if !bytes.Contains(env, []byte(mark)) {
			continue
		}
		argv, _ := os.ReadFile(dir + "/cmdline")
		w.Mu.Lock()
		name, _, _ := bytes.Cut(argv, []byte{0})
		w.seen[filepath.Base(string(name))] = true
		for what, text := range map[string][]byte{"arguments": argv, "environment": env} {
			if at := TokenForm.FindIndex(text); at != nil {
				w.Found = append(w.Found, fmt.Sprintf("the %s of %s: …%q", what, name, text[max(0, at[0]-30):at[0]+12]))
			}
		}
		w.Mu.Unlock()
	}
}

// TokenForm matches tokens of the API server.
var TokenForm = regexp.MustCompile(`eyJ[A-Za-z0-9_-]{20,}\.eyJ[A-Za-z0-9_-]{20,}\.[A-Za-z0-9_-]{20,}`)

// End returns the findings.
func (w *ProcessWatch) End(t *testing.T, programs ...string) []string {
	t.Helper()
	close(w.stop)
	<-w.done
	for _, p := range programs {
		if !w.seen[p] {
			t.Errorf("%s was never running: %v", p, w.seen)
		}
	}
	return slices.Compact(w.Found)
}
