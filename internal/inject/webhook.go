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

	"github.com/tailplane/tailplane/internal/door/framing"
)

// A Webhook answers the API server. All fields are required.
//
// It does not ask who is calling: what it answers follows from the question, and
// it knows no secret. It calls nobody.
type Webhook struct {
	Options Options
	Log     *slog.Logger
	// Measure hears of each question: an Outcome, or BadRequest.
	Measure func(result string, took time.Duration)
	// Config says what is wrong with an adapter's document; see ReviewConfig.
	Config func(doc, previous []byte) (wrong, warnings []string)

	busy chan struct{}
}

// BadRequest is the result of what was no question at all.
const BadRequest = "bad_request"

// Results are all that Measure can hear.
func Results() []string {
	return []string{string(Patched), string(Unchanged), string(Skipped), string(Refused), BadRequest}
}

const (
	maxReview = 3 << 20 // bytes; an API server takes no larger request itself
	// atOnce bounds the memory: a review takes many times its size while it is read.
	atOnce = 16
)

// Handler serves POST /mutate and POST /validate-config.
func (w *Webhook) Handler() http.Handler {
	w.busy = make(chan struct{}, atOnce)
	mux := http.NewServeMux()
	mux.HandleFunc("POST /mutate", w.serve(func(body []byte) ([]byte, Verdict, error) { return Review(body, w.Options) }))
	mux.HandleFunc("POST /validate-config", w.serve(func(body []byte) ([]byte, Verdict, error) { return ReviewConfig(body, w.Config) }))
	return mux
}

func (w *Webhook) serve(review func([]byte) ([]byte, Verdict, error)) http.HandlerFunc {
	return func(rw http.ResponseWriter, r *http.Request) {
		began := time.Now()
		b, v, status, err := w.review(rw, r, review)
		rw.Header().Set("X-Content-Type-Options", "nosniff")
		if err != nil {
			w.Measure(BadRequest, time.Since(began))
			w.Log.Debug("what was sent is no AdmissionReview", "status", status, "err", err)
			http.Error(rw, err.Error(), status)
			return
		}
		w.Measure(string(v.Outcome), time.Since(began))
		w.Log.Debug("admission", "outcome", v.Outcome, "reason", v.Code)
		rw.Header().Set("Content-Type", "application/json")
		rw.Write(b) // who does not read it does not want it
	}
}

func (w *Webhook) review(rw http.ResponseWriter, r *http.Request, review func([]byte) ([]byte, Verdict, error)) ([]byte, Verdict, int, error) {
	if kind, params, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || kind != "application/json" || params["charset"] != "" && params["charset"] != "utf-8" {
		return nil, Verdict{}, http.StatusUnsupportedMediaType, errors.New("an AdmissionReview in application/json is wanted")
	}
	if e := r.Header.Get("Content-Encoding"); e != "" && e != "identity" {
		return nil, Verdict{}, http.StatusUnsupportedMediaType, fmt.Errorf("the encoding %.40q is not taken", e)
	}
	body, err := io.ReadAll(http.MaxBytesReader(rw, r.Body, maxReview))
	if _, large := errors.AsType[*http.MaxBytesError](err); large {
		return nil, Verdict{}, http.StatusRequestEntityTooLarge, fmt.Errorf("more than %d bytes", maxReview)
	}
	if err != nil {
		return nil, Verdict{}, http.StatusBadRequest, errors.New("the body did not arrive whole")
	}
	select {
	case w.busy <- struct{}{}:
		defer func() { <-w.busy }()
	case <-r.Context().Done():
		return nil, Verdict{}, http.StatusServiceUnavailable, errors.New("busy")
	}
	b, v, err := review(body)
	if err != nil {
		return nil, Verdict{}, http.StatusBadRequest, err
	}
	return b, v, http.StatusOK, nil
}

// Bounds of one connection. The API server waits five seconds for an answer.
const (
	headerTime   = 5 * time.Second
	bodyTime     = 5 * time.Second
	writeTime    = 10 * time.Second
	idleTime     = 90 * time.Second
	maxHeader    = 16 << 10
	maxStreams   = 250
	shutdownTime = 10 * time.Second
)

// Serve answers on ln until ctx ends, and then whatever has been asked.
func (w *Webhook) Serve(ctx context.Context, ln net.Listener, config *tls.Config) error {
	config = config.Clone()
	config.NextProtos = []string{"h2", "http/1.1"}
	srv := &http.Server{
		Handler: w.Handler(), ReadHeaderTimeout: headerTime, ReadTimeout: bodyTime, WriteTimeout: writeTime, IdleTimeout: idleTime, MaxHeaderBytes: maxHeader,
		Protocols: new(http.Protocols), HTTP2: &http.HTTP2Config{MaxConcurrentStreams: maxStreams},
		ErrorLog: slog.NewLogLogger(w.Log.Handler(), slog.LevelDebug), // strangers' TLS errors and the like
	}
	// The framing is looked at inside TLS, so net/http does not see that there is
	// TLS: it tells HTTP/2 by how it begins.
	srv.Protocols.SetHTTP1(true)
	srv.Protocols.SetUnencryptedHTTP2(true)
	served := make(chan error, 1)
	go func() { served <- srv.Serve(framing.Listener{Listener: tls.NewListener(ln, config), HTTP2: true}) }()
	select {
	case err := <-served:
		return fmt.Errorf("serve the webhook: %w", err)
	case <-ctx.Done():
	}
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownTime)
	defer cancel()
	if srv.Shutdown(grace) != nil {
		srv.Close()
	}
	<-served
	return nil
}
