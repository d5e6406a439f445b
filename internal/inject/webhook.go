package inject

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"mime"
	"net"
	"net/http"
	"time"

	"github.com/tailplane/tailplane/internal/httpapi/framing"
)

// Webhook serves the admission webhooks. All fields are required.
//
// It does not authenticate its callers, because the response depends only on the request and it has no
// secrets. It makes no requests itself.
type Webhook struct {
	Options Options
	Log     *slog.Logger
	// Measure is called for each request with its Outcome, or BadRequest.
	Measure func(result string, took time.Duration)
	// Config returns the errors of an adapter configuration; see ReviewConfig.
	Config func(doc, previous []byte) (wrong, warnings []string)

	busy chan struct{}
}

// BadRequest is the result of a request that is not a valid AdmissionReview.
const BadRequest = "bad_request"

// Results returns all results that Measure can receive.
func Results() []string {
	return []string{string(Patched), string(Unchanged), string(Skipped), string(Refused), BadRequest}
}

const (
	maxReview = 3 << 20 // bytes; the API server accepts no larger request either
	// maxConcurrent limits the memory, because parsing a review needs many times its size.
	maxConcurrent = 16
)

// Handler serves POST /mutate and POST /validate-config.
func (w *Webhook) Handler() http.Handler {
	w.busy = make(chan struct{}, maxConcurrent)
	mux := http.NewServeMux()
	mux.HandleFunc("POST /mutate", w.serve(func(body []byte) ([]byte, Decision, error) { return Review(body, w.Options) }))
	mux.HandleFunc("POST /validate-config", w.serve(func(body []byte) ([]byte, Decision, error) { return ReviewConfig(body, w.Config) }))
	return mux
}

func (w *Webhook) serve(review func([]byte) ([]byte, Decision, error)) http.HandlerFunc {
	return func(rw http.ResponseWriter, r *http.Request) {
		began := time.Now()
		b, v, status, err := w.review(rw, r, review)
		rw.Header().Set("X-Content-Type-Options", "nosniff")
		if err != nil {
			w.Measure(BadRequest, time.Since(began))
			w.Log.Debug("the request is not an AdmissionReview", "status", status, "err", err)
			http.Error(rw, err.Error(), status)
			return
		}
		w.Measure(string(v.Outcome), time.Since(began))
		w.Log.Debug("admission", "outcome", v.Outcome, "reason", v.Code)
		rw.Header().Set("Content-Type", "application/json")
		rw.Write(b) // a caller that disconnects does not need the response
	}
}

func (w *Webhook) review(
	rw http.ResponseWriter,
	r *http.Request,
	review func([]byte) ([]byte, Decision, error),
) ([]byte, Decision, int, error) {
	if kind, params, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || kind != "application/json" ||
		params["charset"] != "" && params["charset"] != "utf-8" {
		return nil, Decision{}, http.StatusUnsupportedMediaType, errors.New("send an AdmissionReview as application/json")
	}
	if e := r.Header.Get("Content-Encoding"); e != "" && e != "identity" {
		return nil, Decision{}, http.StatusUnsupportedMediaType, fmt.Errorf("the encoding %.40q is not supported", e)
	}
	body, err := io.ReadAll(http.MaxBytesReader(rw, r.Body, maxReview))
	if _, large := errors.AsType[*http.MaxBytesError](err); large {
		return nil, Decision{}, http.StatusRequestEntityTooLarge, fmt.Errorf("more than %d bytes", maxReview)
	}
	if err != nil {
		return nil, Decision{}, http.StatusBadRequest, errors.New("the body is incomplete")
	}
	select {
	case w.busy <- struct{}{}:
		defer func() { <-w.busy }()
	case <-r.Context().Done():
		return nil, Decision{}, http.StatusServiceUnavailable, errors.New("busy")
	}
	b, v, err := review(body)
	if err != nil {
		return nil, Decision{}, http.StatusBadRequest, err
	}
	return b, v, http.StatusOK, nil
}

// Limits of one connection. The API server waits five seconds for a response.
const (
	headerTimeout   = 5 * time.Second
	bodyTimeout     = 5 * time.Second
	writeTimeout    = 10 * time.Second
	idleTimeout     = 90 * time.Second
	maxHeader       = 16 << 10
	maxStreams      = 250
	shutdownTimeout = 10 * time.Second
)

// Serve serves on ln until ctx ends, then finishes pending requests.
func (w *Webhook) Serve(ctx context.Context, ln net.Listener, config *tls.Config) error {
	config = config.Clone()
	config.NextProtos = []string{"h2", "http/1.1"}
	srv := &http.Server{
		Handler: w.Handler(), ReadHeaderTimeout: headerTimeout, ReadTimeout: bodyTimeout, WriteTimeout: writeTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeader,
		Protocols: new(http.Protocols), HTTP2: &http.HTTP2Config{MaxConcurrentStreams: maxStreams},
		ErrorLog: slog.NewLogLogger(w.Log.Handler(), slog.LevelDebug), // TLS errors of unknown peers and similar
	}
	// The framing check is inside TLS, so net/http does not see TLS. It detects HTTP/2 by the connection
	// preface.
	srv.Protocols.SetHTTP1(true)
	srv.Protocols.SetUnencryptedHTTP2(true)
	served := make(chan error, 1)
	go func() { served <- srv.Serve(framing.Listener{Listener: tls.NewListener(ln, config), HTTP2: true}) }()
	select {
	case err := <-served:
		return fmt.Errorf("serve the webhook: %w", err)
	case <-ctx.Done():
	}
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownTimeout)
	defer cancel()
	if srv.Shutdown(grace) != nil {
		srv.Close()
	}
	<-served
	return nil
}
