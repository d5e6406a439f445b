package buildcache

import (
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"
)

// progress reports how far a build is. On a terminal it overwrites one line. Otherwise it writes a line at intervals,
// so that a log stays readable and a CI does not kill a silent job.
type progress struct {
	name     string
	log      io.Writer
	terminal bool
	start    time.Time
	total    int          // number of packages of the program
	done     atomic.Int64 // packages compiled so far; packages from Go's own cache are not counted
}

func (p *progress) String() string {
	return fmt.Sprintf("%s: %d/%d packages, %v", p.name, p.done.Load(), p.total, time.Since(p.start).Round(time.Second))
}

// tick writes the progress until the caller calls stop.
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
