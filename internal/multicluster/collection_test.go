package multicluster

import (
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tailplane/tailplane/internal/apiproxy"
	"github.com/tailplane/tailplane/internal/multicluster/config"
)

// fakeMember is a cluster that serves lists of ConfigMaps.
type fakeMember struct {
	mu       sync.Mutex
	names    []string
	rv       int
	code     int  // 0: it responds normally
	hangs    bool // it accepts requests and never responds
	cut      bool // its lists break off
	requests []string
	freed    chan struct{}
}

func (m *fakeMember) set(f func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f()
}

func (m *fakeMember) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	m.mu.Lock()
	names, rv, code, hangs, cut := m.names, m.rv, m.code, m.hangs, m.cut
	m.requests = append(m.requests, r.URL.RawQuery)
	m.mu.Unlock()
	if hangs {
		select {
		case <-r.Context().Done():
		case <-m.freed:
		}
		return
	}
	w.Header().Set("Content-Type", "application/json")
	if code != 0 {
		w.WriteHeader(code)
		fmt.Fprintf(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","message":"no","code":%d}`, code)
		return
	}
	var items []string
	for _, n := range names {
		items = append(items, fmt.Sprintf(`{"metadata":{"name":%q,"namespace":"shop","resourceVersion":"%d"}}`, n, rv))
	}
	fmt.Fprintf(w, `{"kind":"ConfigMapList","apiVersion":"v1","metadata":{"resourceVersion":"%d"},"items":[%s`, rv, strings.Join(items, ","))
	if !cut {
		io.WriteString(w, "]}\n")
	}
}

// env is a fan-out with two members over which objects are spread.
type env struct {
	*testing.T
	*Router
	east, west *fakeMember
	now        time.Time
}

func newEnv(t *testing.T, read string) *env {
	t.Helper()
	dir := t.TempDir()
	write := func(name, content string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	st := &env{T: t, now: time.Now()}
	begin := func(name string) *fakeMember {
		m := &fakeMember{rv: 10, freed: make(chan struct{})}
		srv := httptest.NewTLSServer(m)
		t.Cleanup(func() { close(m.freed); srv.CloseClientConnections(); srv.Close() })
		write("credentials/"+name+"/server", srv.URL)
		write("credentials/"+name+"/ca.crt", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: srv.Certificate().Raw})))
		write("credentials/"+name+"/token", "token-of-"+name)
		return m
	}
	st.east, st.west = begin("east"), begin("west")
	write("config.yaml", `apiVersion: mca.tailplane.dev/v1alpha1
kind: Config
epoch: 1
home: east
clusters:
- {name: east, slot: 0, allowLoopback: true, credentials: {secret: east}}
- {name: west, slot: 1, allowLoopback: true, credentials: {secret: west}}
impersonation: allow
rules:
- name: shop
  match: {apiGroups: [""], resources: [configmaps], namespaces: [shop]}
  target: {spread: {members: [east, west], deleteCollection: all, onUnavailable: {read: `+read+`}}}
`)
	log := slog.New(slog.DiscardHandler)
	st.Router = &Router{Log: log, Now: func() time.Time { return st.now }, Metrics: apiproxy.NewMetrics("test", apiproxy.BuiltinResources())}
	st.Metrics.SetConfig(1, []string{"east", "west"}, []string{"shop"})
	keep := &ConfigLoader{File: filepath.Join(dir, "config.yaml"), Credentials: filepath.Join(dir, "credentials"),
		Home:        apiproxy.UpstreamConfig{Servers: []string{"127.0.0.1:1"}},
		CheckUpdate: func(_, _ *config.Config) error { return nil }, Interval: time.Hour, Log: log, Now: time.Now}
	if err := keep.Load(); err != nil {
		t.Fatal(err)
	}
	history, err := OpenConfigHistory(filepath.Join(dir, "past"), nil)
	if err != nil {
		t.Fatal(err)
	}
	st.SetConfig(keep.Current(), history)
	return st
}

// get requests the ConfigMaps of the namespace shop.
func (st *env) get(query string, header ...string) *http.Response {
	st.Helper()
	r := httptest.NewRequestWithContext(st.Context(), "GET", "/api/v1/namespaces/shop/configmaps?"+query, nil)
	r.Header.Set("Accept", "application/json")
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	res, _, err := serveRequest(st.Router, r)
	if err != nil {
		st.Fatal(err)
	}
	return res
}

// checkList checks a response: status, parts of the body, and warnings.
func (st *env) checkList(why string, res *http.Response, code int, want, warns string) (rv string) {
	st.Helper()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		st.Fatal(err)
	}
	var names []string
	for _, n := range []string{"of-east", "of-west", "of-both", "new-west"} {
		if strings.Contains(string(b), `"name":"`+n+`"`) {
			names = append(names, n)
		}
	}
	if res.StatusCode != code || strings.Join(names, " ") != want {
		st.Errorf("%s: %d with %q, want %d with %q: %s", why, res.StatusCode, names, code, want, b)
	}
	if got := strings.Join(res.Header["Warning"], "; "); warns == "" && got != "" || !strings.Contains(got, warns) {
		st.Errorf("%s: warned %q, want %q", why, got, warns)
	}
	if _, rest, ok := strings.Cut(string(b), `"resourceVersion":"`); ok {
		rv, _, _ = strings.Cut(rest, `"`)
	}
	return rv
}

// ADP-18: a member that is down is left out if a rule allows it. A member that refuses is not left out, nor
// is any member at a position that needs all of them.
func TestSkip(t *testing.T) {
	st := newEnv(t, "skip")
	st.east.names, st.west.names = []string{"of-east"}, []string{"of-west"}
	fresh := st.checkList("all are there", st.get(""), 200, "of-east of-west", "")
	st.west.set(func() { st.west.code = 500 })
	rv := st.checkList("west is down", st.get(""), 200, "of-east", "cluster west is left out")
	if !strings.HasSuffix(rv, strings.Repeat("0", 20)) {
		t.Errorf("the position is %s", rv)
	}
	st.checkList("exactly", st.get("resourceVersionMatch=Exact&resourceVersion="+fresh), 500, "", "")
	for _, code := range []int{403, 404, 410} {
		st.west.set(func() { st.west.code = code })
		st.checkList("it says no", st.get(""), code, "", "")
	}
	st.west.set(func() { st.west.code, st.west.cut = 0, true })
	st.checkList("it breaks off", st.get(""), 503, "", "")
}

// ADP-18: the wait for a member that does not respond is limited.
func TestSlow(t *testing.T) {
	t.Parallel() // it takes as long as the wait for a member
	st := newEnv(t, "skip")
	st.east.names = []string{"of-east"}
	st.west.set(func() { st.west.hangs = true })
	st.checkList("west hangs", st.get(""), 200, "of-east", "cluster west is left out")
}

// ADP-12: a warning counts the copies that a list omits, if the list is short enough to be complete before
// its headers are sent.
func TestCopiesAreCounted(t *testing.T) {
	st := newEnv(t, "fail")
	st.east.names, st.west.names = []string{"of-east", "of-both"}, []string{"of-both", "of-west"}
	st.checkList("a short list", st.get(""), 200, "of-east of-west of-both", "that an earlier cluster also has are left out: 1")
	var many []string
	for i := range 3000 {
		many = append(many, fmt.Sprint("n", i))
	}
	st.east.set(func() { st.east.names = append([]string{"of-both"}, many...) })
	st.checkList("a long one, whose beginning is gone by then", st.get(""), 200, "of-west of-both", "")
	st.west.set(func() { st.west.cut, st.west.names = true, append([]string{"of-both"}, many...) })
	st.east.set(func() { st.east.names = []string{"of-both"} })
	res := func() (res *http.Response) {
		defer func() {
			if p := recover(); p != http.ErrAbortHandler {
				t.Errorf("an interrupted long list: %v", p)
			}
		}()
		return st.get("")
	}()
	if res != nil {
		t.Error("an interrupted long list was shown as complete")
	}
}

// A body that is larger than the limit is refused. A shortened one could delete more than the caller selected.
func TestDeleteCollectionWithALargeBody(t *testing.T) {
	st := newEnv(t, "fail")
	body := `{"kind":"DeleteOptions","apiVersion":"v1"}` + strings.Repeat(" ", maxBody)
	r := httptest.NewRequestWithContext(t.Context(), "DELETE", "/api/v1/namespaces/shop/configmaps", strings.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	_, _, err := serveRequest(st.Router, r)
	if refused, ok := errors.AsType[*apiproxy.Refusal](err); !ok || refused.Status != http.StatusRequestEntityTooLarge {
		t.Errorf("%v, want status %d", err, http.StatusRequestEntityTooLarge)
	}
	if n := len(st.east.requests) + len(st.west.requests); n != 0 {
		t.Errorf("the clusters got %d requests, want none", n)
	}
}
