package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tailplane/tailplane/internal/httpapi"
	"github.com/tailplane/tailplane/internal/signin"
	"github.com/tailplane/tailplane/testkit/attacktest"
	"github.com/tailplane/tailplane/testkit/testenv"
)

// An impostorServer is a node of the tailnet that answers as the test requires. It proves its answers with its own key,
// so a client on first contact accepts it as a server.
type impostorServer struct {
	name  string // the full name
	key   httpapi.Key
	info  signin.ClusterInfo // the cluster information that it reports, of the real cluster
	grant signin.Kubeconfig  // a real kubeconfig, which works

	mu     sync.Mutex
	seen   []string // received requests, and "clear" for a connection on port 80
	sent   int64    // bytes of bodies
	answer http.HandlerFunc
}

// newWrongServer makes the node "wrong" a server until the test ends.
func newWrongServer(t *testing.T, s *attacktest.Env) *impostorServer {
	t.Helper()
	alice, node := s.Alice(t), s.Person(t, "wrong", "", "tag:other").Node
	info, err := signin.GetClusterInfo.Call(t.Context(), s.APIClient(alice), signin.ClusterInfoRequest{})
	if err != nil {
		t.Fatal(err)
	}
	w := newWrongAt(t, s, node.Hostname, info)
	s.Login(t, alice, signin.LoginRequest{})
	w.grant = s.Kubeconfig(t, alice)
	w.grant.Cluster, w.grant.Prefix = "wrong", "tka-"
	ln, err := node.ListenTLS("tcp", ":443")
	if err != nil {
		t.Fatal(err)
	}
	w.listen(t, ln)
	clear, err := node.Listen("tcp", ":80")
	if err != nil {
		t.Fatal(err)
	}
	w.inTheClear(t, clear)
	s.WaitPeer(t, alice, node.Hostname)
	return w
}

func newWrongAt(t *testing.T, s *attacktest.Env, host string, info signin.ClusterInfo) *impostorServer {
	t.Helper()
	key, err := httpapi.NewKey(bytes.Repeat([]byte{7}, 32))
	if err != nil {
		t.Fatal(err)
	}
	info.Name, info.Key = "wrong", key.Public()
	w := &impostorServer{name: host + "." + s.Net.Suffix(), key: key, info: info}
	w.answer = w.honest
	return w
}

func (w *impostorServer) listen(t *testing.T, ln net.Listener) {
	srv := &http.Server{Handler: w, BaseContext: func(net.Listener) context.Context { return t.Context() }}
	ended := make(chan struct{})
	go func() { srv.Serve(ln); close(ended) }()
	t.Cleanup(func() { srv.Close(); ln.Close(); <-ended })
}

// inTheClear records connections to port 80.
func (w *impostorServer) inTheClear(t *testing.T, ln net.Listener) {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			w.note("clear")
			conn.Close()
		}
	}()
	t.Cleanup(func() { ln.Close(); <-ended })
}

func (w *impostorServer) note(what string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.seen = append(w.seen, what)
}

// answers replaces its handler and clears the recorded requests.
func (w *impostorServer) answers(h http.HandlerFunc) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.answer, w.seen, w.sent = h, nil, 0
}

// asked returns the requests since the last call of answers.
func (w *impostorServer) asked() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.seen)
}

func (w *impostorServer) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	w.note(r.Method + " " + strings.TrimPrefix(r.URL.Path, attacktest.API))
	w.mu.Lock()
	answer := w.answer
	w.mu.Unlock()
	answer(rw, r)
}

// prove sends a body with this server's proof.
func (w *impostorServer) prove(rw http.ResponseWriter, r *http.Request, status int, body any) {
	text, ok := body.([]byte)
	if !ok {
		var err error
		if text, err = json.Marshal(body); err != nil {
			text = []byte(err.Error())
		}
	}
	rw.Header().Set("Content-Type", "application/json")
	rw.Header().Set(httpapi.ProofHeader, w.key.Prove(r.Header.Get(httpapi.NonceHeader), r.Host, text))
	rw.WriteHeader(status)
	rw.Write(text)
}

// honest answers as a real server does.
func (w *impostorServer) honest(rw http.ResponseWriter, r *http.Request) {
	st := signin.Status{Username: "alice@example.com", Role: "view", Until: time.Now().Add(time.Hour).UTC().Format(time.RFC3339), State: signin.Pending,
		Name: "alice-0", Namespaces: []string{}, MissingNamespaces: []string{}, Cluster: "wrong"}
	switch r.Method + " " + strings.TrimPrefix(r.URL.Path, attacktest.API) {
	case "GET /cluster-info":
		w.prove(rw, r, http.StatusOK, w.info)
	case "POST /login":
		w.prove(rw, r, http.StatusAccepted, st)
	case "GET /login":
		w.prove(rw, r, http.StatusNotFound, []byte(`{"code":"not_signed_in","message":"You are not signed in.","advice":["Sign in."],"auditId":"A"}`))
	case "GET /kubeconfig":
		grant := w.grant
		grant.Session = signin.Session(r.URL.Query().Get("session"))
		w.kubeconfig(rw, r, grant)
	case "GET /sessions":
		w.prove(rw, r, http.StatusOK, signin.Sessions{Sessions: []signin.Status{}})
	default:
		st.State = signin.Ended
		w.prove(rw, r, http.StatusOK, st)
	}
}

func (w *impostorServer) kubeconfig(rw http.ResponseWriter, r *http.Request, body any) {
	rw.Header().Set(signin.ExpiresHeader, time.Now().Add(time.Hour).UTC().Format(time.RFC3339))
	w.prove(rw, r, http.StatusOK, body)
}

// instead answers like honest, except for one operation.
func (w *impostorServer) instead(operation string, h http.HandlerFunc) http.HandlerFunc {
	return func(rw http.ResponseWriter, r *http.Request) {
		if r.Method+" "+strings.TrimPrefix(r.URL.Path, attacktest.API) == operation {
			h(rw, r)
			return
		}
		w.honest(rw, r)
	}
}

// takeOver makes a new node of the tailnet take over a server's name.
func takeOver(t *testing.T, s *attacktest.Env, host string) *testenv.Person {
	t.Helper()
	for _, n := range s.Net.Nodes() {
		if n.Name == host+"."+s.Net.Suffix()+"." && !s.Net.Delete(n.StableID) {
			t.Fatalf("the node %s cannot be removed", n.Name)
		}
	}
	s.Mu.Lock()
	delete(s.People, host)
	s.Mu.Unlock()
	return s.Person(t, host, "", "tag:other")
}
