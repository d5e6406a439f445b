package tailnettest

import (
	"context"
	"os"
	"time"
)

// policyFile is a policy that a person edits while the tailnet runs.
type policyFile struct {
	path string
	set  func(hujson string) error
	logf func(string, ...any)
	seen os.FileInfo // state of the file at the last read
}

func (f *policyFile) read() (string, error) {
	// Stat before the read: a write in between causes one more read, and is never missed.
	fi, err := os.Stat(f.path)
	if err != nil {
		return "", err
	}
	b, err := os.ReadFile(f.path)
	if err != nil {
		return "", err
	}
	f.seen = fi
	return string(b), nil
}

// watch sets the policy again whenever the file was written or replaced, until the context ends. It polls, which
// works with every editor.
func (f *policyFile) watch(ctx context.Context) {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		fi, err := os.Stat(f.path)
		if err != nil || os.SameFile(fi, f.seen) && fi.ModTime().Equal(f.seen.ModTime()) && fi.Size() == f.seen.Size() {
			continue // a missing file is being replaced
		}
		text, err := f.read()
		if err != nil {
			continue
		}
		if err := f.set(text); err != nil {
			f.logf("policy file %s is invalid, the previous policy stays in effect: %v", f.path, err)
		} else {
			f.logf("policy file %s is in effect", f.path)
		}
	}
}
