package system

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/audit"
	"github.com/tailplane/tailplane/internal/problem"
	"github.com/tailplane/tailplane/testkit/attacktest"
	"github.com/tailplane/tailplane/testkit/testenv"
)

// A stranger sends requests from goroutines of a test. Its methods return errors instead of failing the test.
type stranger struct {
	http *http.Client
	base string
}

// ask sends a request and also returns how long the answer took.
func (x stranger) ask(ctx context.Context, method, path string) (attacktest.Answer, time.Duration, error) {
	req, err := http.NewRequestWithContext(ctx, method, x.base+path, nil)
	if err != nil {
		return attacktest.Answer{}, 0, err
	}
	began := time.Now()
	res, err := x.http.Do(req)
	if err != nil {
		return attacktest.Answer{}, 0, err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(io.LimitReader(res.Body, 1<<20))
	a := attacktest.Answer{Status: res.StatusCode, Header: res.Header, Body: string(b)}
	if json.Unmarshal(b, &a.Problem) != nil || a.Problem.Code == "" {
		a.Problem = problem.Error{}
	}
	return a, time.Since(began), err
}

// recordOf returns the requests in an audit log file.
func recordOf(t *testing.T, path string) (out []audit.Entry) {
	t.Helper()
	attacktest.ReadSince(t, path, 0, func(text []byte) {
		line, err := audit.ParseLine(text)
		if err != nil {
			t.Fatalf("record: %q: %v", text, err)
		}
		if c, err := line.Content(); err != nil {
			t.Fatalf("record: %q: %v", text, err)
		} else if e, ok := c.(audit.Entry); ok && e.Surface != "process" {
			out = append(out, e)
		}
		if line.Kind == audit.KindGap {
			t.Errorf("the record lost entries: %s", text)
		}
	})
	return out
}

// p99 returns the 99th percentile of durations.
func p99(took []time.Duration) time.Duration {
	slices.Sort(took)
	return took[len(took)*99/100]
}

// DS-01. A flood of a caller without rights causes no request to the API server. A caller with rights stays within
// the limits of a device, of a login and of the cluster. Other callers are not affected.
//
// Guard: httpapi.(*limiter).admit, which spends no shared token on a caller whose own tokens are used up, and
// httpapi.(*limiter).acquireWaiter; signin.(*Service).login, which limits the sign-ins of one login.
func TestDS01_Floods(t *testing.T) {
	s := attacktest.Start(t)
	s.SetPolicy(t, attacktest.Grant("quinn@example.com", `{"role": "view", "period": "1h"}`), attacktest.Grant("rose@example.com", `{"role": "view", "period": "1h"}`))
	name := s.AddReplica(t, "tka-strict", testenv.NoLimits, "{all: {perMinute: 3000, burst: 100}, others: {perMinute: 6000, burst: 100}}",
		"keepExpired: 3s", "keepExpired: 3s\n  maxPerLogin: 2")
	record := filepath.Join(s.Dir, "tka-strict", "audit.jsonl")
	base := "https://" + name
	host, _, _ := strings.Cut(name, ".")
	as := func(p *testenv.Person) stranger {
		t.Helper()
		if err := s.Net.WaitPeer(t.Context(), p.Node, host); err != nil {
			t.Fatal(err)
		}
		hc := p.HTTP()
		t.Cleanup(hc.CloseIdleConnections)
		return stranger{hc, base}
	}
	ask := func(x stranger, method, path string) attacktest.Answer {
		t.Helper()
		a, _, err := x.ask(t.Context(), method, path)
		if err != nil {
			t.Fatal(err)
		}
		return a
	}

	t.Run("by who may nothing", func(t *testing.T) {
		alice, bob := as(s.Alice(t)), as(s.Bob(t))
		// calm measures alice's requests during the flood: 100 answers, all of them successful.
		calm := func() (took []time.Duration) {
			t.Helper()
			for tick := time.NewTicker(30 * time.Millisecond); len(took) < 100; <-tick.C {
				a, d, err := alice.ask(t.Context(), "GET", attacktest.API+"/cluster-info")
				if err != nil || a.Status != http.StatusOK {
					t.Fatalf("alice, request %d: %v %v", len(took)+1, a, err)
				}
				took = append(took, d)
			}
			return took
		}
		before := p99(calm())
		m := s.Mark(t)
		began := time.Now()
		var refused, limited atomic.Int64
		ctx, stop := context.WithCancel(t.Context())
		wrong := make(chan error, 3)
		for range cap(wrong) {
			go func() { // 300 a second if the machine can: many times the shared limit
				tick := time.NewTicker(10 * time.Millisecond)
				defer tick.Stop()
				for ctx.Err() == nil {
					a, _, err := bob.ask(ctx, "POST", attacktest.API+"/login")
					after, _ := strconv.Atoi(a.Header.Get("Retry-After"))
					switch {
					case ctx.Err() != nil:
					case err != nil:
						wrong <- err
						return
					case a.Code() == problem.NoCapability && a.Status == http.StatusForbidden:
						refused.Add(1)
					case a.Code() == problem.RateLimited && a.Status == http.StatusTooManyRequests && after > 0:
						limited.Add(1)
					default:
						wrong <- fmt.Errorf("bob: %v %v", a, a.Header)
						return
					}
					<-tick.C
				}
				wrong <- nil
			}()
		}
		during := p99(calm())
		took := time.Since(began)
		stop()
		for range cap(wrong) {
			if err := <-wrong; err != nil {
				t.Error(err)
			}
		}
		t.Logf("bob sent %d requests in %v, %d of them over his limit; alice's p99 was %v and is %v",
			refused.Load()+limited.Load(), took.Round(time.Millisecond), limited.Load(), before.Round(time.Microsecond), during.Round(time.Microsecond))
		switch most := 5 + int64(took.Minutes()*10) + 1; {
		case refused.Load() > most:
			t.Errorf("refused.Load() = %v, want at most %v", refused.Load(), most)
		case refused.Load() == 0:
			t.Errorf("refused.Load() = %v", refused.Load())
		case limited.Load() == 0:
			t.Errorf("limited.Load() = %v", limited.Load())
		}
		// The machine has background load, and the flood's clients run on it too.
		if during > 2*before && during > attacktest.Soon {
			t.Errorf("alice's p99 was %v and is %v", before, during)
		}
		if asked := m.Requests(t, attacktest.AccessAccount); len(asked) > 0 {
			t.Errorf("requests to the API server: %v", asked)
		}
		var bobs int64
		for _, e := range recordOf(t, record) {
			if e.Actor.Login == "bob@example.com" {
				bobs++
				if e.Result != audit.Refused || e.Code != problem.NoCapability && e.Code != problem.RateLimited {
					t.Errorf("recorded %+v", e)
				}
			}
		}
		if told := refused.Load() + limited.Load(); bobs < told || bobs > told+3 { // the last requests may have been cut off
			t.Errorf("%d entries in the record of %d requests", bobs, told)
		}
	})

	t.Run("by one device and one login", func(t *testing.T) {
		quinn := s.Person(t, "quinn-laptop", "quinn@example.com")
		x := as(quinn)
		attacktest.Eventually(t, attacktest.Long, "quinn's grant is felt", func() bool { return ask(x, "GET", attacktest.API+"/login").Code() == problem.NotSignedIn })
		t.Cleanup(func() { s.Logout(t, quinn) })
		made := 0
		for range 20 {
			m := s.Mark(t)
			a := ask(x, "POST", attacktest.API+"/login")
			switch {
			case a.Status == http.StatusAccepted:
				made++
			case a.Code() != problem.RateLimited || a.Header.Get("Retry-After") == "":
				t.Errorf("login: %v %v", a, a.Header)
			default:
				if asked := m.Writes(t, attacktest.AccessAccount); len(asked) > 0 {
					t.Errorf("refused, but requests to the API server: %v", asked)
				}
			}
		}
		if made == 0 || made > 7 { // a burst of 5, and 10 a minute
			t.Errorf("%d of 20 logins were carried out", made)
		}
		// A login has one bucket for all its devices. The kubeconfig has a separate bucket and is served.
		phone, onPhone, limited := as(s.Person(t, "quinn-phone", "quinn@example.com")), 0, false
		for range 10 { // a slow machine may have refilled quinn's bucket meanwhile
			a := ask(phone, "POST", attacktest.API+"/login")
			if limited = a.Code() == problem.RateLimited; limited {
				break
			}
			onPhone = 1
		}
		if !limited {
			t.Error("another device of the same login has a separate bucket")
		}
		attacktest.Eventually(t, attacktest.Long, "quinn's kubeconfig", func() bool { return ask(x, "GET", attacktest.API+"/kubeconfig?wait=5s").Status == http.StatusOK })
		if n := len(s.SignIns(t, "quinn@example.com")); n != 1+onPhone {
			t.Errorf("%d sign-ins of %d devices", n, 1+onPhone)
		}
	})

	t.Run("by many devices of one login", func(t *testing.T) {
		for i := range 3 {
			p := s.Person(t, fmt.Sprintf("rose-%d", i+1), "rose@example.com")
			t.Cleanup(func() { s.Logout(t, p) })
			x := as(p)
			attacktest.Eventually(t, attacktest.Long, "rose's grant is felt", func() bool { return ask(x, "GET", attacktest.API+"/login").Code() == problem.NotSignedIn })
			m := s.Mark(t)
			a := ask(x, "POST", attacktest.API+"/login")
			if i < 2 && a.Status != http.StatusAccepted {
				t.Errorf("device %d: %v", i+1, a)
			}
			if i == 2 && (a.Code() != problem.TooManySignins || a.Status != http.StatusTooManyRequests || len(m.Writes(t, attacktest.AccessAccount)) > 0) {
				t.Errorf("device 3 of at most 2: %v, and wrote %v", a, m.Writes(t, attacktest.AccessAccount))
			}
		}
		if n := len(s.SignIns(t, "rose@example.com")); n != 2 {
			t.Errorf("%d sign-ins are stored", n)
		}
	})

	t.Run("by who waits without end", func(t *testing.T) {
		alice := s.Alice(t)
		waitPending(t, s, alice)
		ctx, leave := context.WithCancel(t.Context())
		x := stranger{s.HTTPClient(alice), s.Server()}
		var waiting sync.WaitGroup
		for range 4 {
			waiting.Go(func() {
				if a, _, err := x.ask(ctx, "GET", attacktest.API+"/kubeconfig?wait=30s"); ctx.Err() == nil {
					t.Errorf("a waiter was answered %v %v", a, err)
				}
			})
		}
		attacktest.Eventually(t, attacktest.Long, "four wait", func() bool { return s.Metrics(t, s.Access)[`tailplane_requests_in_flight{listener="tailnet"}`] == 4 })
		_, e := s.Refused(t, "the fifth", problem.RateLimited, func() attacktest.Answer { return ask(x, "GET", attacktest.API+"/kubeconfig?wait=30s") })
		if e.Actor.Login != "alice@example.com" || e.Verb != access.SigninKubeconfig {
			t.Errorf("recorded %+v", e)
		}
		// Control: a request that does not wait is served, and so is a waiting request after other waiters have left.
		if a := ask(x, "GET", attacktest.API+"/login"); a.Code() != problem.NotReady && a.Status != http.StatusAccepted {
			t.Errorf("without waiting: %v", a)
		}
		leave()
		waiting.Wait()
		attacktest.Eventually(t, attacktest.Long, "there is free capacity again", func() bool { return ask(x, "GET", attacktest.API+"/kubeconfig?wait=10ms").Code() == problem.NotReady })
	})
}
