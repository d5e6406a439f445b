package httpapi_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/httpapi"
)

// SGN-06: Of 2,000 waiting requests, 1,000 wait and the others get Retry-After at once. One caller
// can have four. A client that leaves frees its slot.
func TestManyWaiters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newTestServer(forget)
		d.Limits = httpapi.Limits{Waiters: 1000, WaitersPerCaller: 4}
		d.Identify = func(r *http.Request) (access.Caller, error) {
			c := alice(view)
			c.Device.ID = r.RemoteAddr
			return c, nil
		}
		h := d.Handler(slow.ServeAfter(func(ctx context.Context, _ access.Permit, a actionRequest) error {
			select {
			case <-time.After(time.Duration(a.Wait)):
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		}, func(context.Context, access.Permit, actionRequest) (response, error) { return response{}, nil }))
		var served, refused, slowest atomic.Int64
		visit := func(ctx context.Context, device string) int {
			r := httptest.NewRequest("GET", "/api/v1alpha1/kubeconfig?wait=30s", nil).WithContext(ctx)
			r.Host, r.RemoteAddr = "tka", device
			w := httptest.NewRecorder()
			began := time.Now()
			h.ServeHTTP(w, r)
			switch {
			case w.Code == http.StatusOK:
				served.Add(1)
			case w.Code == http.StatusTooManyRequests && w.Header().Get("Retry-After") != "":
				refused.Add(1)
				slowest.Store(max(slowest.Load(), int64(time.Since(began))))
			}
			return w.Code
		}
		var wg sync.WaitGroup
		for i := range 2000 {
			wg.Go(func() { visit(t.Context(), fmt.Sprint("node", i)) })
		}
		wg.Wait()
		switch {
		case served.Load() != 1000:
			t.Errorf("served: served.Load() = %v, want 1000; %v", served.Load(), time.Duration(slowest.Load()))
		case refused.Load() != 1000:
			t.Errorf("served: refused.Load() = %v, want 1000; %v", refused.Load(), time.Duration(slowest.Load()))
		case slowest.Load() != 0:
			t.Errorf("served: slowest.Load() = %v, want 0; %v", slowest.Load(), time.Duration(slowest.Load()))
		}
		served.Store(0)
		refused.Store(0)
		ctx, leave := context.WithCancel(t.Context())
		for range 10 {
			wg.Go(func() { visit(ctx, "one") })
		}
		synctest.Wait()
		if refused.Load() != 6 {
			t.Errorf("of one caller's 10, %d were refused", refused.Load())
		}
		leave() // the client has left
		wg.Wait()
		if code := visit(t.Context(), "one"); code != http.StatusOK {
			t.Errorf("who came after those who left: %d", code)
		}
	})
}

// Every such refusal has Retry-After.
func TestRetryAfterIsAlwaysThere(t *testing.T) {
	h := newEnv(t, httpapi.Limits{All: httpapi.Rate{PerMinute: 1, Burst: 1}})
	for range 3 {
		status, hdr, _ := raw(t, h, "GET", "/api/v1alpha1/login", "", "")
		if status == http.StatusTooManyRequests && hdr.Get("Retry-After") == "" {
			t.Errorf("%d without Retry-After", status)
		}
	}
	h = newEnv(t, httpapi.Limits{All: httpapi.Rate{PerMinute: 600, Burst: 1}}) // one request per tenth of a second
	for range 3 {
		status, hdr, body := raw(t, h, "GET", "/api/v1alpha1/login", "", "")
		if status == http.StatusTooManyRequests && (hdr.Get("Retry-After") != "1" || !strings.Contains(body, "Wait 1s.")) {
			t.Errorf("Retry-After %s: %s", hdr.Get("Retry-After"), body)
		}
	}
	h = newEnv(t, httpapi.Limits{})
	names := h.server.Names
	h.server.Names = func() []string { return nil }
	if status, hdr, _ := raw(t, h, "GET", "/api/v1alpha1/login", "", ""); status != http.StatusServiceUnavailable || hdr.Get("Retry-After") == "" {
		t.Errorf("without a tailnet: %d %v", status, hdr)
	}
	h.server.Names = names
}
