//go:build unix

package controller

import (
	"bytes"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/tailplane/tailplane/api/gateway/v1alpha1"
	"github.com/tailplane/tailplane/testkit/tailnettest/tsapi"
)

// crash ends the operator at the write that at selects, and cuts its connection to all servers.
func (p *groupEnv) crash(at func(method, path string, body []byte) groupCut) (revive func()) {
	var restore atomic.Pointer[func()]
	f := func(method, path string, body []byte) groupCut {
		c := at(method, path, body)
		if c == cutBefore && restore.Load() == nil {
			restore.Store(new(p.api.Fault(tsapi.Fault{Status: http.StatusServiceUnavailable})))
		}
		return c
	}
	p.wire.cut.Store(&f)
	return func() {
		p.stop()
		if r := restore.Load(); r != nil {
			(*r)()
		}
		p.start()
	}
}

// GTW-16, GW-10: a group is created and deleted, and the operator crashes between each two steps
// of both. In the end nothing of the group is left.
func TestGroupCrashes(t *testing.T) {
	p := newGroupEnv(t)
	coming := []struct {
		why string
		at  func(method, path string, body []byte) groupCut
	}{
		{"held, and nothing else", func(_, path string, body []byte) groupCut {
			if strings.HasSuffix(path, "/configmaps/g0-egress-config") {
				return cutBefore
			}
			return cutNone
		}},
		{"a key is recorded but not created", func(_, path string, body []byte) groupCut {
			if strings.Contains(path, "/secrets/") && bytes.Contains(body, []byte("authkey-expires")) && !bytes.Contains(body, []byte("authkey-id")) {
				return cutAfter
			}
			return cutNone
		}},
		{"a key is created but not recorded", func(_, path string, body []byte) groupCut {
			if strings.Contains(path, "/secrets/") && bytes.Contains(body, []byte(`"authkey":"`)) {
				return cutBefore
			}
			return cutNone
		}},
		{"keys are recorded, and there are no pods", func(_, path string, body []byte) groupCut {
			if strings.Contains(path, "/statefulsets/") {
				return cutBefore
			}
			return cutNone
		}},
		{"pods run, but the status has no devices", func(_, path string, body []byte) groupCut {
			if strings.HasSuffix(path, "/status") {
				return cutBefore
			}
			return cutNone
		}},
		{"the device has joined, and its key still exists", func(_, path string, body []byte) groupCut {
			if strings.Contains(path, "/secrets/") && bytes.Contains(body, []byte(`"authkey":null`)) || bytes.Contains(body, []byte(`"data":null`)) {
				return cutBefore
			}
			return cutNone
		}},
	}
	for n := 0; ; n++ {
		name := fmt.Sprintf("g%d", n)
		revive := func() {}
		if n < len(coming) {
			revive = p.crash(coming[n].at)
			t.Log(name, coming[n].why)
		}
		g := p.group(name, 2)
		if n < len(coming)-1 {
			p.until("the operator is dead", p.wire.dead.Load)
			revive()
		}
		id := p.join(name, 0)
		if n == len(coming)-1 {
			p.until("the operator is dead", p.wire.dead.Load)
			revive()
		}
		p.until("the device is recorded", func() bool {
			d := p.get(name).Status.Devices
			return len(d) == 2 && d[0].NodeID == id && len(p.secret(name + "-0-config").Data["authkey"]) == 0 && len(p.secret(name + "-1-config").Data["authkey"]) > 0
		})
		if keys := p.keys(); len(keys) != 1 {
			t.Errorf("%s: keys %v, and one relay has not joined", name, keys)
		}
		var writes atomic.Int64
		revive = p.crash(func(string, string, []byte) groupCut {
			if writes.Add(1) == int64(n+1) {
				return cutBefore
			}
			return cutNone
		})
		p.must(p.admin.Delete(t.Context(), g))
		gone := func() bool { return !p.exists(name, &v1alpha1.TailscaleProxyGroup{}) }
		p.until("the operator is dead, or the group is deleted", func() bool { return p.wire.dead.Load() || gone() })
		if !p.wire.dead.Load() {
			if n < 6 {
				t.Errorf("the deletion had %d writes only", n)
			}
			p.checkDeleted(g)
			return
		}
		t.Logf("%s: crashed before %s", name, *p.wire.last.Load())
		revive()
		p.until("it is deleted", gone)
		p.checkOnlyGarbage(g)
	}
}

// GTW-16, GW-10: the Secrets with the records of keys are already deleted when the group is
// deleted, as after the deletion of its namespace. The unused keys are deleted with the group.
func TestKeysWithoutSecrets(t *testing.T) {
	p := newGroupEnv(t)
	g := p.group("web", 3)
	p.until("three keys", func() bool {
		n := 0
		for i := range 3 {
			if len(p.secret(fmt.Sprintf("web-%d-config", i)).Data["authkey"]) > 0 {
				n++
			}
		}
		return n == 3
	})
	if keys := p.keys(); len(keys) != 3 {
		t.Fatalf("keys %v", keys)
	}
	p.stop()
	for i := range 3 {
		p.must(p.admin.Delete(t.Context(), p.secret(fmt.Sprintf("web-%d-config", i))))
	}
	p.patch(p.get("web"), `{"spec":{"replicas":1}}`) // no record of the others is left
	p.must(p.admin.Delete(t.Context(), g))
	p.start()
	p.until("it is deleted", func() bool { return !p.exists("web", &v1alpha1.TailscaleProxyGroup{}) })
	p.checkDeleted(g)
	if n := p.counted.get("deleted"); n != 3 {
		t.Errorf("%d keys were deleted", n)
	}
}
