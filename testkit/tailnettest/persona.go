package tailnettest

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"sync"
	"time"

	"tailscale.com/client/tailscale/apitype"
	"tailscale.com/net/socks5"
	"tailscale.com/tsnet"
	"tailscale.com/types/logger"
)

// Persona serves an HTTP proxy on 127.0.0.1 through which ordinary programs (kubectl, curl, a browser) act as the
// node s. It supports CONNECT and absolute-form requests, and resolves names on the tailnet. It requires no password,
// because browsers do not support one for SOCKS5. So while it runs, every program on this machine can act as that
// person. A caller that prints the address must say so.
func (n *Net) Persona(s *tsnet.Server) (proxyURL string, err error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	dial := dialer(s)
	transport := &http.Transport{DialContext: dial}
	plain := &httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { r.Out.Host = r.In.Host },
		Transport:     transport,
		FlushInterval: -1,
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			http.Error(w, "as "+s.Hostname+": "+err.Error(), http.StatusBadGateway)
		},
	}
	srv := &http.Server{ReadHeaderTimeout: 30 * time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Method == http.MethodConnect:
			connect(w, r, dial)
		case r.URL.IsAbs():
			plain.ServeHTTP(w, r)
		default:
			http.Error(w, "this is a proxy, not a page", http.StatusBadRequest)
		}
	})}
	go srv.Serve(ln)
	n.endsWith(s, func() { srv.Close(); transport.CloseIdleConnections() })
	return "http://" + ln.Addr().String(), nil
}

// PersonaSOCKS serves a SOCKS5 proxy in the same way. Unlike an HTTP proxy, it fails to connect where s does, also for plain HTTP.
func (n *Net) PersonaSOCKS(s *tsnet.Server) (proxyURL string, err error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	srv := &socks5.Server{Logf: logger.Discard, Dialer: dialer(s)}
	go srv.Serve(ln)
	n.endsWith(s, func() { ln.Close() })
	return "socks5://" + ln.Addr().String(), nil
}

// LocalAPI serves the LocalAPI of s at a Unix socket, as the Tailscale of a machine does. Programs find it by the variable TS_SOCKET.
func (n *Net) LocalAPI(s *tsnet.Server, socket string) error {
	lc, err := s.LocalClient()
	if err != nil {
		return err
	}
	ln, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	srv := &http.Server{ReadHeaderTimeout: 10 * time.Second, Handler: &httputil.ReverseProxy{
		Rewrite:   func(r *httputil.ProxyRequest) { r.Out.URL.Scheme, r.Out.URL.Host = "http", apitype.LocalAPIHost },
		Transport: roundTripper(lc.DoLocalRequest),
	}}
	go srv.Serve(ln)
	n.endsWith(s, func() { srv.Close() })
	return nil
}

type roundTripper func(*http.Request) (*http.Response, error)

// RoundTrip implements [http.RoundTripper].
func (rt roundTripper) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.RequestURI = "" // LocalClient refuses the request otherwise
	return rt(r)
}

// connectLimit bounds how long a persona connects to a node that does not answer, as programs do without a proxy.
const connectLimit = 10 * time.Second

// dialer returns the function with which a persona connects as s.
func dialer(s *tsnet.Server) func(ctx context.Context, network, addr string) (net.Conn, error) {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		ctx, cancel := context.WithTimeout(ctx, connectLimit)
		defer cancel()
		return s.Dial(ctx, network, addr)
	}
}

// connect joins the client's connection with a new one on the tailnet until both directions have ended.
func connect(w http.ResponseWriter, r *http.Request, dial func(context.Context, string, string) (net.Conn, error)) {
	up, err := dial(r.Context(), "tcp", r.Host)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	defer up.Close()
	w.WriteHeader(http.StatusOK)
	down, buf, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	defer down.Close()
	var wg sync.WaitGroup
	wg.Go(func() { pour(up, buf) })
	wg.Go(func() { pour(down, up) })
	wg.Wait()
}

// pour copies until the end and then half-closes dst. It closes dst if dst cannot be half-closed, or after an error,
// because then the peer does not read any more.
func pour(dst net.Conn, src io.Reader) {
	_, err := io.Copy(dst, src)
	if half, ok := dst.(interface{ CloseWrite() error }); ok && err == nil && half.CloseWrite() == nil {
		return
	}
	dst.Close()
}
