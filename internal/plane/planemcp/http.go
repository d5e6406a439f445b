package planemcp

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
	"slices"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/audit"
	"github.com/tailplane/tailplane/internal/door"
	"github.com/tailplane/tailplane/internal/plane"
)

// Speak is where a client of the Model Context Protocol asks. Whoever has any role
// may; what each tool needs is decided when it is called.
var Speak = door.Op[plane.Empty, plane.Empty]{Pattern: "POST /mcp", Verb: access.PlaneSelf,
	Doc: "Ask by the Model Context Protocol (Streamable HTTP): one JSON-RPC message."}

// conversationHeader names the conversation that a message belongs to.
const conversationHeader = "Mcp-Session-Id"

// hall is the tools behind a door.
type hall struct {
	way    *door.Door
	routes []door.Route
	o      Options
	tools  []tool
	seal   []byte
}

// Route is the tools over HTTP, for a server that lets callers in to api by way.
// A tool asks those routes, as the caller of the message and of no other, and the
// decision is made anew each time: there is no server, client or answer that two
// messages share (MC-05).
func Route(way *door.Door, api []door.Route, o Options) door.Route {
	h := &hall{way: way, routes: api, o: o, tools: describe(tools()), seal: make([]byte, 32)}
	rand.Read(h.seal) // never fails
	return Speak.ServeHandler(h.serve)
}

func (h *hall) serve(w http.ResponseWriter, r *http.Request, p access.Permit) {
	header := w.Header()
	header.Set("Cache-Control", "no-store")
	header.Set("X-Content-Type-Options", "nosniff")
	if media, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || media != "application/json" {
		refuse(w, http.StatusUnsupportedMediaType, &fault{code: codeInvalid, text: "Content-Type is not application/json"})
		return
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxMessage))
	if err != nil {
		status := http.StatusBadRequest
		if _, large := errors.AsType[*http.MaxBytesError](err); large {
			status = http.StatusRequestEntityTooLarge
		}
		refuse(w, status, &fault{code: codeInvalid, text: "the message has more than 1048576 bytes, or broke off"})
		return
	}
	body = bytes.TrimSpace(body)
	m, refused := read(body)
	if refused != nil {
		refuse(w, http.StatusBadRequest, refused)
		return
	}
	ids := r.Header.Values(conversationHeader)
	switch {
	case len(ids) > 1 || len(ids) == 1 && !h.opened(ids[0], p.Caller()):
		refuse(w, http.StatusNotFound, &fault{code: codeInvalid, text: "there is no such conversation of yours: begin a new one", id: m.id})
		return
	case m.method == "initialize":
		header.Set(conversationHeader, h.conversation(p.Caller()))
	case len(ids) == 0 && m.method != "server/discover": // by which clients of later versions ask whether we speak them
		refuse(w, http.StatusBadRequest, &fault{code: codeInvalid, text: conversationHeader + " is missing", id: m.id})
		return
	}
	h.answer(w, r, p, m, body)
}

// answer has the SDK answer one message, by a server for its caller alone.
func (h *hall) answer(w http.ResponseWriter, r *http.Request, p access.Permit, m message, body []byte) {
	if m.id == nil || m.method == "" { // a notification, or an answer: nothing is remembered that it could be about
		w.WriteHeader(http.StatusAccepted)
		return
	}
	s := newServer(r.Context(), h.o, h.tools, holds(p), func(tool string) door.Client { return h.client(r.Context(), p, tool) }, h.way.Log)
	if refused := s.check(m); refused != nil {
		refuse(w, http.StatusOK, refused)
		return
	}
	r = r.Clone(r.Context())
	r.Body = io.NopCloser(bytes.NewReader(body))
	r.Header.Set("Accept", "application/json, text/event-stream") // an answer is always JSON, whatever else the client takes
	r.Header.Del("Last-Event-Id")
	a := &answer{header: http.Header{}, status: http.StatusOK}
	mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return s.sdk }, &mcp.StreamableHTTPOptions{
		Stateless: true, JSONResponse: true, Logger: quiet(), MaxRequestBodyBytes: maxMessage,
		DisableLocalhostProtection: true, // the door has checked Host
	}).ServeHTTP(a, r)
	if media, _, err := mime.ParseMediaType(a.header.Get("Content-Type")); err != nil || media != "application/json" {
		refuse(w, a.status, &fault{code: codeInvalid, text: strings.TrimSpace(a.body.String()), id: m.id})
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(a.status)
	_, _ = w.Write(a.body.Bytes()) // the client may be gone
}

func refuse(w http.ResponseWriter, status int, f *fault) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(f.response()) // the client may be gone
}

// holds says which verbs a permit's caller may use at all, somewhere.
func holds(p access.Permit) func(access.Verb) bool {
	verbs := p.Verbs()
	return func(v access.Verb) bool {
		for _, of := range verbs {
			if slices.Contains(of, v) {
				return true
			}
		}
		return false
	}
}

// conversation is a new id for who opens one: random, and sealed together with who it
// is. Nothing is remembered, so that nothing can be filled, guessed or mixed up; and
// an id is no authority, which each message has to have of its own (MC-03).
func (h *hall) conversation(c access.Caller) string {
	var nonce [16]byte
	rand.Read(nonce[:])
	return base64.RawURLEncoding.EncodeToString(append(nonce[:], h.sealed(nonce[:], c)...))
}

// opened reports whether c has opened the conversation.
func (h *hall) opened(id string, c access.Caller) bool {
	b, err := base64.RawURLEncoding.Strict().DecodeString(id)
	return err == nil && len(b) == 16+sha256.Size && hmac.Equal(b[16:], h.sealed(b[:16], c))
}

func (h *hall) sealed(nonce []byte, c access.Caller) []byte {
	mac := hmac.New(sha256.New, h.seal)
	mac.Write(nonce)
	mac.Write([]byte(strings.Join([]string{string(c.Via), c.Identity(), c.Tailnet, c.Device.ID}, "\x00")))
	return mac.Sum(nil)
}

// client is the way to the API for one call of a tool: through a door like the one
// that the message came through, where who is calling has been asked just now.
func (h *hall) client(ctx context.Context, p access.Permit, tool string) door.Client {
	inner := *h.way
	inner.Identify = func(*http.Request) (access.Caller, error) { return p.Caller(), nil }
	inner.Limits = door.Limits{} // the message was counted
	inner.Key = nil
	inner.Form = plane.Form()
	inner.Record = func(e audit.Entry) error {
		e.Surface, e.Tool = "mcp", tool
		return h.way.Record(e)
	}
	host := "plane"
	if names := h.way.Names(); len(names) > 0 {
		host = names[0]
	}
	return door.Client{HTTP: &http.Client{Transport: inside{ctx, inner.Handler(h.routes...)}}, Base: "http://" + host, Open: plane.Open}
}

// inside is the way to a handler in this process. What is asked there ends when the
// message does.
type inside struct {
	message context.Context
	handler http.Handler
}

// RoundTrip implements [http.RoundTripper].
func (i inside) RoundTrip(r *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	defer context.AfterFunc(i.message, cancel)()
	r = r.Clone(ctx)
	r.Host, r.RequestURI = r.URL.Host, r.URL.RequestURI()
	if r.Body == nil {
		r.Body = http.NoBody
	}
	w := &answer{header: http.Header{}, status: http.StatusOK}
	i.handler.ServeHTTP(w, r)
	return &http.Response{StatusCode: w.status, Status: http.StatusText(w.status), Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: w.header, Body: io.NopCloser(&w.body), ContentLength: int64(w.body.Len()), Request: r}, nil
}

// answer is what a handler answers.
type answer struct {
	header http.Header
	status int
	body   bytes.Buffer
}

func (a *answer) Header() http.Header         { return a.header }
func (a *answer) WriteHeader(status int)      { a.status = status }
func (a *answer) Write(b []byte) (int, error) { return a.body.Write(b) }
