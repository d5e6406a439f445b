package apiproxy

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"

	"github.com/tailplane/tailplane/internal/podcreds"
)

// env is a server with one cluster, on a real listener.
type env struct {
	*Server
	cluster *Upstream
	addr    string
	roots   *x509.CertPool
	log     *logBuffer
	stop    context.CancelFunc
	ended   chan error
}

// logBuffer collects log lines.
type logBuffer struct{ atomic.Pointer[[]string] }

func (l *logBuffer) Write(p []byte) (int, error) {
	for {
		old := l.Load()
		next := []string{string(p)}
		if old != nil {
			next = append((*old)[:len(*old):len(*old)], string(p))
		}
		if l.CompareAndSwap(old, &next) {
			return len(p), nil
		}
	}
}

func (l *logBuffer) String() string {
	if all := l.Load(); all != nil {
		return strings.Join(*all, "")
	}
	return ""
}

const localToken = "local"

// startServer serves a pod whose cluster answers with h. change may modify the server first.
func startServer(t *testing.T, h http.HandlerFunc, change func(*Server)) *env {
	t.Helper()
	cluster := httptest.NewUnstartedServer(h)
	cluster.EnableHTTP2 = true
	cluster.StartTLS()
	t.Cleanup(cluster.Close)
	dir := t.TempDir()
	for name, content := range map[string][]byte{"token": []byte("real"), "ca.crt": pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cluster.Certificate().Raw})} {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	u, err := url.Parse(cluster.URL)
	if err != nil {
		t.Fatal(err)
	}
	p := &env{log: &logBuffer{}, roots: x509.NewCertPool(), ended: make(chan error, 1)}
	log := slog.New(slog.NewJSONHandler(p.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	c := NewUpstream(UpstreamConfig{Name: "east", Servers: []string{u.Host}, CAFile: filepath.Join(dir, "ca.crt"), TokenFile: filepath.Join(dir, "token"), Log: log, Now: time.Now})
	t.Cleanup(c.Close)
	p.cluster = c
	face, err := podcreds.Open(t.TempDir(), time.Now)
	if err != nil {
		t.Fatal(err)
	}
	p.roots.AppendCertsFromPEM(face.CACertificate())
	p.Server = &Server{Hosts: podcreds.Hosts(), ValidToken: func(token string) bool { return token == localToken }, Log: log, Now: time.Now, Grace: 10 * time.Second,
		Telemetry:   &Telemetry{Metrics: NewMetrics("test", BuiltinResources()), Log: log, Now: time.Now},
		Permissions: func() Permissions { return Permissions{} },
		Handle: func(x *Exchange) error {
			if err := x.Routed("r", c.Name); err != nil {
				return err
			}
			return forward(x, c)
		}}
	if change != nil {
		change(p.Server)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p.addr = ln.Addr().String()
	var ctx context.Context
	ctx, p.stop = context.WithCancel(context.WithoutCancel(t.Context()))
	go func() { p.ended <- p.Run(ctx, ln, face.TLSConfig()) }()
	t.Cleanup(func() {
		p.stop()
		select {
		case err := <-p.ended:
			p.ended <- err
		case <-time.After(time.Minute):
			t.Error("the server does not stop")
		}
	})
	return p
}

func (p *env) do(t *testing.T, method, path string, http2 bool, pairs ...string) *http.Response {
	t.Helper()
	tr := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: p.roots}, Protocols: new(http.Protocols), DisableCompression: true}
	tr.Protocols.SetHTTP1(!http2)
	tr.Protocols.SetHTTP2(http2)
	t.Cleanup(tr.CloseIdleConnections)
	r, err := http.NewRequestWithContext(t.Context(), method, "https://"+p.addr+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+localToken)
	for i := 0; i+1 < len(pairs); i += 2 {
		r.Header.Add(pairs[i], pairs[i+1])
	}
	res, err := (&http.Client{Transport: tr, Timeout: time.Minute}).Do(r)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { res.Body.Close() })
	return res
}

// TestStatusIsKubernetes checks that the decoders of Kubernetes read an encoded Status in both encodings.
func TestStatusIsKubernetes(t *testing.T) {
	scheme := runtime.NewScheme()
	metav1.AddToGroupVersion(scheme, metav1.SchemeGroupVersion)
	scheme.AddUnversionedTypes(metav1.SchemeGroupVersion, &metav1.Status{})
	codecs := serializer.NewCodecFactory(scheme)
	p := startServer(t, nil, func(s *Server) {
		s.Handle = func(*Exchange) error {
			return &Refusal{Status: 503, Reason: "ServiceUnavailable", Message: "cluster \"ë\" is away", RetryAfter: 1500 * time.Millisecond}
		}
	})
	for _, accept := range []string{"", "application/json", "*/*", "application/json;as=Table;v=v1;g=meta.k8s.io,application/json", "application/cbor, application/json", mediaTypeProtobuf, mediaTypeProtobuf + ", application/json",
		mediaTypeProtobuf + ";stream=watch", "application/json;q=0.1, " + mediaTypeProtobuf, "application/json, " + mediaTypeProtobuf + ";q=0.5", "text/html"} {
		res := p.do(t, "DELETE", "/apis/apps/v1/namespaces/shop/deployments/web", true, "Accept", accept)
		b, err := io.ReadAll(res.Body)
		if err != nil {
			t.Fatal(err)
		}
		info, ok := runtime.SerializerInfoForMediaType(codecs.SupportedMediaTypes(), res.Header.Get("Content-Type"))
		if !ok {
			t.Fatalf("%q: %s", accept, res.Header.Get("Content-Type"))
		}
		wants := mediaTypeProtobuf
		if !strings.HasPrefix(accept, mediaTypeProtobuf) && !strings.HasPrefix(accept, "application/json;q=0.1") {
			wants = "application/json"
		}
		if info.MediaType != wants {
			t.Errorf("%q is answered in %s", accept, info.MediaType)
		}
		o, _, err := info.Serializer.Decode(b, nil, nil)
		if err != nil {
			t.Errorf("%q: %v: %q", accept, err, b)
			continue
		}
		s, ok := o.(*metav1.Status)
		switch {
		case !ok:
			t.Errorf("ok is false; accept = %q, %+v", accept, o)
		case s.Code != 503:
			t.Errorf("s.Code = %v, want 503; accept = %q; %+v", s.Code, accept, o)
		case s.Status != "Failure":
			t.Errorf("s.Status = %q, want %q; accept = %q; %+v", s.Status, "Failure", accept, o)
		case s.Reason != metav1.StatusReasonServiceUnavailable:
			t.Errorf("s.Reason = %q, want %q; accept = %q; %+v", s.Reason, metav1.StatusReasonServiceUnavailable, accept, o)
		case s.Message != `mca: cluster "ë" is away`:
			t.Errorf("s.Message = %q, want %q; accept = %q; %+v", s.Message, `mca: cluster "ë" is away`, accept, o)
		case s.Details == nil:
			t.Errorf("s.Details is nil; accept = %q; %+v", accept, o)
		case s.Details.Kind != "deployments":
			t.Errorf("s.Details.Kind = %q, want %q; accept = %q; %+v", s.Details.Kind, "deployments", accept, o)
		case s.Details.Group != "apps":
			t.Errorf("s.Details.Group = %q, want %q; accept = %q; %+v", s.Details.Group, "apps", accept, o)
		case s.Details.Name != "web":
			t.Errorf("s.Details.Name = %q, want %q; accept = %q; %+v", s.Details.Name, "web", accept, o)
		case s.Details.RetryAfterSeconds != 2:
			t.Errorf("s.Details.RetryAfterSeconds = %v, want 2; accept = %q; %+v", s.Details.RetryAfterSeconds, accept, o)
		}
		if res.StatusCode != 503 || res.Header.Get("Retry-After") != "2" {
			t.Errorf("%q: %s, Retry-After %q", accept, res.Status, res.Header.Get("Retry-After"))
		}
	}
}

// PX-03: after a panic before the request is sent, nothing is sent, and the response reveals nothing about
// the panic.
func TestPanicSendsNothing(t *testing.T) {
	var got atomic.Int64
	p := startServer(t, func(http.ResponseWriter, *http.Request) { got.Add(1) }, func(s *Server) {
		s.Handle = func(*Exchange) error { panic("secret detail") }
	})
	res := p.do(t, "GET", "/api/v1/pods", true)
	b, err := io.ReadAll(res.Body)
	switch {
	case err != nil:
		t.Error(err)
	case res.StatusCode != http.StatusInternalServerError:
		t.Errorf("res.StatusCode = %v, want %v", res.StatusCode, http.StatusInternalServerError)
	case strings.Contains(string(b), "secret detail"):
		t.Errorf("string(b) = %q contains %q", string(b), "secret detail")
	case got.Load() != 0:
		t.Errorf("got.Load() = %v, want 0", got.Load())
	}
	if !strings.Contains(p.log.String(), "secret detail") {
		t.Error("the log does not have the error")
	}
}

// TestStreamsAreFlushed checks that a watch gets its headers at once and each event as soon as it happens.
func TestStreamsAreFlushed(t *testing.T) {
	next, ended := make(chan string), make(chan struct{}, 8)
	p := startServer(t, func(w http.ResponseWriter, r *http.Request) {
		defer func() { ended <- struct{}{} }()
		http.NewResponseController(w).Flush()
		for {
			select {
			case <-r.Context().Done():
				return
			case text := <-next:
				io.WriteString(w, text)
				http.NewResponseController(w).Flush()
			}
		}
	}, nil)
	for _, http2 := range []bool{false, true} {
		for _, path := range []string{"/api/v1/pods?watch=1", "/api/v1/namespaces/shop/pods/app/log?follow=1", "/api/v1/watch/pods"} {
			res := p.do(t, "GET", path, http2) // the headers came before any event
			in := bufio.NewReader(res.Body)
			for i := range 3 {
				text := fmt.Sprintf("%d\n", i)
				select {
				case next <- text:
				case <-time.After(time.Minute):
					t.Fatal("nobody listens")
				}
				if got, err := in.ReadString('\n'); got != text {
					t.Errorf("%s: %q, %v", path, got, err)
				}
			}
			res.Body.Close()
			select { // otherwise it would receive the next one's events
			case <-ended:
			case <-time.After(time.Minute):
				t.Fatalf("%s: the cluster does not notice that the client disconnected", path)
			}
		}
	}
}

// TestTruncatedResponse checks that a truncated response never looks complete.
func TestTruncatedResponse(t *testing.T) {
	p := startServer(t, func(w http.ResponseWriter, _ *http.Request) {
		io.WriteString(w, `{"items":[`)
		http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}, nil)
	for _, http2 := range []bool{false, true} {
		res := p.do(t, "GET", "/api/v1/pods", http2)
		if b, err := io.ReadAll(res.Body); err == nil {
			t.Errorf("HTTP/2 %v: %q, whole", http2, b)
		}
	}
}

// TestServerStops checks the shutdown. Watches end cleanly at once, a plain request finishes, and an
// upgraded connection continues until it ends by itself.
func TestServerStops(t *testing.T) {
	started, answered, finish := make(chan struct{}, 2), make(chan struct{}, 2), make(chan struct{})
	p := startServer(t, func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Header.Get("Upgrade") != "":
			c, rw, err := http.NewResponseController(w).Hijack()
			if err != nil {
				return
			}
			defer c.Close()
			io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
			io.Copy(c, rw)
		case r.URL.Query().Has("watch"):
			io.WriteString(w, "event\n")
			http.NewResponseController(w).Flush()
			started <- struct{}{}
			<-r.Context().Done()
		default:
			started <- struct{}{}
			<-finish
			io.WriteString(w, "done")
		}
	}, nil)
	c, err := tls.Dial("tcp", p.addr, &tls.Config{RootCAs: p.roots, NextProtos: []string{"http/1.1"}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(time.Minute))
	fmt.Fprintf(c, "GET /api/v1/namespaces/shop/pods/app/exec HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer %s\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n", p.addr, localToken)
	up := bufio.NewReader(c)
	switch res, err := http.ReadResponse(up, nil); {
	case err != nil:
		t.Fatal(err)
	case res.StatusCode != http.StatusSwitchingProtocols:
		t.Fatalf("res.StatusCode = %v, want %v", res.StatusCode, http.StatusSwitchingProtocols)
	case res.Header.Get("Mca-Cluster") != "east":
		t.Fatalf(`res.Header.Get("Mca-Cluster") != "east"; %v, %v`, res, err)
	}
	type ended struct {
		text string
		err  error
	}
	all := map[string]chan ended{}
	for _, path := range []string{"/api/v1/pods?watch=1", "/api/v1/pods"} {
		end := make(chan ended, 1)
		all[path] = end
		r, err := http.NewRequestWithContext(t.Context(), "GET", "https://"+p.addr+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Authorization", "Bearer "+localToken)
		tr := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: p.roots}, ForceAttemptHTTP2: true}
		t.Cleanup(tr.CloseIdleConnections)
		go func() {
			res, err := tr.RoundTrip(r)
			if err != nil {
				end <- ended{err: err}
				return
			}
			defer res.Body.Close()
			answered <- struct{}{}
			b, err := io.ReadAll(res.Body)
			end <- ended{string(b), err}
		}()
	}
	wait := func(path string) ended {
		t.Helper()
		select {
		case e := <-all[path]:
			return e
		case <-time.After(time.Minute):
			t.Fatalf("%s does not end", path)
			return ended{}
		}
	}
	<-started
	<-started
	<-answered // of the watch: the other request has no response yet
	p.stop()
	if e := wait("/api/v1/pods?watch=1"); e.text != "event\n" || e.err != nil {
		t.Errorf("the watch ended with %q, %v", e.text, e.err)
	}
	close(finish)
	if e := wait("/api/v1/pods"); e.text != "done" || e.err != nil {
		t.Errorf("the list ended with %q, %v", e.text, e.err)
	}
	fmt.Fprintln(c, "still here")
	if got, err := up.ReadString('\n'); got != "still here\n" {
		t.Errorf("the upgraded connection: %q, %v", got, err)
	}
	c.CloseWrite() // it has ended its direction; the other side does so too
	if rest, err := io.ReadAll(up); len(rest) > 0 {
		t.Errorf("%q, %v", rest, err)
	}
	select {
	case err := <-p.ended:
		p.ended <- err
		if err != nil {
			t.Error(err)
		}
	case <-time.After(time.Minute):
		t.Error("the server does not stop")
	}
}

// TestLongRequestLines checks that headers may be as long as net/http allows, and so may the first line,
// because label selectors are long. Longer ones get 431.
func TestLongRequestLines(t *testing.T) {
	var arrived atomic.Pointer[string]
	p := startServer(t, func(_ http.ResponseWriter, r *http.Request) { arrived.Store(&r.RequestURI) }, nil)
	path := func(size int) string {
		return "/api/v1/pods?labelSelector=app%20in%20(" + strings.Repeat("value,", size/6) + "value)"
	}
	for _, tt := range []struct {
		size, want int
	}{{33 << 10, http.StatusOK}, {250 << 10, http.StatusOK}, {300 << 10, http.StatusRequestHeaderFieldsTooLarge}} {
		for _, http2 := range []bool{false, true} {
			if http2 && tt.want != http.StatusOK {
				continue // HTTP/2 clients know the limit and do not send it
			}
			requested := path(tt.size)
			arrived.Store(nil)
			if res := p.do(t, http.MethodGet, requested, http2); res.StatusCode != tt.want {
				b, _ := io.ReadAll(res.Body)
				t.Errorf("%d KiB, HTTP/2 %v: %s, want %d: %.300s", tt.size>>10, http2, res.Status, tt.want, b)
			}
			got := arrived.Load()
			if tt.want == http.StatusOK && (got == nil || *got != requested) {
				t.Errorf("%d KiB, HTTP/2 %v: the received body differs from the sent one", tt.size>>10, http2)
			}
			if tt.want != http.StatusOK && got != nil {
				t.Errorf("%d KiB, HTTP/2 %v: the request reached the cluster", tt.size>>10, http2)
			}
		}
	}
}

// AU-01: the log line of a request has its object, and no query, header or token.
func TestInspection(t *testing.T) {
	p := startServer(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Audit-ID", r.Header.Get("Audit-ID"))
		io.WriteString(w, "{}")
	}, nil)
	p.do(t, "PUT", "/apis/apps/v1/namespaces/shop/deployments/web/scale?fieldManager=canary-query", true, "User-Agent", "kubectl/1\x20x", "X-Canary", "canary-header", "Audit-ID", "a-1").Body.Close()
	p.do(t, "GET", "/api/v1/pods", true).Body.Close()
	var line map[string]any
	for text := range strings.Lines(p.log.String()) {
		if strings.Contains(text, `"verb":"update"`) {
			if err := json.Unmarshal([]byte(text), &line); err != nil {
				t.Fatal(err)
			}
		}
		if strings.Contains(text, `"verb":"list"`) && !strings.Contains(text, `"level":"DEBUG"`) {
			t.Errorf("a read is logged above the level DEBUG: %s", text)
		}
	}
	for key, want := range map[string]any{"level": "INFO", "group": "apps", "resource": "deployments", "subresource": "scale", "namespace": "shop", "name": "web", "cluster": "east", "rule": "r",
		"code": 200.0, "bytes": 2.0, "agent": "kubectl/1 x", "audit": "a-1"} {
		if line[key] != want {
			t.Errorf("%s is %v instead of %v", key, line[key], want)
		}
	}
	for _, canary := range []string{"canary", "Bearer", `"` + localToken + `"`, "real"} {
		if strings.Contains(p.log.String(), canary) {
			t.Errorf("the log has %s", canary)
		}
	}
}

// TestPermissions checks the optional permissions, and that a header name with underscores is never allowed.
func TestPermissions(t *testing.T) {
	var got atomic.Pointer[http.Header]
	var allowed atomic.Pointer[Permissions]
	p := startServer(t, func(_ http.ResponseWriter, r *http.Request) { got.Store(&r.Header) }, func(s *Server) { s.Permissions = func() Permissions { return *allowed.Load() } })
	for _, allow := range []bool{false, true} {
		allowed.Store(&Permissions{Impersonation: allow, TokenRequests: allow})
		want := map[bool]int{false: http.StatusForbidden, true: http.StatusOK}[allow]
		if res := p.do(t, "GET", "/api/v1/pods", false, "Impersonate-User", "jane"); res.StatusCode != want || allow && got.Load().Get("Impersonate-User") != "jane" {
			t.Errorf("impersonation, allowed %v: %s", allow, res.Status)
		}
		if res := p.do(t, "POST", "/api/v1/namespaces/shop/serviceaccounts/app/token", false); res.StatusCode != want {
			t.Errorf("a token, allowed %v: %s", allow, res.Status)
		}
		if res := p.do(t, "GET", "/api/v1/pods", false, "Impersonate_User", "jane"); res.StatusCode != http.StatusForbidden {
			t.Errorf("half of a name, allowed %v: %s", allow, res.Status)
		}
	}
}

// forward sends the request to a cluster and relays the response.
func forward(x *Exchange, up *Upstream) error {
	res, err := x.Send(up)
	if err != nil {
		return err
	}
	defer res.Close()
	return x.Relay(res)
}
