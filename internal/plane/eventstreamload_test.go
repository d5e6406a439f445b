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
func TestManyStreamsOverTheNetwork(t *testing.T) {
	o := newEnv(time.Now).withObjects()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- o.door.Run(ctx, ln, nil, o.service.Routes()...) }()
	defer func() {
		stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	}()
	// One client leaves behind some resources that are not a leak.
	if err := openStream(t.Context(), ln.Addr().String(), 0, func(string) bool { return false }); err != nil {
		t.Fatal(err)
	}
	idle := waitForGoroutines(t, func(int) bool { return true })
	elapsed := o.crowd(t, ln.Addr().String(), 1000)
	after := waitForGoroutines(t, func(now int) bool { return now <= idle })
	heap := o.heap()
	t.Logf("1,000 clients got the event in %v; goroutines %d before, %d after", elapsed.Round(time.Millisecond), idle, after)
	// The runtime keeps memory for that many goroutines. A second crowd must add nothing.
	o.crowd(t, ln.Addr().String(), 300)
	waitForGoroutines(t, func(now int) bool { return now <= idle })
	grown := o.heap() - heap
	if t.Logf("300 more clients left %d KiB", grown>>10); grown > 300<<10 {
		t.Error("memory grows with clients")
	}
}

// crowd connects the clients, sends them one change, and disconnects them.
func (o *env) crowd(t *testing.T, addr string, clients int) (elapsed time.Duration) {
	t.Helper()
	name := fmt.Sprint("crowd-of-", clients)
	var here, reported, deleted sync.WaitGroup
	here.Add(clients)
	reported.Add(clients)
	problems := make(chan error, clients)
	for i := range clients {
		deleted.Go(func() {
			var arrived, received sync.Once
			err := openStream(t.Context(), addr, 1+i/8, func(line string) bool {
				switch {
				case line == "event: snapshot":
					arrived.Do(here.Done)
				case strings.HasPrefix(line, `data: {"id":"`+name+`"`):
					received.Do(reported.Done)
					return false
				}
				return true
			})
			arrived.Do(here.Done)
			received.Do(reported.Done)
			if err != nil {
				problems <- fmt.Errorf("client %d: %w", i, err)
			}
		})
	}
	here.Wait()
	began := time.Now()
	o.store.Set(plane.KindCluster, "kubernetes", cluster(name))
	reported.Wait()
	elapsed = time.Since(began)
	deleted.Wait()
	close(problems)
	for err := range problems {
		t.Error(err)
	}
	return elapsed
}

// heap returns the bytes in use, without the audit entries of the environment.
func (o *env) heap() int64 {
	o.mu.Lock()
	o.entries = nil
	o.mu.Unlock()
	runtime.GC()
	runtime.GC() // the second run empties sync.Pools
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// openStream reads an event stream line by line until read returns true.
func openStream(ctx context.Context, addr string, who int, read func(line string) bool) error {
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

// waitForGoroutines waits until the number of goroutines is as wanted and stays the same for a moment.
func waitForGoroutines(t *testing.T, want func(now int) bool) int {
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
