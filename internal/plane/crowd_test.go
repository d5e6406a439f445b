package plane_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tailplane/tailplane/internal/plane"
)

// PLANE-12: a thousand clients over real connections receive a change. After they disconnect, no goroutine is left and the memory does not
// grow with the number of clients.
func TestACrowdOverTheNetwork(t *testing.T) {
	o := newOffice(time.Now).filled()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- o.door.Run(ctx, ln, nil, o.desk.Routes()...) }()
	defer func() {
		stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	}()
	// One client leaves behind some resources that are not a leak.
	if err := visit(t.Context(), ln.Addr().String(), 0, func(string) bool { return false }); err != nil {
		t.Fatal(err)
	}
	idle := settle(t, func(int) bool { return true })
	took := o.crowd(t, ln.Addr().String(), 1000)
	after := settle(t, func(now int) bool { return now <= idle })
	heap := o.heap()
	t.Logf("1,000 clients were told in %v; goroutines %d before, %d after", took.Round(time.Millisecond), idle, after)
	// The runtime keeps memory for that many goroutines. A second crowd must add nothing.
	o.crowd(t, ln.Addr().String(), 300)
	settle(t, func(now int) bool { return now <= idle })
	grown := o.heap() - heap
	if t.Logf("300 more clients left %d KiB", grown>>10); grown > 300<<10 {
		t.Error("memory grows with clients")
	}
}

// crowd connects the clients, sends them one change, and disconnects them.
func (o *office) crowd(t *testing.T, addr string, clients int) (took time.Duration) {
	t.Helper()
	name := fmt.Sprint("crowd-of-", clients)
	var here, told, gone sync.WaitGroup
	here.Add(clients)
	told.Add(clients)
	problems := make(chan error, clients)
	for i := range clients {
		gone.Go(func() {
			var arrived, heard sync.Once
			err := visit(t.Context(), addr, 1+i/8, func(line string) bool {
				switch {
				case line == "event: snapshot":
					arrived.Do(here.Done)
				case strings.HasPrefix(line, `data: {"id":"`+name+`"`):
					heard.Do(told.Done)
					return false
				}
				return true
			})
			arrived.Do(here.Done)
			heard.Do(told.Done)
			if err != nil {
				problems <- fmt.Errorf("client %d: %w", i, err)
			}
		})
	}
	here.Wait()
	began := time.Now()
	o.board.Put(plane.KindCluster, "kubernetes", cluster(name))
	told.Wait()
	took = time.Since(began)
	gone.Wait()
	close(problems)
	for err := range problems {
		t.Error(err)
	}
	return took
}

// heap returns the bytes in use, without the audit entries of the environment.
func (o *office) heap() int64 {
	o.mu.Lock()
	o.entries = nil
	o.mu.Unlock()
	runtime.GC()
	runtime.GC() // the second run empties sync.Pools
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// visit reads an event stream line by line until read returns true.
func visit(ctx context.Context, addr string, who int, read func(line string) bool) error {
	ctx, cancel := context.WithTimeout(ctx, 90*time.Second)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, "GET", "http://"+addr+"/api/v1/events?topics=infra", nil)
	if err != nil {
		return err
	}
	r.Host = "dashboard"
	r.Header.Set("Test-Login", fmt.Sprintf("u%d@example.com", who))
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	res, err := client.Do(r)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(res.Body, 1000))
		return fmt.Errorf("%s: %s", res.Status, text)
	}
	lines := bufio.NewScanner(res.Body)
	for lines.Scan() {
		if !read(lines.Text()) {
			return nil
		}
	}
	return fmt.Errorf("it ended: %w", lines.Err())
}

// settle waits until the number of goroutines is as wanted and stays the same for a moment.
func settle(t *testing.T, want func(now int) bool) int {
	t.Helper()
	deadline := time.Now().Add(60 * time.Second)
	for last, same := -1, 0; ; {
		now := runtime.NumGoroutine()
		if now == last && want(now) {
			if same++; same == 10 {
				return now
			}
		} else {
			last, same = now, 0
		}
		if time.Now().After(deadline) {
			t.Errorf("%d goroutines stay", now)
			return now
		}
		time.Sleep(20 * time.Millisecond)
	}
}
