package mcp

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"io"
	"mime"
	"net/http"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/audit"
	"github.com/tailplane/tailplane/internal/httpapi"
	"github.com/tailplane/tailplane/internal/plane"
)

// Endpoint is the endpoint for clients of the Model Context Protocol. It accepts any role; each tool call checks the role that the tool needs.
var Endpoint = httpapi.Op[plane.Empty, plane.Empty]{Pattern: "POST /mcp", Verb: access.PlaneSelf,
	Doc: "Send one JSON-RPC message of the Model Context Protocol (Streamable HTTP)."}

// sessionHeader carries the session id of a message.
const sessionHeader = "Mcp-Session-Id"

// httpServer serves the tools over HTTP.
type httpServer struct {
	api        *httpapi.Server
	routes     []httpapi.Route
	options    Options
	tools      []tool
	sessionKey []byte
}

// Route returns the route that serves the tools over HTTP. Tools call the routes in api as the caller of the message. Each call is
// authorised again, and no two messages share a server, a client or a response (MC-05).
func Route(s *httpapi.Server, api []httpapi.Route, o Options) httpapi.Route {
	h := &httpServer{api: s, routes: api, options: o, tools: describe(allTools()), sessionKey: make([]byte, 32)}
	rand.Read(h.sessionKey) // never fails
	return Endpoint.ServeHandler(h.serve)
}

func (h *httpServer) serve(w http.ResponseWriter, r *http.Request, p access.Permit) {
	header := w.Header()
	header.Set("Cache-Control", "no-store")
	header.Set("X-Content-Type-Options", "nosniff")
	if media, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || media != "application/json" {
		refuse(w, http.StatusUnsupportedMediaType, &rpcError{code: codeInvalid, text: "Content-Type is not application/json"})
		return
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxMessage))
	if err != nil {
		status := http.StatusBadRequest
		if _, large := errors.AsType[*http.MaxBytesError](err); large {
			status = http.StatusRequestEntityTooLarge
		}
		refuse(w, status, &rpcError{code: codeInvalid, text: "the message has more than 1048576 bytes, or is incomplete"})
		return
	}
	body = bytes.TrimSpace(body)
	m, refused := parseMessage(body)
	if refused != nil {
		refuse(w, http.StatusBadRequest, refused)
		return
	}
	ids := r.Header.Values(sessionHeader)
	switch {
	case len(ids) > 1 || len(ids) == 1 && !h.ownsSession(ids[0], p.Caller()):
		refuse(w, http.StatusNotFound, &rpcError{code: codeInvalid, text: "the session does not exist or is not yours; start a new one", id: m.id})
		return
	case m.method == "initialize":
		header.Set(sessionHeader, h.newSession(p.Caller()))
	case len(ids) == 0 && m.method != "server/discover": // later clients use it to find out the supported versions
		refuse(w, http.StatusBadRequest, &rpcError{code: codeInvalid, text: sessionHeader + " is missing", id: m.id})
		return
	}
	h.answer(w, r, p, m, body)
}

// answer lets the SDK answer one message, with a server for its caller only.
func (h *httpServer) answer(w http.ResponseWriter, r *http.Request, p access.Permit, m message, body []byte) {
	if m.id == nil || m.method == "" { // a notification or a response: the server keeps no state for either
		w.WriteHeader(http.StatusAccepted)
		return
	}
	s := newServer(r.Context(), h.options, h.tools, plane.ViewerOf(p).Anywhere, func(tool string) httpapi.Client { return h.client(r.Context(), p, tool) }, h.api.Log)
	if refused := s.check(m); refused != nil {
		refuse(w, http.StatusOK, refused)
		return
	}
	r = r.Clone(r.Context())
	r.Body = io.NopCloser(bytes.NewReader(body))
	r.Header.Set("Accept", "application/json, text/event-stream") // the response is always JSON, whatever the client accepts
	r.Header.Del("Last-Event-Id")
	a := &responseRecorder{header: http.Header{}, status: http.StatusOK}
	mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return s.sdk }, &mcp.StreamableHTTPOptions{
		Stateless: true, JSONResponse: true, Logger: discardLogger(), MaxRequestBodyBytes: maxMessage,
		DisableLocalhostProtection: true, // the server has already checked Host
	}).ServeHTTP(a, r)
	if media, _, err := mime.ParseMediaType(a.header.Get("Content-Type")); err != nil || media != "application/json" {
		refuse(w, a.status, &rpcError{code: codeInvalid, text: strings.TrimSpace(a.body.String()), id: m.id})
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(a.status)
	_, _ = w.Write(a.body.Bytes()) // the client may have disconnected
}

func refuse(w http.ResponseWriter, status int, f *rpcError) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(f.response()) // the client may have disconnected
}

// newSession returns a new session id for c: a nonce with an HMAC over the nonce and the caller. The server stores nothing, so sessions
// cannot be exhausted, guessed or confused. The id grants no rights; each message needs its own permit (MC-03).
func (h *httpServer) newSession(c access.Caller) string {
	var nonce [16]byte
	rand.Read(nonce[:])
	return base64.RawURLEncoding.EncodeToString(append(nonce[:], h.sessionMAC(nonce[:], c)...))
}

// ownsSession reports whether c opened the session.
func (h *httpServer) ownsSession(id string, c access.Caller) bool {
	b, err := base64.RawURLEncoding.Strict().DecodeString(id)
	return err == nil && len(b) == 16+sha256.Size && hmac.Equal(b[16:], h.sessionMAC(b[:16], c))
}

func (h *httpServer) sessionMAC(nonce []byte, c access.Caller) []byte {
	mac := hmac.New(sha256.New, h.sessionKey)
	mac.Write(nonce)
	mac.Write([]byte(strings.Join([]string{string(c.Via), c.Identity(), c.Tailnet, c.Device.ID}, "\x00")))
	return mac.Sum(nil)
}

// client returns a client of the API for one tool call. It uses a copy of the server that received the message, with the caller that the
// server has just identified.
func (h *httpServer) client(ctx context.Context, p access.Permit, tool string) httpapi.Client {
	inner := *h.api
	inner.Identify = func(*http.Request) (access.Caller, error) { return p.Caller(), nil }
	inner.Limits = httpapi.Limits{} // the message itself was counted
	inner.Key = nil
	inner.Encoder = plane.EnvelopeForm()
	inner.Record = func(e audit.Entry) error {
		e.Surface, e.Tool = "mcp", tool
		return h.api.Record(e)
	}
	host := "plane"
	if names := h.api.Names(); len(names) > 0 {
		host = names[0]
	}
	return httpapi.Client{HTTP: &http.Client{Transport: handlerTransport{ctx, inner.Handler(h.routes...)}}, Base: "http://" + host, Open: plane.ParseEnvelope}
}

// handlerTransport is a transport to a handler in this process. Its requests end when the message ends.
type handlerTransport struct {
	message context.Context
	handler http.Handler
}

// RoundTrip implements [http.RoundTripper].
func (i handlerTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	defer context.AfterFunc(i.message, cancel)()
	r = r.Clone(ctx)
	r.Host, r.RequestURI = r.URL.Host, r.URL.RequestURI()
	r.URL.Scheme, r.URL.Host = "", "" // as a server receives it
	if r.Body == nil {
		r.Body = http.NoBody
	}
	w := &responseRecorder{header: http.Header{}, status: http.StatusOK}
	i.handler.ServeHTTP(w, r)
	return &http.Response{StatusCode: w.status, Status: http.StatusText(w.status), Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: w.header, Body: io.NopCloser(&w.body), ContentLength: int64(w.body.Len()), Request: r}, nil
}

// responseRecorder records the response of a handler.
type responseRecorder struct {
	header http.Header
	status int
	body   bytes.Buffer
}

func (a *responseRecorder) Header() http.Header         { return a.header }
func (a *responseRecorder) WriteHeader(status int)      { a.status = status }
func (a *responseRecorder) Write(b []byte) (int, error) { return a.body.Write(b) }
