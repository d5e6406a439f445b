// Package kubelet is the endpoint through which an API server reaches the containers of a node. It serves exec,
// attach, port-forward and logs with the protocols of the real kubelet (k8s.io/cri-streaming). It listens on
// loopback, and accepts only the API server's own client certificate.
package kubelet

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"time"

	"k8s.io/cri-streaming/pkg/streaming/portforward"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
)

// idleLimit is the time after which an idle stream is closed.
const idleLimit = 4 * time.Hour

// Runtime runs the containers. In its methods, and those of the embedded interfaces, a pod's name is
// "namespace/name", and its UID is empty.
type Runtime interface {
	remotecommand.Executor
	remotecommand.Attacher
	portforward.PortForwarder

	// Has returns an error if the pod does not exist. If container is not empty, it must exist too.
	Has(pod, container string) error
	// Logs writes the log of a container. With Follow, it also writes new output until ctx ends.
	Logs(ctx context.Context, pod, container string, o LogOptions, w io.Writer) error
}

// LogOptions select a part of a log. Tail must be negative for the whole log: zero skips all existing lines.
type LogOptions struct {
	Follow     bool
	Previous   bool // of the container before its last restart
	Timestamps bool
	Since      time.Time
	Tail       int // lines; negative: all
	Bytes      int64
}

// Files are the certificates for the mutual TLS of the endpoint and its API server.
type Files struct {
	Cert, Key string // of the endpoint
	ClientCA  string // CA of the API server's client certificate
	Client    string // common name in that certificate; others are rejected
}

// Endpoint serves a node's containers. Serve runs it.
type Endpoint struct {
	Port     int32 // on 127.0.0.1
	listener net.Listener
	server   *http.Server
}

// Listen opens the endpoint. It responds after a call of Serve.
func Listen(files Files, r Runtime, log *slog.Logger) (*Endpoint, error) {
	pair, err := tls.LoadX509KeyPair(files.Cert, files.Key)
	if err != nil {
		return nil, err
	}
	b, err := os.ReadFile(files.ClientCA)
	if err != nil {
		return nil, err
	}
	clients := x509.NewCertPool()
	if !clients.AppendCertsFromPEM(b) {
		return nil, fmt.Errorf("%s contains no certificate", files.ClientCA)
	}
	l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{
		Certificates: []tls.Certificate{pair}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: clients,
		NextProtos: []string{"http/1.1"}, // required by SPDY and WebSocket
		VerifyConnection: func(s tls.ConnectionState) error {
			if name := s.PeerCertificates[0].Subject.CommonName; name != files.Client {
				return fmt.Errorf("%q is not the API server", name)
			}
			return nil
		},
	})
	if err != nil {
		return nil, err
	}
	return &Endpoint{
		Port: int32(l.Addr().(*net.TCPAddr).Port), listener: l,
		server: &http.Server{Handler: handler(r), ReadHeaderTimeout: 30 * time.Second, ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug)},
	}, nil
}

// Serve serves until ctx ends, and then closes the remaining streams.
func (e *Endpoint) Serve(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() { e.server.Close() })
	defer stop()
	if err := e.server.Serve(e.listener); ctx.Err() == nil {
		return err
	}
	return nil
}

func handler(runtime Runtime) http.Handler {
	mux := http.NewServeMux()
	// known responds to a request about a missing pod or container before the connection is upgraded.
	known := func(next func(w http.ResponseWriter, r *http.Request, pod, container string)) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			pod, container := r.PathValue("namespace")+"/"+r.PathValue("pod"), r.PathValue("container")
			if err := runtime.Has(pod, container); err != nil {
				http.Error(w, err.Error(), http.StatusNotFound)
				return
			}
			next(w, r, pod, container)
		}
	}
	mux.HandleFunc("GET /containerLogs/{namespace}/{pod}/{container}", known(func(w http.ResponseWriter, r *http.Request, pod, container string) {
		o, err := logOptions(r.URL.Query())
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		w.Header().Set("Content-Type", "text/plain")
		if err := runtime.Logs(r.Context(), pod, container, o, flusher{w, http.NewResponseController(w)}); err != nil && r.Context().Err() == nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
		}
	}))
	exec := known(func(w http.ResponseWriter, r *http.Request, pod, container string) {
		if o, ok := options(w, r); ok {
			remotecommand.ServeExec(w, r, runtime, pod, "", container, r.URL.Query()["command"], o, idleLimit, remotecommand.DefaultStreamCreationTimeout, remotecommand.SupportedStreamingProtocols)
		}
	})
	attach := known(func(w http.ResponseWriter, r *http.Request, pod, container string) {
		if o, ok := options(w, r); ok {
			remotecommand.ServeAttach(w, r, runtime, pod, "", container, o, idleLimit, remotecommand.DefaultStreamCreationTimeout, remotecommand.SupportedStreamingProtocols)
		}
	})
	forward := known(func(w http.ResponseWriter, r *http.Request, pod, _ string) {
		o, err := portforward.NewV4Options(r)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		portforward.ServePortForward(w, r, runtime, pod, "", o, idleLimit, remotecommand.DefaultStreamCreationTimeout, portforward.SupportedProtocols)
	})
	for _, method := range []string{"GET", "POST"} { // WebSocket and SPDY
		mux.HandleFunc(method+" /exec/{namespace}/{pod}/{container}", exec)
		mux.HandleFunc(method+" /attach/{namespace}/{pod}/{container}", attach)
		mux.HandleFunc(method+" /portForward/{namespace}/{pod}", forward)
	}
	return mux
}

func options(w http.ResponseWriter, r *http.Request) (*remotecommand.Options, bool) {
	o, err := remotecommand.NewOptions(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return nil, false
	}
	return o, true
}

// logOptions parses the query as the API server writes it.
func logOptions(q url.Values) (LogOptions, error) {
	o := LogOptions{Tail: -1}
	var errs []error
	number := func(name string, set func(int64)) {
		if s := q.Get(name); s != "" {
			n, err := strconv.ParseInt(s, 10, 64)
			if err == nil && n < 0 {
				err = fmt.Errorf("%s is negative", name)
			}
			errs = append(errs, err)
			set(n)
		}
	}
	number("tailLines", func(n int64) { o.Tail = int(n) })
	number("limitBytes", func(n int64) { o.Bytes = n })
	number("sinceSeconds", func(n int64) { o.Since = time.Now().Add(-time.Duration(n) * time.Second) })
	if s := q.Get("sinceTime"); s != "" {
		at, err := time.Parse(time.RFC3339, s)
		errs = append(errs, err)
		o.Since = at
	}
	for name, to := range map[string]*bool{"follow": &o.Follow, "previous": &o.Previous, "timestamps": &o.Timestamps} {
		if s := q.Get(name); s != "" {
			v, err := strconv.ParseBool(s)
			errs = append(errs, err)
			*to = v
		}
	}
	if s := q.Get("stream"); s != "" && s != "All" {
		errs = append(errs, fmt.Errorf("stream %q: the testbed supports only All", s))
	}
	return o, errors.Join(errs...)
}

// flusher sends each line at once.
type flusher struct {
	w  io.Writer
	rc *http.ResponseController
}

func (f flusher) Write(b []byte) (int, error) {
	n, err := f.w.Write(b)
	if err == nil {
		err = f.rc.Flush()
	}
	return n, err
}
