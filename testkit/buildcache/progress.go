//go:build unix

package buildcache

import (
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"
)

// progress tells how far a build is: on a terminal one line that is written over, elsewhere a line now and then, so that
// a log stays readable and a CI that kills silent jobs is content.
type progress struct {
	name     string
	log      io.Writer
	terminal bool
	start    time.Time
	total    int          // packages of the program
	done     atomic.Int64 // packages compiled so far; those that Go's own cache holds are never counted
}

func (p *progress) String() string {
	return fmt.Sprintf("%s: %d/%d packages, %v", p.name, p.done.Load(), p.total, time.Since(p.start).Round(time.Second))
}

// tick writes until the function it returns is called.
func (p *progress) tick() (stop func()) {
	every := 30 * time.Second
	if p.terminal {
		every = time.Second
	}
	end := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		t := time.NewTicker(every)
		defer t.Stop()
		for {
			select {
			case <-end:
				if p.terminal {
					fmt.Fprint(p.log, "\r\x1b[K")
				}
				return
			case <-t.C:
				if p.terminal {
					fmt.Fprintf(p.log, "\r\x1b[K%s", p)
				} else {
					fmt.Fprintln(p.log, p)
				}
			}
		}
	})
	return func() {
		close(end)
		wg.Wait()
	}
}
